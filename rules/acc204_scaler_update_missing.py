"""`scaler.step` is never followed by `scaler.update`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from accumlint.editing import After, Insert
from accumlint.reading.program import Program
from accumlint.rule import Applicability, Claim, Finding, Fix, Observed, Rule, Severity, safe
from accumlint.tracing.trace import Backward, Run, Step, Trace, TrainingObject, Update, Window

from ._calls import receiver_of, taken


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

    ```diff
             scaler.step(optimizer)
    +        scaler.update()
             optimizer.zero_grad()
    ```

    When it stays silent: on one `update()` after the steps of several optimizers, and on a disabled scaler.

    When the fix is not offered: where the step is no statement of its own.

    Measured (N = 4): the first update is right; the second window raises RuntimeError "unscale_() is being called after
    step()" or "step() has already been called since the last update()", with fused optimizers as well. It does not
    let the scale decay silently, as is often said.

    See: [`GradScaler.step` and `GradScaler.update`][scaler]; the [AMP examples][amp], where both stand together.

    [scaler]: https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler
    """

    severity = Severity.WARNING
    needs_followed = ("scaler", "optimizer")
    observed = Observed.UPDATE_MISSING
    fix = Applicability.SAFE
    claim = Claim.EXCEPTION

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        for optimizer in run.optimizers:
            scaled = [w.step for w in run.windows_of(optimizer) if is_scaled(w)]
            # What an optimizer does with a scaler that it is given is its own affair.
            own = [s for s in scaled if last_name(receiver_of(s.node)) != last_name(s.subject)]
            for step, following in pairwise(own):
                updates = run.between(Update, step.index, following.index)
                scaler = step.scaler
                if (
                    scaler is None
                    or scaler is not following.scaler
                    or is_the_callers(trace, scaler)
                ):
                    continue
                if all(update.scaler is not scaler for update in updates):
                    yield self.at(
                        step,
                        f"`{scaler.text}.step` runs again before `{scaler.text}.update()`",
                        fixes=update_after(trace.program, run, step),
                    )


def is_the_callers(trace: Trace, scaler: TrainingObject) -> bool:
    """True for a scaler that a function is called with for each micro-batch: its caller may update it."""
    function = trace.entry.function
    given = function.params if function is not None and trace.entry.calls == "microbatch" else ()
    return any(param.name == scaler.text for param in given)


def update_after(program: Program, run: Run, step: Step) -> Iterator[Fix]:
    """Updates when the scaler's last optimizer has stepped, by the call that stands elsewhere where there is one."""
    following = run.events[step.index :]
    until = next((e.index for e in following if isinstance(e, Backward)), len(run.events))
    last = [s for s in run.of(Step) if s.scaler is step.scaler and s.index < until][-1]
    elsewhere = {u.node: u for u in run.of(Update) if u.scaler is step.scaler}
    scaler = receiver_of(last.node)
    if elsewhere:
        for update in elsewhere:
            for verbs in taken(program, update, After(last.node)):
                yield safe("Update the scale after the step", *verbs)
    elif scaler:
        call = f"{scaler}.update()"
        yield safe(f"Call `{call}` after the step", Insert(call, After(last.node)))


def is_scaled(window: Window) -> bool:
    """True when a scaler that is switched on has scaled what the step applies."""
    made = (c for backward in window.backwards for c in backward.contributions)
    return window.step.scaler is not None and any(c.scaled for c in made)


def last_name(path: str) -> str:
    return path.rpartition(".")[2]
