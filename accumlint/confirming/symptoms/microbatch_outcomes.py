"""Determines the outcome of each micro-batch: applied once, again, or never."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum

from accumlint.common.frozen import frozen
from accumlint.confirming.finding_verdicts import ERROR_THRESHOLD
from accumlint.confirming.result import Pass, Regime
from accumlint.diagnostics.results.diagram import ranges


class Outcome(str, Enum):
    """What happened to a micro-batch's gradient."""

    APPLIED = "applied"
    AGAIN = "applied again"
    LOST = "lost"
    LEFT = "never applied"
    OPEN = "not applied before the exception"
    SKIPPED = "skipped"


@frozen
class Replay:
    """The contents of `.grad` after each moment, and the micro-batches that each step applied."""

    after: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[int, ...], ...]
    wiped: frozenset[int]
    skipped: frozenset[int]


def replay(done: Pass) -> Replay | None:
    """The moments of a pass, replayed.

    None where several optimizers hide whose gradients a clear clears, and where the moments do not explain the
    measurement, so that a clear may be missing.
    """
    if len({update.optimizer for update in done.updates}) > 1 or not done.moments:
        return None
    present: list[int] = []
    after: list[tuple[int, ...]] = []
    steps: list[tuple[int, ...]] = []
    wiped: set[int] = set()
    skipped: set[int] = set()
    judged = False
    for moment in done.moments:
        if moment.kind == "backward" and moment.microbatch not in present:
            present.append(moment.microbatch)
            judged = False
        elif moment.kind == "step":
            steps.append(tuple(present))
        elif moment.kind == "update":
            judged = True
        elif moment.kind == "clear":
            pending = set(present).difference(*steps)
            # A GradScaler skips a step when the gradient is not finite.
            on_purpose = judged and done.regime is Regime.OVERFLOW
            (skipped if on_purpose else wiped).update(pending)
            present = []
        after.append(tuple(present))
    if not _explained(done, steps):
        return None
    return Replay(tuple(after), tuple(steps), frozenset(wiped), frozenset(skipped))


def _explained(done: Pass, steps: Sequence[Sequence[int]]) -> bool:
    """Whether the replay agrees with the measurement: updates are wrong exactly where they hold other micro-batches."""
    if len(steps) != len(done.updates):
        return False
    has_clears = any(moment.kind == "clear" for moment in done.moments)
    for update, step in zip(done.updates, steps, strict=True):
        as_measured = update.error <= ERROR_THRESHOLD
        as_replayed = set(step) == set(update.microbatches)
        if as_measured and not as_replayed:
            return False
        if as_replayed and not as_measured and not has_clears:
            return False
    return True


def stepped(done: Pass) -> dict[int, tuple[int, ...]]:
    """The micro-batches in `.grad` at each update, by its number; empty where unknown."""
    replayed = replay(done)
    if replayed is None:
        return {}
    return {update.number: step for update, step in zip(done.updates, replayed.steps, strict=True)}


def outcomes(done: Pass) -> dict[int, Outcome]:
    """The outcome of every micro-batch of a pass, by its number."""
    replayed = replay(done)
    applied = _applied(done, replayed)
    weightless = {
        number
        for update in done.updates
        for number, weight in zip(update.microbatches, update.weights, strict=False)
        if weight == 0
    }
    lost = (replayed.wiped if replayed else frozenset[int]()) | weightless
    skipped = replayed.skipped if replayed else frozenset[int]()
    backwards = {moment.microbatch for moment in done.moments if moment.kind == "backward"}
    numbers = backwards.union(done.left, *(update.microbatches for update in done.updates))

    def outcome(number: int) -> Outcome:
        if number in lost:
            return Outcome.LOST
        if number in skipped:
            return Outcome.SKIPPED
        # The rest of an epoch may be applied with the next window.
        if not applied[number] or (replayed is None and number in done.left):
            return Outcome.OPEN if done.raised else Outcome.LEFT
        return Outcome.AGAIN if applied[number] > 1 else Outcome.APPLIED

    return {number: outcome(number) for number in sorted(numbers)}


def _applied(done: Pass, replayed: Replay | None) -> Mapping[int, int]:
    """The number of applications of each micro-batch; with several optimizers, the largest one."""
    if replayed:
        return Counter(number for step in replayed.steps for number in step)
    each = Counter((u.optimizer, number) for u in done.updates for number in u.microbatches)
    most: Counter[int] = Counter()
    for (_, number), times in each.items():
        most[number] = max(most[number], times)
    return most


def outcome_sentence(done: Pass) -> str:
    """The micro-batches that were not applied exactly once, in one sentence; "" for none."""
    found = outcomes(done)
    parts = [
        f"{_named(numbers)} {predicate}"
        for outcome, predicate in (
            (Outcome.LOST, "cleared before any step"),
            (Outcome.LEFT, "never applied"),
            (Outcome.AGAIN, "applied more than once"),
            (Outcome.SKIPPED, "skipped, since their gradient is not finite"),
        )
        if (numbers := [number for number, one in found.items() if one is outcome])
    ]
    return f"Of {len(found)} micro-batches, {'; '.join(parts)}." if parts else ""


def _named(numbers: Sequence[int]) -> str:
    return f"{ranges(numbers)} {'is' if len(numbers) == 1 else 'are'}"
