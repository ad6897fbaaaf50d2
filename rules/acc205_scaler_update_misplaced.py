"""`scaler.update` runs while gradients wait to be applied."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import After
from accumlint.reading.program import Program
from accumlint.rule import (
    Applicability,
    Claim,
    Confidence,
    Finding,
    Observed,
    Related,
    Rule,
    Severity,
    safe,
)
from accumlint.tracing.trace import Trace, Update, Window

from ._calls import receiver_of, taken
from ._scalers import updates_between_steps


class ScalerUpdateMisplaced(Rule):
    """`scaler.update` runs between a backward and the step that applies it.

    The scale must stay the same from a window's first backward to its step, and `update` is where it changes. Called
    after every micro-batch, left outside the boundary's `if`, or put before the step, it finds no overflow check and
    raises. Between `unscale_` and `step` it forgets that the gradients are unscaled, `step` takes the scale off once
    more, and the update has 1.5e-5 of its length. For one optimizer while the window of another one is open, it changes
    the scale under what that window has collected: when the scale doubles, the micro-batches so far count one half.

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
            scaler.update()  # error: ACC205
            scaler.step(optimizer)
            optimizer.zero_grad()
    ```

    Good:

    ```diff
                 scaler.scale(loss).backward()
    +        scaler.step(optimizer)
             scaler.update()
    -        scaler.step(optimizer)
             optimizer.zero_grad()
    ```

    When it stays silent: when every gradient that a later step applies was made after the update, as in a GAN that
    steps and updates for one network before the other one's backward; with one scaler per optimizer; on a window
    that is thrown away; and where several optimizers share gradients that could not be told apart.

    When the fix is not offered: where the update belongs to the step of another optimizer with the same scaler, since
    the two windows need a scaler each; and in a loop over optimizers.

    Measured (N = 4): per micro-batch or before the step, AssertionError "No inf checks were recorded prior to update."
    at once; between `unscale_` and the step, length 1.5e-5 and a RuntimeError in the second window; while another
    window is open and the scale grows with every update, relative error .77, cosine .98, length .23, silently.

    See: [`GradScaler.update`][update]; [pytorch #36601][example] (unscale and update only where you step);
    [accelerate #357][assertion] for the AssertionError.

    [update]: https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler.update
    [example]: https://github.com/pytorch/pytorch/pull/36601
    [assertion]: https://github.com/huggingface/accelerate/issues/357
    """

    severity = Severity.ERROR
    observed = Observed.UPDATE_MISPLACED
    fix = Applicability.SAFE
    claim = Claim.EXCEPTION

    def check_program(self, program: Program) -> Iterator[Finding]:
        for loop, update in updates_between_steps(program):
            scaler = receiver_of(update)
            yield self.at(
                update,
                f"`{scaler}.update()` runs after each optimizer's step: those after the first are unscaled by a scale "
                "that has changed (if there are several)",
                confidence=Confidence.LIKELY,
                related=[Related(loop, "goes over the optimizers")],
            )

    def check(self, trace: Trace) -> Iterator[Finding]:
        one = len(trace.main.optimizers) == 1
        for window in trace.main.windows:
            if window.step.scaler is None or not (one or window.step.owned):
                continue
            for update in window.of(Update):
                if update.scaler is window.step.scaler and is_open(window, update):
                    yield self.at(
                        update,
                        f"`{update.subject}.update()` runs between a backward and the "
                        f"`{window.step.subject}.step` that applies it",
                        window=window,
                        related=[
                            Related(window.step.node, "applies the gradients that were waiting")
                        ],
                        fixes=[
                            safe("Update the scale after the step", *verbs)
                            for verbs in taken(trace.program, update.node, After(window.step.node))
                        ],
                    )


def is_open(window: Window, update: Update) -> bool:
    """True when gradients of this window were made before the update."""
    return any(
        window.between[0].index <= c.backward.index < update.index for c in window.contributions
    )
