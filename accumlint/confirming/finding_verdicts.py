"""Findings in order, each with the verdict before and after its fix."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import zip_longest

from accumlint.common.frozen import frozen
from accumlint.confirming.result import Confirmation, Pass, Update, Verdict

# Relative errors above it are shown as wrong; rounding in a correct update is orders of magnitude smaller.
ERROR_THRESHOLD = 1e-3


@frozen
class Case:
    """A finding as it is in the source, and in the fixed text if that was run."""

    found: Confirmation
    fixed: Confirmation | None = None

    @property
    def outcome(self) -> str:
        """The verdict in words: "confirmed", "confirmed, gone in the fixed text"."""
        verdict = self.found.verdict
        if self.fixed is None:
            return f"{verdict.value}{' in the fixed text' if self.found.arm == 'fixed' else ''}"
        after = self.fixed.verdict
        if verdict is Verdict.CONFIRMED:
            return f"confirmed, {_AFTER[after]} in the fixed text"
        return f"{verdict.value}{' in both texts' if after is verdict else f', {after.value} in the fixed text'}"


_AFTER = {Verdict.CONFIRMED: "still there", Verdict.REFUTED: "gone", Verdict.UNDECIDED: "undecided"}


def cases(confirmations: Sequence[Confirmation]) -> list[Case]:
    """The findings by file, line, column and code; each place appears once."""
    places: dict[tuple[str, int, int, str], list[Confirmation]] = defaultdict(list)
    for one in confirmations:
        places[one.file, one.line, one.column, one.code].append(one)
    return [case for place in sorted(places) for case in _paired(places[place])]


def _paired(place: Sequence[Confirmation]) -> list[Case]:
    found = [one for one in place if one.arm != "fixed"]
    fixed = [one for one in place if one.arm == "fixed"]
    pairs = zip_longest(found, fixed)
    return [
        Case(first, second) if first else Case(second) for first, second in pairs if first or second
    ]


def tally(run: Sequence[Case]) -> str:
    """The verdicts of a run: "3 confirmed, 1 refuted; 2 of 3 gone in the fixed text"."""
    verdicts = Counter(case.found.verdict for case in run)
    counted = ", ".join(f"{verdicts[v]} {v.value}" for v in Verdict if verdicts[v])
    shown = (case for case in run if case.found.verdict is Verdict.CONFIRMED)
    fixed = [case.fixed.verdict for case in shown if case.fixed]
    fixed_note = f"; {fixed.count(Verdict.REFUTED)} of {len(fixed)} gone in the fixed text"
    return f"{counted or 'nothing to confirm'}{fixed_note if fixed else ''}"


def decisive(one: Confirmation | None) -> Pass | None:
    """The pass that the verdict rests on, which comes first."""
    return one.passes[0] if one and one.passes else None


def worst(done: Pass) -> Update | None:
    """The update with the largest error, the first of equals."""
    return max(done.updates, key=lambda update: _size(update.error), default=None)


def _size(figure: float) -> float:
    return abs(figure) if math.isfinite(figure) else math.inf
