"""A measured pass as a timeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from accumlint.confirming.result import Moment, Pass, Update
from accumlint.confirming.symptoms.microbatch_outcomes import Fate, fates, holding, stepped
from accumlint.diagnostics.results.diagram import Bracket, Call, Group, Timeline

_CAPTIONS = {Fate.AGAIN: "again", Fate.LOST: "lost", Fate.LEFT: "left", Fate.SKIPPED: "skipped"}
_KINDS = {
    Fate.APPLIED: "applied",
    Fate.AGAIN: "again",
    Fate.LOST: "lost",
    Fate.LEFT: "lost",
    Fate.SKIPPED: "open",
    Fate.OPEN: "open",
}


def timeline(done: Pass, flagged: int = 0, code: str = "") -> Timeline:
    """What a pass did; `flagged` is the line where `code` found something (0 for none)."""
    told = fates(done)
    replayed = holding(done)
    applied: set[int] = set()
    before: tuple[int, ...] = ()
    calls: list[Call] = []
    for index, moment in enumerate(done.moments):
        after = replayed.after[index] if replayed else ()
        if moment.kind == "step":
            applied.update(before)
        gone = [m for m in before if m not in applied] if moment.kind == "clear" else []
        before = after
        if moment.kind != "epoch":
            wipes = tuple(m for m in gone if told.get(m) is Fate.LOST)
            codes = (code,) if flagged and moment.line == flagged else ()
            calls.append(_call(moment, len(after), wipes, codes))
    ends = {moment.microbatch for moment in done.moments if moment.kind == "epoch"}
    numbers = list(dict.fromkeys(moment.microbatch for moment in done.moments)) or sorted(told)
    groups = [_group(number, told.get(number), number in ends) for number in numbers]
    return Timeline(
        tuple(groups),
        tuple(calls),
        tuple(_brackets(done, numbers)),
        size=done.steps if replayed else 0,
        raised=done.raised.kind if done.raised else "",
    )


def _call(moment: Moment, held: int, wipes: tuple[int, ...], codes: tuple[str, ...]) -> Call:
    where = str(moment.line) if moment.line else ""
    return Call(
        moment.kind, moment.kind, moment.microbatch, where, moment.line,
        held=held, loses=wipes, codes=codes,
    )  # fmt: skip


def _group(number: int, fate: Fate | None, ends: bool) -> Group:
    if fate is None:
        return Group(number, number, ends=ends)
    return Group(number, number, fate.value, _KINDS[fate], _CAPTIONS.get(fate, ""), ends)


def _brackets(done: Pass, numbers: Sequence[int]) -> Iterator[Bracket]:
    """Each update over its micro-batches, and those over which there is none."""
    told, steps = fates(done), stepped(done)
    rows = list(dict.fromkeys(update.optimizer for update in done.updates))
    for update in done.updates:
        words = _words(update, told, steps)
        row = rows.index(update.optimizer)
        yield Bracket(update.microbatches, words, len(words) > 2, row)
    covered = {number for update in done.updates for number in update.microbatches}
    bare = [number for number in numbers if number not in covered and number > 0]
    for fate, group in groupby(bare, key=told.get):
        if fate is Fate.SKIPPED:
            yield Bracket(tuple(group), ("step skipped", "skipped"))
        elif fate is Fate.OPEN and done.raised:
            yield Bracket(tuple(group), (done.raised.kind, "raised"), True)
        elif fate is not None:
            yield Bracket(tuple(group), ("no update", "none"), True)


_APPLIED = (Fate.APPLIED, Fate.AGAIN)


def _words(
    update: Update, told: dict[int, Fate], steps: dict[int, tuple[int, ...]]
) -> tuple[str, ...]:
    """What to write over an update, the longest first."""
    name, number = f"update {update.number}", str(update.number)
    own = update.microbatches
    applied = sum(told.get(m) in _APPLIED for m in own)
    again = len(set(steps.get(update.number, ())).difference(own))
    if applied < len(own):
        part = f"{applied} of {len(own)}"
        return f"{name} applies {part}", f"{name}: {part}", part, number
    if again:
        part = f"{again} again"
        return f"{name} applies {applied}, and {part}", f"{name}: {part}", part, number
    return name, number
