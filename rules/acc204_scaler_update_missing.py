"""`scaler.step` is never followed by `scaler.update`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from accumlint.rule import Claim, Finding, Rule, Severity
from accumlint.tracing.trace import Trace, Update, Window


class ScalerUpdateMissing(Rule):
    """`scaler.step` runs again without `scaler.update` in between.

    `step` marks the optimizer as stepped and `update` takes the mark off and adapts the scale. Without it the first
    window is right and the second raises: in `unscale_` if it is called, else in `step`. Nothing is learned wrongly,
    but the run ends after N micro-batches and one update, or much later where only one path forgets the call.

    Bad:

    ```python
    import torch
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps):
        scaler = torch.amp.GradScaler("cuda")
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            for _ in range(accumulation_steps):
                images, labels = next(batches)
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = F.cross_entropy(model(images), labels) / accumulation_steps
                scaler.scale(loss).backward()
            scaler.step(optimizer)  # error: ACC204
            optimizer.zero_grad()
    ```

    Good:

    ```python
    import torch
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps):
        scaler = torch.amp.GradScaler("cuda")
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            for _ in range(accumulation_steps):
                images, labels = next(batches)
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = F.cross_entropy(model(images), labels) / accumulation_steps
                scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    ```

    When it stays silent: on one `update()` after the steps of several optimizers, on a disabled scaler, and where a
    call that could not be followed received the scaler or the optimizer, because it may update.

    Measured (N = 4): the first update is right; the second window raises RuntimeError "unscale_() is being called after
    step()" or "step() has already been called since the last update()", with fused optimizers as well. It does not
    let the scale decay silently, as is often said.

    See: [`GradScaler.step` and `GradScaler.update`][scaler]; the [AMP examples][amp], where both stand together.

    [scaler]: https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler
    [amp]: https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation
    """

    code = "ACC204"
    name = "scaler-update-missing"
    severity = Severity.WARNING
    claim = Claim.EXCEPTION

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        if run.hides("scaler", "optimizer"):
            return
        for optimizer in run.optimizers:
            taken = [w.step for w in run.windows_of(optimizer) if is_scaled(w)]
            for step, following in pairwise(taken):
                scaler = step.scaler
                updated = any(
                    update.scaler is scaler and step.index < update.index < following.index
                    for update in run.of(Update)
                )
                if scaler is not None and scaler is following.scaler and not updated:
                    yield self.at(
                        step,
                        f"`{scaler.text}.step` runs again before `{scaler.text}.update()`",
                    )


def is_scaled(window: Window) -> bool:
    """True when a scaler that is switched on has scaled what the step applies."""
    made = (c for backward in window.backwards for c in backward.contributions)
    return window.step.scaler is not None and any(c.scaled for c in made)
