"""What became of each micro-batch: applied once, again, or never."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum

from accumlint.common.frozen import frozen
from accumlint.confirming.finding_verdicts import TELLING
from accumlint.confirming.result import Pass, Regime
from accumlint.diagnostics.results.diagram import ranges


class Fate(str, Enum):
    """The end of a micro-batch's gradient."""

    APPLIED = "applied"
    AGAIN = "applied again"
    LOST = "lost"
    LEFT = "never applied"
    OPEN = "not applied before the exception"
    SKIPPED = "skipped"


@frozen
class Holding:
    """What `.grad` holds after each moment, and which micro-batches each step applied."""

    after: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[int, ...], ...]
    wiped: frozenset[int]
    skipped: frozenset[int]


def holding(done: Pass) -> Holding | None:
    """The moments of a pass replayed.

    None where several optimizers make it unknown whose gradients a clear clears, and where the moments do not explain
    what was measured, so that a clear may have gone unseen.
    """
    if len({update.optimizer for update in done.updates}) > 1 or not done.moments:
        return None
    held: list[int] = []
    after: list[tuple[int, ...]] = []
    steps: list[tuple[int, ...]] = []
    wiped: set[int] = set()
    skipped: set[int] = set()
    judged = False
    for moment in done.moments:
        if moment.kind == "backward" and moment.microbatch not in held:
            held.append(moment.microbatch)
            judged = False
        elif moment.kind == "step":
            steps.append(tuple(held))
        elif moment.kind == "update":
            judged = True
        elif moment.kind == "clear":
            pending = set(held).difference(*steps)
            # A GradScaler leaves a step out on purpose when the gradient is not finite.
            on_purpose = judged and done.regime is Regime.OVERFLOW
            (skipped if on_purpose else wiped).update(pending)
            held = []
        after.append(tuple(held))
    if not _explained(done, steps):
        return None
    return Holding(tuple(after), tuple(steps), frozenset(wiped), frozenset(skipped))


def _explained(done: Pass, steps: Sequence[Sequence[int]]) -> bool:
    """Whether updates that hold other micro-batches than their own are wrong and, where nothing clears, no others."""
    if len(steps) != len(done.updates):
        return False
    clears = any(moment.kind == "clear" for moment in done.moments)
    for update, step in zip(done.updates, steps, strict=True):
        as_measured = update.error <= TELLING
        as_replayed = set(step) == set(update.microbatches)
        if as_measured and not as_replayed:
            return False
        if as_replayed and not as_measured and not clears:
            return False
    return True


def stepped(done: Pass) -> dict[int, tuple[int, ...]]:
    """The micro-batches that `.grad` held at each update, by its number; empty where that is not known."""
    told = holding(done)
    if told is None:
        return {}
    return {update.number: step for update, step in zip(done.updates, told.steps, strict=True)}


def fates(done: Pass) -> dict[int, Fate]:
    """The fate of every micro-batch of a pass, by its number."""
    told = holding(done)
    applied = _applied(done, told)
    weightless = {
        number
        for update in done.updates
        for number, weight in zip(update.microbatches, update.weights, strict=False)
        if weight == 0
    }
    lost = (told.wiped if told else frozenset[int]()) | weightless
    skipped = told.skipped if told else frozenset[int]()
    backwards = {moment.microbatch for moment in done.moments if moment.kind == "backward"}
    numbers = backwards.union(done.left, *(update.microbatches for update in done.updates))

    def fate(number: int) -> Fate:
        if number in lost:
            return Fate.LOST
        if number in skipped:
            return Fate.SKIPPED
        # What an epoch leaves may well be applied with a window of the next.
        if not applied[number] or (told is None and number in done.left):
            return Fate.OPEN if done.raised else Fate.LEFT
        return Fate.AGAIN if applied[number] > 1 else Fate.APPLIED

    return {number: fate(number) for number in sorted(numbers)}


def _applied(done: Pass, told: Holding | None) -> Mapping[int, int]:
    """How often each micro-batch was applied; with several optimizers, by the one that did so most often."""
    if told:
        return Counter(number for step in told.steps for number in step)
    each = Counter((u.optimizer, number) for u in done.updates for number in u.microbatches)
    most: Counter[int] = Counter()
    for (_, number), times in each.items():
        most[number] = max(most[number], times)
    return most


def story(done: Pass) -> str:
    """The micro-batches that were not applied exactly once, in one sentence; "" when all were."""
    told = fates(done)
    parts = [
        f"{_named(numbers)} {predicate}"
        for fate, predicate in (
            (Fate.LOST, "cleared before any step"),
            (Fate.LEFT, "never applied"),
            (Fate.AGAIN, "applied more than once"),
            (Fate.SKIPPED, "skipped, since their gradient is not finite"),
        )
        if (numbers := [number for number, its in told.items() if its is fate])
    ]
    return f"Of {len(told)} micro-batches, {'; '.join(parts)}." if parts else ""


def _named(numbers: Sequence[int]) -> str:
    return f"{ranges(numbers)} {'is' if len(numbers) == 1 else 'are'}"
