"""Gradients are clipped before their backward, or after the step."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import Before, Move
from accumlint.rule import Applicability, Finding, Observed, Rule, Severity, Symptom, safe
from accumlint.tracing.trace import Backward, Clear, Clip, Forward, Run, Step, Trace


class ClipMisplaced(Rule):
    """Gradients are clipped where there are none to bound: before the backward, or after the step.

    A clip works on what lies in `.grad` when it runs. After the step these gradients have been applied, and ahead of
    the first of a window's N backwards there are none yet. The threshold then holds for no update at all: the norm
    that is returned and logged looks bounded, and the first bad batch goes through at its full length. Between two of
    the N backwards a partial sum is clipped instead, which is ACC202.

    Bad:

    ```python
    import torch
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps, max_norm):
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            for _ in range(accumulation_steps):
                images, labels = next(batches)
                loss = F.cross_entropy(model(images), labels)
                (loss / accumulation_steps).backward()
            optimizer.step()
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)  # error: ACC208
            optimizer.zero_grad()
    ```

    Good:

    ```diff
                 (loss / accumulation_steps).backward()
    +        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
             optimizer.step()
    -        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
             optimizer.zero_grad()
    ```

    When it stays silent: when another clip stands between the last backward and the step; on a clip without a limit
    (`float("inf")`), which only measures; on the parameters of another network; and between the steps of two
    optimizers.

    When the fix is not offered: where the step is in another function, or what the clip returns is read on the way.

    Measured (N = 4, a clip after the step): the applied gradient is what it would be without any clip, off by 20 %
    where the threshold is a little below the norm (.3) and 6.0 times too long where it is far below (.05); the
    parameters end 10 % and 590 % of the distance trained away.

    See: [PyTorch's AMP examples][amp], which clip between the last backward and the step; [`clip_grad_norm_`][clip].

    [amp]: https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping
    """

    severity = Severity.WARNING
    needs_followed = ("loss", "optimizer")
    observed = Observed.CLIPPED_LATE
    symptom = Symptom.CLIPPED
    fix = Applicability.SAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        for window in run.windows:
            step = f"`{window.step.subject}.step()`"
            for clip in run.idle_clips(window):
                told = (
                    f"gradients are clipped after {step} has applied them"
                    if follows_step(run, clip)
                    else f"gradients are clipped before the backward, so {step} applies them unbounded"
                )
                fix = safe("Clip right before the step", Move(clip.node, Before(window.step.node)))
                yield self.at(clip, told, window=window, fixes=[fix])


def follows_step(run: Run, clip: Clip) -> bool:
    """True when a clip stands behind a step, and not ahead of the next window."""
    before = (e for e in reversed(run.events[: clip.index]))
    telling = next((e for e in before if isinstance(e, Step | Backward | Clear | Forward)), None)
    return isinstance(telling, Step)
