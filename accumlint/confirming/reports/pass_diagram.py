"""Converts a measured pass to a timeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from accumlint.confirming.result import Moment, Pass, Update
from accumlint.confirming.symptoms.microbatch_outcomes import Outcome, outcomes, replay, stepped
from accumlint.diagnostics.results.diagram import Bracket, Call, Group, Timeline

_CAPTIONS = {
    Outcome.AGAIN: "again",
    Outcome.LOST: "lost",
    Outcome.LEFT: "left",
    Outcome.SKIPPED: "skipped",
}
_KINDS = {
    Outcome.APPLIED: "applied",
    Outcome.AGAIN: "again",
    Outcome.LOST: "lost",
    Outcome.LEFT: "lost",
    Outcome.SKIPPED: "open",
    Outcome.OPEN: "open",
}


def timeline(done: Pass, flagged: int = 0, code: str = "") -> Timeline:
    """The timeline of a pass; `flagged` is the line of the finding `code` (0 for none)."""
    found = outcomes(done)
    replayed = replay(done)
    applied: set[int] = set()
    before: tuple[int, ...] = ()
    calls: list[Call] = []
    for index, moment in enumerate(done.moments):
        after = replayed.after[index] if replayed else ()
        if moment.kind == "step":
            applied.update(before)
        wiped = [m for m in before if m not in applied] if moment.kind == "clear" else []
        before = after
        if moment.kind != "epoch":
            wipes = tuple(m for m in wiped if found.get(m) is Outcome.LOST)
            codes = (code,) if flagged and moment.line == flagged else ()
            calls.append(_call(moment, len(after), wipes, codes))
    ends = {moment.microbatch for moment in done.moments if moment.kind == "epoch"}
    numbers = list(dict.fromkeys(moment.microbatch for moment in done.moments)) or sorted(found)
    groups = [_group(number, found.get(number), number in ends) for number in numbers]
    return Timeline(
        tuple(groups),
        tuple(calls),
        tuple(_brackets(done, numbers)),
        size=done.steps if replayed else 0,
        raised=done.raised.kind if done.raised else "",
    )


def _call(moment: Moment, count: int, wipes: tuple[int, ...], codes: tuple[str, ...]) -> Call:
    where = str(moment.line) if moment.line else ""
    return Call(
        moment.kind, moment.kind, moment.microbatch, where, moment.line,
        pending=count, loses=wipes, codes=codes,
    )  # fmt: skip


def _group(number: int, outcome: Outcome | None, ends: bool) -> Group:
    if outcome is None:
        return Group(number, number, ends=ends)
    return Group(number, number, outcome.value, _KINDS[outcome], _CAPTIONS.get(outcome, ""), ends)


def _brackets(done: Pass, numbers: Sequence[int]) -> Iterator[Bracket]:
    """Brackets over the micro-batches of each update, and over those without one."""
    found, steps = outcomes(done), stepped(done)
    rows = list(dict.fromkeys(update.optimizer for update in done.updates))
    for update in done.updates:
        words = _words(update, found, steps)
        row = rows.index(update.optimizer)
        yield Bracket(update.microbatches, words, len(words) > 2, row)
    covered = {number for update in done.updates for number in update.microbatches}
    bare = [number for number in numbers if number not in covered and number > 0]
    for outcome, group in groupby(bare, key=found.get):
        if outcome is Outcome.SKIPPED:
            yield Bracket(tuple(group), ("step skipped", "skipped"))
        elif outcome is Outcome.OPEN and done.raised:
            yield Bracket(tuple(group), (done.raised.kind, "raised"), True)
        elif outcome is not None:
            yield Bracket(tuple(group), ("no update", "none"), True)


_APPLIED = (Outcome.APPLIED, Outcome.AGAIN)


def _words(
    update: Update, found: dict[int, Outcome], steps: dict[int, tuple[int, ...]]
) -> tuple[str, ...]:
    """The captions of an update, the longest first."""
    name, number = f"update {update.number}", str(update.number)
    members = update.microbatches
    applied = sum(found.get(m) in _APPLIED for m in members)
    again = len(set(steps.get(update.number, ())).difference(members))
    if applied < len(members):
        part = f"{applied} of {len(members)}"
        return f"{name} applies {part}", f"{name}: {part}", part, number
    if again:
        part = f"{again} again"
        return f"{name} applies {applied}, and {part}", f"{name}: {part}", part, number
    return name, number
