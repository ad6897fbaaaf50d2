"""Micro-batches of a window go forward and never backward."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.rule import Confidence, Finding, Rule, Severity
from accumlint.tracing.trace import Backward, EpochEnd, Forward, Run, Trace, Window, mean


class WindowMicrobatchesNeverBackwarded(Rule):
    """Only one micro-batch of a window reaches the backward; the others' losses are computed and dropped.

    The backward stands inside the guard of the step. Accumulation happens in `.grad`, so a loss that
    never goes backward leaves nothing behind: the step applies one micro-batch's gradient, divided
    by N as if all had been in it. N - 1 of N samples are never learned from.

    Bad:

    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps):
        for step, (inputs, targets) in enumerate(loader):
            loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
            if (step + 1) % accumulation_steps == 0:
                loss.backward()  # error: ACC509
                optimizer.step()
                optimizer.zero_grad()
    ```

    Good:

    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps):
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            for _ in range(accumulation_steps):
                inputs, targets = next(batches)
                loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    ```

    When it stays silent: when another network goes backward on these micro-batches (a critic that is trained more
    often), when the losses are added up before their backward, when the forwards are not those of the loss that goes
    backward, and where the window's size is not the accumulation steps.

    When the fix is not offered: always; the backward has to leave the guard, and what else stands
    in it may have to follow.

    Measured (N = 4): relative error .77, cosine .88, length .27, as for every window of which only
    the last micro-batch, divided by N, is applied.

    See: [gradient accumulation in the AMP examples][amp].
    """

    severity = Severity.ERROR

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        if not run.asked or run.guessed:
            return
        for window in run.steady_of_each():
            if len(window.backwarded) != 1:
                continue
            for backward in window.backwards:
                dropped = never_backwarded(run, window, backward)
                if len(dropped) == run.steps - 1 and all_agree(trace, backward):
                    yield self.at(
                        backward,
                        f"`{backward.loss}` goes backward on one micro-batch of {run.steps}: the "
                        "others are computed and dropped",
                        confidence=Confidence.LIKELY if run.hides("loss") else Confidence.CERTAIN,
                        window=window,
                        expected=mean(range(1, run.steps + 1)),
                    )


def never_backwarded(run: Run, window: Window, backward: Backward) -> frozenset[int]:
    """The window's micro-batches that go through the forward of this backward's loss, and through no backward."""
    places = {f.node for f in backward.forwards}
    done = {
        n for b in run.of(Backward) for n in (*b.microbatches, *(f.microbatch for f in b.forwards))
    }
    return frozenset(f.microbatch for f in window.of(Forward) if f.node in places) - done


def all_agree(trace: Trace, backward: Backward) -> bool:
    """True when with other accumulation steps, too, one micro-batch of each window goes backward there."""
    for run in trace.runs:
        through = {b.microbatch for b in run.of(Backward) if b.node is backward.node}
        forwards = {f.microbatch for f in run.of(Forward)}
        # What counts from 0 goes backward with an epoch's first micro-batch as well.
        firsts = len(run.of(EpochEnd))
        if len(through) <= firsts or len(forwards) < (len(through) - firsts) * run.steps:
            return False
    return True
