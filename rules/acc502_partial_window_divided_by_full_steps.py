"""The partial window is divided as if it were full."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from accumlint.rule import (
    Applicability,
    Confidence,
    Finding,
    Observed,
    Rule,
    Severity,
    Symptom,
    unsafe,
)
from accumlint.tracing.trace import Backward, EpochEnd, Rescale, Run, Trace, Window

from ._partial import own_lengths


class PartialWindowDividedByFullSteps(Rule):
    """The partial window at the end of an epoch is stepped, but divided by the full N.

    The gradient of that one step is r/N of a mean. It points the right way and is too short: with N
    = 4 and two micro-batches left it has half its length. One step per epoch is affected, so little
    is lost with long epochs and Adam, and much in fine-tuning, where an epoch has few windows.

    Bad:

    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps):
        for index, (inputs, targets) in enumerate(loader):
            loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
            loss.backward()
            if (index + 1) % accumulation_steps == 0 or index + 1 == len(loader):
                optimizer.step()  # error: ACC502
                optimizer.zero_grad()
    ```

    Good:

    ```diff
         for index, (inputs, targets) in enumerate(loader):
    -        loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
    +        start = index - index % accumulation_steps
    +        window = min(accumulation_steps, len(loader) - start)
    +        loss = F.cross_entropy(model(inputs), targets) / window
             loss.backward()
    ```

    When it stays silent: when the loss is divided by a count of the window itself (its tokens, its rows, `len(group)`),
    when the gradients of the partial window are rescaled before the step, and when the full window is not divided
    rightly either. Accelerate and Lightning divide by the full N on their own; there the finding is only possible, not
    likely. The HF Trainer divides by the window's real length.

    When the fix is not offered: where the first window has another length than the rest. It is unsafe, since a partial
    window that counts less may be what was meant.

    Measured (10 micro-batches, N = 4, 3 epochs): relative error .50 at the partial step; the
    parameters are off by .17 of the distance trained, under Accelerate and Lightning as well.

    See: Lightning#19987, ms-swift#10084, [gradient accumulation in Accelerate][accelerate].
    """

    severity = Severity.INFO
    observed = Observed.PARTIAL_DIVIDED
    symptom = Symptom.PARTIAL
    fix = Applicability.UNSAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        for steady in run.steady_of_each():
            if not is_mean(trace, steady):
                continue
            windows = run.windows_of(steady.step.optimizer)
            full = len(steady.microbatches)
            by_hand = all(b.divided == 1 for b in steady.backwards)
            for window in windows:
                length = len(window.microbatches)
                if (
                    length < full
                    and is_part(window, steady, Fraction(length, full))
                    and ends_epoch(run, window)
                    and all(c.reduction != "window" for c in window.contributions)
                    and len(window.of(Rescale)) == len(steady.of(Rescale))
                ):
                    yield self.at(
                        window.step,
                        f"`{window.step.subject}.step()` applies the partial window at the end of "
                        "an epoch, divided by the length of a full one",
                        confidence=Confidence.CERTAIN if by_hand else Confidence.POSSIBLE,
                        window=window,
                        fixes=[
                            unsafe("Divide the partial window by its own length", *verbs)
                            for verbs in own_lengths(trace.program, steady, stepped=True)
                            # Else the windows do not begin where their lengths are counted from.
                            if len(windows[0].microbatches) == full
                        ],
                    )


def is_mean(trace: Trace, steady: Window) -> bool:
    """True for a full window that applies the mean of its micro-batches, each loss in it by a weight of its own."""
    count = trace.divisions(steady)
    several = len(steady.totals) > 1 and None not in steady.totals.values()
    # The weight of a loss may be as small as a division would make it.
    return count != 0 if steady.total == 1 else several and count == 1


def is_part(window: Window, steady: Window, part: Fraction) -> bool:
    """True for a window that applies that part of what a full one does, of each loss."""
    due = {loss: (total or 0) * part for loss, total in steady.totals.items()}
    return window.totals == due


def ends_epoch(run: Run, window: Window) -> bool:
    """True when a pass over the loader ends right after the window's last backward."""
    after = run.events[window.backwards[-1].index + 1 :] if window.backwards else ()
    marks = (e for e in after if isinstance(e, EpochEnd | Backward))
    return isinstance(next(marks, None), EpochEnd)
