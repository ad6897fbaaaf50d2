"""The figures of a pass as columns of text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, zip_longest

from accumlint.common.frozen import frozen
from accumlint.confirming.finding_verdicts import ERROR_THRESHOLD
from accumlint.confirming.result import Pass, Update
from accumlint.confirming.symptoms.microbatch_outcomes import Outcome, outcomes, stepped
from accumlint.diagnostics.results.diagram import ranges

# The rounding error of an exact zero or one.
_ROUNDING = 1e-9


@frozen
class Column:
    """A cell for each update; `arm` is "" where both arms agree; not `informative` if as in a correct loop."""

    name: str
    cells: tuple[str, ...]
    words: bool = False
    informative: bool = True
    arm: str = ""


def columns(done: Pass, everything: bool = False) -> list[Column]:
    """The informative columns of a pass, or all of them."""
    return [column for column in _columns(done) if everything or column.informative]


def compared(found: Pass, fixed: Pass, everything: bool = False) -> list[Column]:
    """The columns of two passes side by side; equal ones appear once."""
    pairs = zip(_columns(found), _columns(fixed), strict=True)
    height = max(len(found.updates), len(fixed.updates))
    return [
        column
        for before, after in pairs
        if everything or before.informative or after.informative
        for column in _merged(_filled(before, height), _filled(after, height))
    ]


def figure(value: float) -> str:
    """A number with three significant digits: "0.766", "1024", "3.1e-16"."""
    if not math.isfinite(value) or value == 0 or (value == int(value) and abs(value) < 1e6):
        return f"{value + 0.0:g}"
    if abs(value) < 1e-3 or abs(value) >= 1e6:
        return f"{value:.1e}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def factor(update: Update) -> str:
    """The factor from the large batch's gradient to the applied one, where only a factor differs; else ""."""
    if update.factor:
        return "" if update.factor == "1" else update.factor
    pure = update.direction <= ERROR_THRESHOLD
    return figure(update.scale) if pure and _off(update.scale) else ""


def _columns(done: Pass) -> Iterator[Column]:
    """All columns, in the same order for every pass."""
    updates = done.updates
    found = outcomes(done)
    steps = stepped(done)

    def whole(name: str, numbers: Sequence[int], right: Sequence[int]) -> Column:
        informative = any(number not in right for number in numbers)
        return Column(name, tuple(map(str, numbers)), informative=informative)

    def real(name: str, values: Sequence[float], informative: bool) -> Column:
        return Column(name, tuple(map(figure, values)), informative=informative)

    lost = [
        ranges([m for m in u.microbatches if found.get(m) in (Outcome.LOST, Outcome.LEFT)])
        for u in updates
    ]
    again = [
        ranges([m for m in steps.get(u.number, ()) if m not in u.microbatches]) for u in updates
    ]
    names = [update.optimizer for update in updates]
    targets = [_span(update.targets) for update in updates]
    weights = [_span(update.weights) for update in updates]
    factors = [factor(update) for update in updates]

    yield Column("update", tuple(str(update.number) for update in updates))
    yield Column("optimizer", tuple(names), words=True, informative=len(set(names)) > 1)
    yield whole("epoch", [u.epoch for u in updates], [u.epoch for u in updates[:1]])
    yield Column("micro-batches", tuple(ranges(u.microbatches) for u in updates), words=True)
    yield Column("lost", tuple(lost), words=True, informative=any(lost))
    yield Column("again", tuple(again), words=True, informative=any(again))
    yield Column(
        "targets", tuple(targets), informative=len({n for u in updates for n in u.targets}) > 1
    )
    yield Column(
        "weight", tuple(weights), informative=any(map(_off, chain(*(u.weights for u in updates))))
    )
    yield real("applied", [u.applied for u in updates], True)
    yield real("reference", [u.reference for u in updates], True)
    yield real("error", [u.error for u in updates], True)
    yield real("direction", [u.direction for u in updates], False)
    yield real("cosine", [u.cosine for u in updates], False)
    yield real("scale", [u.scale for u in updates], False)
    yield Column("factor", tuple(factors), informative=any(factors))
    spread = any(not u.spread <= _ROUNDING for u in updates)
    yield real("spread", [u.spread for u in updates], spread)
    reductions = [u.reductions for u in updates]
    # A single rank reduces nothing that matters.
    yield whole("all-reduces", reductions, (1,) if done.ranks > 1 else reductions)
    yield whole("clips", [u.clips for u in updates], (0, 1))
    yield whole("schedules", [u.schedules for u in updates], (0, 1))


def _off(value: float) -> bool:
    """Whether a figure differs from one."""
    return not abs(value - 1) <= ERROR_THRESHOLD


def _merged(before: Column, after: Column) -> Iterator[Column]:
    if before.cells == after.cells or not any(after.cells):
        yield before
    else:
        yield replace(before, arm="found")
        yield replace(after, arm="fixed")


def _filled(column: Column, height: int) -> Column:
    cells = (cell for cell, _ in zip_longest(column.cells, range(height), fillvalue=""))
    return replace(column, cells=tuple(cells))


def _span(values: Sequence[float]) -> str:
    """The smallest and the largest: "0.39-2.6"."""
    if not values:
        return ""
    low, high = figure(min(values)), figure(max(values))
    return low if low == high else f"{low}-{high}"
