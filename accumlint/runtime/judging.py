"""Asks every question about what the processes of a run noted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accumlint.common.frozen import frozen
from accumlint.common.observed import Observed
from accumlint.runtime import of_ranks, of_scaling, of_size, of_updates, of_windows
from accumlint.runtime.answers import Answer, every
from accumlint.runtime.ledger import Story, stories
from accumlint.runtime.records import Record
from accumlint.runtime.windows import Windows, windows


@frozen
class Judged:
    """What a run says; `notes` tell what was seen and what was not, a line each."""

    answers: tuple[Answer, ...]
    notes: tuple[str, ...]
    windows: tuple[Windows, ...]

    @property
    def wrong(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.wrong]

    @property
    def updates(self) -> int:
        """The steps of the optimizer that stepped most."""
        return max((len(w.windows) for w in self.windows), default=0)


def judge(records: Sequence[Record]) -> Judged:
    """The answers that the records of all ranks give."""
    if not records:
        return Judged((), (), ())
    found = [windows(story, records) for story in stories(records)]
    found = [w for w in found if w.windows or _is_accumulated(w.story)]
    return Judged(
        tuple(every(_answers(found, records[0]))), tuple(_notes(found, records)), tuple(found)
    )


def _is_accumulated(story: Story) -> bool:
    return not story.steps and bool(story.of("backward"))


# Where one of these is seen, what a step applies is no window, and its size says nothing more.
_ROOTS = {
    Observed.NEVER_CLEARED, Observed.CLEARED_INSIDE, Observed.CLEARED_BEFORE_STEP, Observed.STEPPED_EACH_TIME,
    Observed.UNSYNCED, Observed.FLAG_LATE, Observed.BYPASSED, Observed.UNWRAPPED, Observed.SHARDS_UNSYNCED,
    Observed.UNSCALED_EARLY, Observed.UPDATE_MISPLACED, Observed.STEPPED_SCALED, Observed.KEPT_AFTER_SKIP,
    Observed.OVERFLOW_UNHEARD, Observed.ACCUMULATE_UNUSED, Observed.UNPREPARED, Observed.CLIPPED_SCALED,
}  # fmt: skip


def _answers(found: Sequence[Windows], first: Record) -> Iterator[Answer]:
    # Where the scaler does not hear of an overflow, it may refuse to unscale the next window.
    refused = [*of_scaling.unheard(first)] or [*of_scaling.raised(first)]
    yield from refused
    for one in found:
        roots = {answer.observed for answer in refused} & _ROOTS
        for part in (of_ranks.answers, of_windows.lives, of_scaling.answers, of_windows.answers):
            if part is of_windows.answers and roots:
                continue
            for answer in part(one):
                yield answer
                roots |= {answer.observed} & _ROOTS if answer.wrong else set()
        if not roots:
            yield from of_size.answers(one)
            yield from of_size.weights(one)
        yield from of_updates.answers(one)


def _notes(found: Sequence[Windows], records: Sequence[Record]) -> Iterator[str]:
    world = records[0].world
    if len(records) < world:
        yield f"{len(records)} of {world} ranks left a record: what ranks do together is not known"
    for one in found:
        name = one.story.name.rpartition(".")[2]
        sizes = [w.size for w in one.windows]
        ranks = len(one.story.ranks)
        many = f"{ranks} ranks" if ranks > 1 else "1 rank"
        yield f"{name}: {len(sizes)} updates of {_ranges(sizes)} micro-batches on {many}"
        if one.story.apart:
            yield f"{name}: the ranks did different things, so that each was judged by itself"
        if one.averages_weights:
            yield f"{name}: the ranks average their weights from time to time, not their gradients"
        yield from (f"{name}: not judged where {why}" for why in one.story.unexplained)
        if one.windows and not any(w.own for w in one.windows):
            yield f"{name}: which micro-batches its steps apply was not seen"
        elif one.steady and not one.weighed:
            yield f"{name}: its losses are none that are known, so that sizes and weights were not judged"
        if not one.story.of("epoch"):
            yield f"{name}: no end of an epoch was seen, so that partial windows were not judged"


def _ranges(sizes: Sequence[int]) -> str:
    """The sizes of windows, each once."""
    return ", ".join(map(str, dict.fromkeys(sizes))) or "no"
