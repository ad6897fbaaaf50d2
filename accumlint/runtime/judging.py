"""Runs all checks on the records of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accumlint.common.frozen import frozen
from accumlint.common.observed import Observed
from accumlint.runtime import rank_checks, scaling_checks, size_checks, update_checks, window_checks
from accumlint.runtime.answers import Answer, distinct
from accumlint.runtime.ledger import histories
from accumlint.runtime.records import Record
from accumlint.runtime.windows import Windows, windows


@frozen
class Judged:
    """The answers of a run; `notes` describe the observed windows and what was not judged, a line each."""

    answers: tuple[Answer, ...]
    notes: tuple[str, ...]
    windows: tuple[Windows, ...]

    @property
    def wrong(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.wrong]

    @property
    def updates(self) -> int:
        """The number of steps of the optimizer with most."""
        return max((len(w.windows) for w in self.windows), default=0)


def judge(records: Sequence[Record], since: int = 0) -> Judged:
    """The answers from the records of all ranks; sizes are those of the windows after `since` backwards."""
    if not records:
        return Judged((), (), ())
    found = [windows(history, records) for history in histories(records)]
    found = [w for w in found if w.windows or (not w.history.steps and w.history.of("backward"))]
    return Judged(
        tuple(distinct(_answers(found, records[0], since))),
        tuple(_notes(found, records)),
        tuple(found),
    )


# After one of these defects, a step applies no window, and its size means nothing.
_ROOTS = {
    Observed.NEVER_CLEARED, Observed.CLEARED_INSIDE, Observed.CLEARED_BEFORE_STEP, Observed.STEPPED_EACH_TIME,
    Observed.UNSYNCED, Observed.FLAG_LATE, Observed.BYPASSED, Observed.UNWRAPPED, Observed.SHARDS_UNSYNCED,
    Observed.UNSCALED_EARLY, Observed.UPDATE_MISPLACED, Observed.STEPPED_SCALED, Observed.KEPT_AFTER_SKIP,
    Observed.OVERFLOW_UNHEARD, Observed.ACCUMULATE_UNUSED, Observed.UNPREPARED, Observed.CLIPPED_SCALED,
}  # fmt: skip


def _answers(found: Sequence[Windows], first: Record, since: int) -> Iterator[Answer]:
    # A scaler that misses an overflow may refuse to unscale the next window.
    refused = [*scaling_checks.unheard(first)] or [*scaling_checks.raised(first)]
    yield from refused
    for one in found:
        roots = {answer.observed for answer in refused} & _ROOTS
        for part in (
            rank_checks.answers,
            window_checks.lifetimes,
            scaling_checks.answers,
            window_checks.answers,
        ):
            if part is window_checks.answers and roots:
                continue
            for answer in part(one):
                yield answer
                roots |= {answer.observed} & _ROOTS if answer.wrong else set()
        if not roots:
            latest = one.since(since) if since else one
            yield from size_checks.answers(latest)
            yield from size_checks.weights(latest)
        yield from update_checks.answers(one)


def _notes(found: Sequence[Windows], records: Sequence[Record]) -> Iterator[str]:
    world = records[0].world
    if len(records) < world:
        yield f"{len(records)} of {world} ranks left a record: what ranks do together is not known"
    for one in found:
        name = one.history.name.rpartition(".")[2]
        sizes = [w.size for w in one.windows]
        ranks = len(one.history.ranks)
        many = f"{ranks} ranks" if ranks > 1 else "1 rank"
        yield f"{name}: {len(sizes)} updates of {_ranges(sizes)} micro-batches on {many}"
        if one.history.diverged:
            yield f"{name}: the ranks did different things, so that each was judged by itself"
        if one.averages_weights:
            yield f"{name}: the ranks average their weights from time to time, not their gradients"
        yield from (f"{name}: not judged where {why}" for why in one.history.unexplained)
        if one.windows and not any(w.backwards for w in one.windows):
            yield f"{name}: which micro-batches its steps apply was not seen"
        elif one.steady and not one.weighed:
            yield f"{name}: its losses are none that are known, so that sizes and weights were not judged"
        if not one.history.of("epoch"):
            yield f"{name}: no end of an epoch was seen, so that partial windows were not judged"


def _ranges(sizes: Sequence[int]) -> str:
    """The distinct sizes of windows."""
    return ", ".join(map(str, dict.fromkeys(sizes))) or "no"
