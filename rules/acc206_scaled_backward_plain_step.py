"""Scaled gradients are applied by a plain `optimizer.step()`."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import After, Insert, Replace, Verb
from accumlint.rule import (
    Applicability,
    Finding,
    Fix,
    Observed,
    Related,
    Rule,
    Severity,
    Symptom,
    safe,
)
from accumlint.tracing.trace import Backward, Run, Step, Trace, TrainingObject, Update

from ._calls import receiver_of, takes_nothing


class ScaledBackwardPlainStep(Rule):
    """The backward goes through `scaler.scale`, and `optimizer.step()` applies the scaled gradients.

    Only `scaler.step` takes the scale off and leaves out steps with an overflow. A plain `optimizer.step()` applies
    gradients 65536 times too long (the initial scale) and, after an overflow, infinite ones. SGD is thrown away at
    the first step. Adam divides the factor out and goes on, with its moments at the wrong scale, until the first
    overflow makes the parameters NaN; nothing raises unless `update()` is called too.

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
            optimizer.step()  # error: ACC206
            optimizer.zero_grad()
    ```

    Good:

    ```diff
                 scaler.scale(loss).backward()
    -        optimizer.step()
    +        scaler.step(optimizer)
    +        scaler.update()
             optimizer.zero_grad()
    ```

    When it stays silent: with `GradScaler(enabled=False)`; when `unscale_` took the scale off before the step (right
    until the first overflow); and on a branch where the backward is not scaled either.

    When the fix is not offered: where the same step also runs without mixed precision, or passes arguments on.

    Measured (N = 4, scale 65536): length 6.6e4, cosine 1, parameters 4e4 times the distance trained away, with SGD.
    With `unscale_` before the plain step: right to 5e-8, and NaN after the first overflow.

    See: [typical mixed precision training][amp] in PyTorch's AMP examples; [`GradScaler.step`][step].

    [amp]: https://docs.pytorch.org/docs/stable/notes/amp_examples.html#typical-mixed-precision-training
    """

    severity = Severity.ERROR
    needs_followed = ("scaler",)
    observed = Observed.STEPPED_SCALED
    symptom = Symptom.SCALE
    fix = Applicability.SAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        for window in trace.main.windows:
            scaled = [c for c in window.contributions if c.scaled]
            if window.step.scaled and window.step.scaler is None and scaled:
                scaler = scaled[0].backward.scaler
                yield self.at(
                    window.step,
                    f"`{window.step.subject}.step()` applies gradients that are still multiplied by the "
                    f"scale of `{scaler.text if scaler else 'the scaler'}`",
                    window=window,
                    related=[Related(scaled[0].backward.node, "made the scaled gradients")],
                    fixes=through(scaler, trace.main, window.step),
                )


def through(scaler: TrainingObject | None, run: Run, step: Step) -> Iterator[Fix]:
    """Steps through the scaler, and updates its scale unless that follows anyway."""
    optimizer = receiver_of(step.node)
    if scaler is None or not optimizer or not takes_nothing(step.node):
        return
    for name in names_of(scaler, run):
        call = f"{name}.step({optimizer})"
        verbs: list[Verb] = [Replace(step.node, call)]
        if not any(update.scaler is scaler for update in run.of(Update)):
            verbs.append(Insert(f"{name}.update()", After(step.node)))
        yield safe(f"Step by `{call}`", *verbs)


def names_of(scaler: TrainingObject, run: Run) -> list[str]:
    """What the scaler is called where it scales a loss."""
    scaled = (b for b in run.of(Backward) if b.scaler is scaler)
    subjects = (b.subject for b in scaled)
    # A loss that was scaled a line above is no name of the scaler.
    names = (
        s.removesuffix(".scale()") if s.endswith(".scale()") else scaler.text for s in subjects
    )
    return list(dict.fromkeys(names))
