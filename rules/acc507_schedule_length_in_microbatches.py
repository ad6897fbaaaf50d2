"""The learning rate moves once per update, and its length counts micro-batches."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.reading.ir import Call, Expr, For, called, dotted, render, walk
from accumlint.reading.program import Program
from accumlint.rule import Claim, Confidence, Finding, Rule, Severity
from accumlint.tracing.trace import Schedule, Trace, TrainingObject, Window

from ._boundaries import loop_leading_to
from ._counts import counted
from ._schedules import (
    bounds_microbatches,
    counts_before_prepare,
    every_argument,
    multiplies_the_end,
)


class ScheduleLengthInMicrobatches(Rule):
    """The scheduler moves once per update, while the length it was given counts micro-batches.

    A schedule that is N times too long never gets where it is going: a warm-up takes N times its
    share of the training, a cosine or linear decay ends at 1 - 1/N of the way, with a learning rate
    that is still high. Short runs can end inside the warm-up.

    Bad:

    ```python
    import torch.nn.functional as F
    from torch.optim.lr_scheduler import CosineAnnealingLR


    def train(model, loader, optimizer, accumulation_steps, epochs):
        scheduler = CosineAnnealingLR(optimizer, T_max=len(loader) * epochs)  # error: ACC507
        for _ in range(epochs):
            batches = iter(loader)
            for _ in range(len(loader) // accumulation_steps):
                optimizer.zero_grad()
                for _ in range(accumulation_steps):
                    inputs, targets = next(batches)
                    loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
                    loss.backward()
                optimizer.step()
                scheduler.step()
    ```

    Good:

    ```diff
     def train(model, loader, optimizer, accumulation_steps, epochs):
    -    scheduler = CosineAnnealingLR(optimizer, T_max=len(loader) * epochs)
    +    updates = len(loader) // accumulation_steps
    +    scheduler = CosineAnnealingLR(optimizer, T_max=updates * epochs)
         for _ in range(epochs):
             batches = iter(loader)
    -        for _ in range(len(loader) // accumulation_steps):
    +        for _ in range(updates):
                 optimizer.zero_grad()
    ```

    When it stays silent: when anything is divided on the way to the length, when a function works it out, when the
    scheduler moves on every micro-batch (then the two agree) or once per epoch. Under Accelerate a prepared scheduler
    moves once for each process at every update, so that the length of one process's share fits by chance where there
    are as many processes as accumulation steps, while that of a loader before `prepare` never fits. Whether the rate
    was meant to end above zero, it cannot be known: the finding is likely where the number of updates at which the loop
    ends is multiplied by the steps, and only possible otherwise. With `step_scheduler_with_optimizer=False` a scheduler
    moves on every call. Nothing is said where the loop makes an update of each micro-batch.

    When the fix is not offered: without `--unsafe-fixes`. The length is wrong, but the learning rate was tuned with it.

    Measured: with N = 4 and the schedule 1/(1 + t), a schedule that moves N times as fast as the updates leaves .125,
    .0625 where .5, .25 belong; one that is N times too long errs the other way by the same factor. Under Accelerate
    with two processes a prepared scheduler moves twice per update (.5, .1667). A linear schedule as long as the loader
    was before `prepare` still has .75 of its learning rate at the end, with one process and with four.

    See: [how to adjust the learning rate][optim]; `scheduler.py` in Accelerate.
    """

    severity = Severity.WARNING
    claim = Claim.SCHEDULE
    unmeasured = "how long a schedule is meant to be is not measured"

    def check(self, trace: Trace) -> Iterator[Finding]:
        moves: dict[TrainingObject, list[Schedule]] = {}
        for move in trace.main.of(Schedule):
            moves.setdefault(move.scheduler, []).append(move)
        for window in trace.main.accumulating_windows():
            steps = len(trace.main.windows_of(window.step.optimizer))
            # Of one batch each, there are as many windows as the loader has batches.
            whole = is_of_one_batch(trace.program, window)
            for scheduler, events in moves.items() if not whole else ():
                if len(events) == steps:
                    for argument in every_argument(trace.program, scheduler):
                        if counts_microbatches(trace.program, argument, window):
                            yield self.of_length(trace.program, window, events, argument)

    def of_length(
        self, program: Program, window: Window, moves: list[Schedule], length: Expr
    ) -> Finding:
        unless, sure = "", Confidence.CERTAIN
        if any(move.gated for move in moves):
            if not counts_before_prepare(program, length):
                unless = " (unless as many processes as accumulation steps move it)"
            known = multiplies_the_end(program, length)
            sure = Confidence.LIKELY if known else Confidence.POSSIBLE
        return self.at(
            length,
            f"`{render(length)}` counts micro-batches, and "
            f"`{moves[0].subject}.step()` runs once per update{unless}",
            confidence=sure,
            window=window,
        )


def counts_microbatches(program: Program, length: Expr, window: Window) -> bool:
    """True for a length that counts micro-batches by what it is made of, or by how far the loop counts."""
    return counted(program, length).is_microbatches or bounds_microbatches(program, length, window)


def is_of_one_batch(program: Program, window: Window) -> bool:
    """True where the loop over the loader steps, and another one goes backward on the pieces of its batch."""
    stepping = loop_leading_to(program, window.step.node)
    pieces = loop_leading_to(program, window.backwards[-1].node)
    if not isinstance(stepping, For) or pieces is None or pieces is stepping:
        return False
    taken = stepping.iterable
    while isinstance(taken, Call) and taken.args and called(taken) in ("enumerate", "tqdm"):
        taken = taken.args[0].value
    name = dotted(taken).rpartition(".")[2]
    return program.roles.of(name) == "loader" and "next" not in map(called, walk(pieces.body))
