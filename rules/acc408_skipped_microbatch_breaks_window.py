"""A guard on the data leaves a micro-batch out of a window that goes on without it."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from accumlint.reading.ir import Attr, Call, Raise, Stmt, Try, called, walk
from accumlint.reading.names import CLEARS
from accumlint.reading.program import Program
from accumlint.rule import Confidence, Finding, Observed, Rule, Severity, Symptom
from accumlint.tracing.trace import Backward, Clear, Run, Skip, Step, Trace, Window


class SkippedMicrobatchBreaksWindow(Rule):
    """A guard on the data (NaN, out of memory, a batch that is None) leaves a micro-batch out, and the rest of its
    window goes on as if nothing had happened.

    Three things happen. Where the guard clears the gradients, the healthy micro-batches before it are lost too: in a
    window of N = 4 whose second loss is NaN, the step applies the last two of them, still divided by 4. Where the guard
    jumps over the boundary without clearing, the window is not applied when it ends: its gradients stay, and the next
    step applies two windows at once, twice as large. Where a loop over the micro-batches of one window leaves one out,
    the step applies N - 1 of them, each still divided by N.

    Bad:

    ```python
    import torch
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps):
        for epoch in range(3):
            optimizer.zero_grad()
            for i, (images, labels) in enumerate(loader):
                loss = F.cross_entropy(model(images), labels)
                if not torch.isfinite(loss):
                    optimizer.zero_grad()
                    continue  # error: ACC408
                last = i + 1 == len(loader)
                window = accumulation_steps
                if i >= len(loader) - len(loader) % accumulation_steps:
                    window = len(loader) % accumulation_steps
                (loss / window).backward()
                if (i + 1) % accumulation_steps == 0 or last:
                    optimizer.step()
                    optimizer.zero_grad()
    ```

    Good:

    ```python
    import torch
    import torch.nn.functional as F


    def train(model, windows, optimizer):
        for window in windows:
            optimizer.zero_grad()
            for images, labels in window:
                loss = F.cross_entropy(model(images), labels)
                (loss / len(window)).backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if not torch.isfinite(norm):
                continue
            optimizer.step()
    ```

    When it stays silent: on a guard that gives up the whole window at its boundary, clears it and goes on with the next
    one, and in a loop without accumulation.

    When the fix is not offered: whether to drop the micro-batch, the window or the run is for you to say; what is left
    of a window needs a divisor of its own length.

    Not measured by itself: what is lost is what ACC402 loses, what is merged is what ACC501 leaks. `accumlint run` sees
    a window that drew as many batches as others, and applies fewer with the full divisor.

    See: [gradient accumulation in the AMP examples][amp], and ACC207, for the scaler that such a guard passes over.
    """

    severity = Severity.WARNING
    needs_followed = ("optimizer",)
    symptom = Symptom.SKIPPED
    observed = Observed.SKIPPED
    exceptional = True

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        for skip in run.of(Skip):
            step = next((e for e in run.of(Step) if e.index > skip.index), None)
            if step is None or is_after_the_epoch(trace.program, skip, step):
                continue
            window = next(w for w in run.windows if w.step is step)
            usual = usual_size(run, window)
            lost = wiped_by(run, skip, step, usual)
            size, steps = len(window.microbatches), f"`{step.subject}.step()` applies"
            if lost and usual > 1:
                does = f"clears the {lost} micro-batch{'es' if lost > 1 else ''} before it, and the rest of the window "
                does += "goes on with the full divisor"
            elif usual > 1 and size > usual and not run.between(Clear, skip.index, step.index):
                # What is cleared before the step came in later.
                does = f"skips the boundary without clearing: {steps} {size} micro-batches instead of {usual}"
            elif shortened(trace.program, skip, window, usual):
                does = f"leaves a micro-batch out of the window: {steps} {usual - 1}, each still divided by {usual}"
            else:
                continue
            sure = Confidence.LIKELY
            yield self.at(skip, f"the guard `{skip.guard}` {does}", confidence=sure, window=window)

    def check_program(self, program: Program) -> Iterator[Finding]:
        # The loop around a Trainer's step is the framework's own.
        for function in program.methods_of("Trainer", "training_step"):
            for attempt in (n for n in walk(function.body) if isinstance(n, Try)):
                trains = calls(attempt.body, frozenset({"backward", "training_step"}))
                for caught, _, body in attempt.handlers if trains else ():
                    clears = calls(body, CLEARS)
                    if clears and not any(isinstance(n, Raise) for n in body):
                        yield self.at(
                            clears[0],
                            f"`{caught}` in one micro-batch clears those before it, and the Trainer steps at the "
                            "end of the window (if it accumulates)",
                            confidence=Confidence.LIKELY,
                        )
                        break


def calls(body: tuple[Stmt, ...], names: frozenset[str]) -> list[Call]:
    """The calls of methods by their last name in some statements."""
    found = [n for n in walk(body) if isinstance(n, Call) and isinstance(n.func, Attr)]
    return [n for n in found if called(n) in names]


def is_after_the_epoch(program: Program, skip: Skip, step: Step) -> bool:
    """True for a condition outside the loop that steps: it decides on a validation, not on a micro-batch."""
    loop = program.loop_around(step.node)
    around = list(program.above(skip.node))
    return loop is not None and loop not in around and program.loop_around(loop) in around


def wiped_by(run: Run, skip: Skip, step: Step, usual: int) -> int:
    """How many micro-batches the guard wipes in the middle of a window; 0 at its end."""
    following = run.events[skip.index + 1 : step.index]
    before = [e for e in following if isinstance(e, Clear | Backward)]
    if not before or not isinstance(before[0], Clear):
        return 0
    goes_on = any(isinstance(e, Backward) for e in before)
    own = len({b.microbatch for b in before if isinstance(b, Backward)})
    wiped = {c.microbatch for c in before[0].wiped}
    # What follows a whole window may be a partial one.
    return len(wiped) if goes_on and own < usual and len(wiped) < usual else 0


def shortened(program: Program, skip: Skip, window: Window, usual: int) -> bool:
    """True where a loop over a window's micro-batches leaves one out, and divides the others by the usual size.

    Where the loop steps as well, it is the boundary that the guard may jump over.
    """
    loop = program.loop_around(skip.node)
    if loop in list(program.above(window.step.node)) or len(window.microbatches) != usual - 1:
        return False
    inside = window.between[0].index < skip.index < window.step.index
    return inside and {c.weight for c in window.contributions} == {Fraction(1, usual)}


def usual_size(run: Run, window: Window) -> int:
    """How many micro-batches the optimizer's other windows have; what was asked for, where the run has no other."""
    others = (w for w in run.windows_of(window.step.optimizer) if w.step is not window.step)
    sizes = [len(w.microbatches) for w in others]
    asked = run.literal or (run.steps if run.asked and not run.guessed else 0)
    return max(sizes, key=lambda size: (sizes.count(size), size == asked), default=asked)
