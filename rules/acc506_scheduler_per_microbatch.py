"""The learning rate moves on every micro-batch."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.rule import (
    Applicability,
    Claim,
    Confidence,
    Finding,
    Observed,
    Rule,
    Severity,
)
from accumlint.tracing.trace import Schedule, Trace

from ._calls import once_per_update
from ._counts import counted
from ._schedules import fits_microbatches, lengths, with_settings


class SchedulerPerMicrobatch(Rule):
    """The scheduler moves on every micro-batch, while its length counts updates.

    The optimizer uses every N-th of its values. Warm-up is over after 1/N of its time, a decay has
    reached its end after 1/N of the training, a cosine comes back up and oscillates, and
    `OneCycleLR` raises when its steps are used up.

    Bad:

    ```python
    import torch.nn.functional as F
    from torch.optim.lr_scheduler import CosineAnnealingLR


    def train(model, loader, optimizer, accumulation_steps):
        updates = len(loader) // accumulation_steps
        scheduler = CosineAnnealingLR(optimizer, T_max=updates)
        batches = iter(loader)
        for _ in range(updates):
            optimizer.zero_grad()
            for _ in range(accumulation_steps):
                inputs, targets = next(batches)
                loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
                loss.backward()
                scheduler.step()  # error: ACC506
            optimizer.step()
    ```

    Good:

    ```diff
                 loss.backward()
    -            scheduler.step()
             optimizer.step()
    +        scheduler.step()
    ```

    When it stays silent: when the scheduler's length is counted in micro-batches too (`T_max=len(loader) * epochs`):
    then the schedule fits its steps. Under Accelerate, where a prepared scheduler moves with the optimizer only (one
    that was never prepared is reported), and for schedulers that move once per epoch or are given their position
    (`scheduler.step(cur_step=i)`). When the length cannot be read, the finding is likely, not certain.

    When the fix is not offered: when the call stands among others that belong to the micro-batch.

    Measured (N = 4): a warm-up over 8 updates to .5 gives .227, .445, .5, .5 at the first four of
    them, where it should climb from .0625 over .117; a cosine over 8 gives .346, .019, .154, .481.
    The parameters are off by .87 of the distance trained.

    See: [how to adjust the learning rate][optim], accelerate#963 and #1382.
    """

    severity = Severity.WARNING
    observed = Observed.SCHEDULED_EACH_TIME
    claim = Claim.SCHEDULE
    fix = Applicability.SAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        for window in run.accumulating_windows():
            free = [e for e in window.of(Schedule) if not (e.gated or e.per_epoch or e.placed)]
            for move in {e.scheduler: e for e in free}.values():
                moves = len({e.microbatch for e in free if e.scheduler is move.scheduler})
                if moves >= window.backward_count() and not fits_microbatches(
                    trace.program, move.scheduler, window
                ):
                    given = lengths(trace.program, move.scheduler)
                    certain = counted(trace.program, *with_settings(trace.program, given)).divided
                    length_is = "its length counts" if certain else "its length is taken to count"
                    yield self.at(
                        move,
                        f"`{move.subject}.step()` runs on every micro-batch, while {length_is} updates",
                        confidence=Confidence.CERTAIN if certain else Confidence.LIKELY,
                        window=window,
                        fixes=once_per_update(trace, window, move.node, "Move the schedule"),
                    )
