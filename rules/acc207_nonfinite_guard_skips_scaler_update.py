"""A guard against NaN leaves the window before `scaler.update`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from accumlint.editing import Before, Insert
from accumlint.reading.ir import If, render
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
    Symptom,
    safe,
)
from accumlint.tracing.trace import (
    Backward,
    Clip,
    Run,
    Skip,
    Trace,
    TrainingObject,
    Unscale,
    Update,
)

from ._calls import receiver_of
from ._scalers import one_sided_updates


class NonfiniteGuardSkipsScalerUpdate(Rule):
    """A guard against a NaN or infinite norm leaves the window before `scaler.update()`.

    An overflow is how a GradScaler learns that its scale is too high: `step` sees it, leaves the update out, and
    `update` halves the scale. A guard that finds the infinite norm first and jumps over both keeps the scale where it
    is, and the next window overflows as well. After `unscale_` it is worse: the optimizer stays marked as unscaled and
    the `unscale_` of the next window raises. With N = 4 and an initial scale that must be halved twice, 30 windows hold
    no update with the guard and 28 without it.

    Bad:

    ```python
    import torch
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps, max_norm):
        scaler = torch.amp.GradScaler("cuda")
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            for _ in range(accumulation_steps):
                images, labels = next(batches)
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = F.cross_entropy(model(images), labels) / accumulation_steps
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            if not torch.isfinite(norm):
                optimizer.zero_grad()
                continue  # error: ACC207
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    ```

    Good:

    ```diff
                 optimizer.zero_grad()
    +            scaler.update()
                 continue
    ```

    The whole guard can go as well, unless it counts or logs: `scaler.step` leaves the update out by itself when
    anything is infinite or NaN.

    When it stays silent: on a guard of the loss before its backward (no scaled gradient exists yet), on guards in
    unscaled training, and when `update()` is reached before the next backward.

    When the fix is not offered: without `unscale_` in the window, since `update` then has no overflow check to read
    and raises; where the update stands under a test, since there may be no scaler; and where the guard
    does not leave the window.

    Measured (N = 4, scale 65536, overflow above 30000, 30 windows): after `unscale_`, RuntimeError "unscale_() has
    already been called on this optimizer since the last update()" in the second window; without `unscale_`, no update
    and the scale still 65536; with `update()` in the guard or without the guard, 28 updates and the scale at 16384.

    See: [LVSM #19][lvsm] and [espnet #2362][espnet], where this ended runs; [`GradScaler.step`][step].

    [lvsm]: https://github.com/Haian-Jin/LVSM/pull/19
    [espnet]: https://github.com/espnet/espnet/pull/2362
    """

    severity = Severity.ERROR
    symptom = Symptom.STUCK
    observed = Observed.OVERFLOW_UNHEARD
    fix = Applicability.SAFE
    claim = Claim.EXCEPTION
    exceptional = True

    def check_program(self, program: Program) -> Iterator[Finding]:
        for guard, update in one_sided_updates(program):
            call = f"{receiver_of(update)}.update()"
            yield self.at(
                guard,
                f"`{call}` runs in one branch of `{render(guard.test)}` only, so the scale stays where it overflowed",
                confidence=Confidence.LIKELY,
                related=[Related(update, "is skipped")],
            )

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        for skip in run.of(Skip):
            scaler = checked_scaler(run, skip)
            if scaler is not None and is_due(run, skip) and goes_on_without_update(run, skip):
                yield self.at(
                    skip,
                    f"`{skip.jump}` under `{skip.guard}` skips `{scaler.text}.update()`, so the "
                    "scale stays where it overflowed",
                    fixes=[
                        safe(f"Call `{call}` before leaving", Insert(call, Before(skip.node)))
                        for call in update_calls(trace, skip, scaler)
                    ],
                )


def update_calls(trace: Trace, skip: Skip, scaler: TrainingObject) -> set[str]:
    """The scaler's update as it is written elsewhere; none without `unscale_`, which looks for the overflow.

    None either where the update stands under a test that the guard does not: there may be no scaler.
    """
    run, program = trace.main, trace.program
    passed = run.events[: skip.index]
    if not any(isinstance(e, Unscale) and e.microbatch == skip.microbatch for e in passed):
        return set()
    updates = [u for u in run.of(Update) if u.scaler is scaler and receiver_of(u.node)]
    tests = {n for u in updates for n in program.above(u.node) if isinstance(n, If)}
    fits = tests <= {*program.above(skip.node)}
    return {f"{u.subject}.update()" for u in updates if fits}


def checked_scaler(run: Run, skip: Skip) -> TrainingObject | None:
    """The scaler whose gradients were unscaled or measured in the iteration that the guard leaves, and not updated."""
    begun = max((u.index + 1 for u in run.of(Update) if u.index < skip.index), default=0)
    passed = [e for e in run.events[begun : skip.index] if e.microbatch == skip.microbatch]
    if not any(isinstance(e, Unscale | Clip) for e in passed):
        return None
    return next((e.scaler for e in passed if isinstance(e, Backward) and e.scaler), None)


def is_due(run: Run, skip: Skip) -> bool:
    """True where an update would have come: as many backwards have gone by as a full window has."""
    updates = [-1, *(u.index for u in run.of(Update))]
    if len(updates) == 1:
        # There is no update on this path that could be passed over.
        return False
    backwards = [b.index for b in run.of(Backward)]
    usual = [
        sum(start < b < end for b in backwards)
        for start, end in pairwise(updates)
        if not start < skip.index < end
    ]
    begun = max(u for u in updates if u < skip.index)
    return sum(begun < b < skip.index for b in backwards) >= max(usual, default=1)


def goes_on_without_update(run: Run, skip: Skip) -> bool:
    """True when the next backward, or the data's end after a `continue`, comes before the next update."""
    following = (e for e in run.events[skip.index + 1 :] if isinstance(e, Backward | Update))
    first = next(following, None)
    return isinstance(first, Backward) or (first is None and skip.jump == "continue")
