"""Fixes the bytes of a file in rounds: edits that do not collide are made, and the result is checked again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from accumlint.check import check_bytes
from accumlint.common.frozen import frozen
from accumlint.common.problem import Kind
from accumlint.diagnostics.results.report import Checked, Edit, Report
from accumlint.files import notebook
from accumlint.files.inputs.discovery import Target
from accumlint.files.inputs.document import edited
from accumlint.files.source import decode, encode
from accumlint.registry import packs

# Each round mends something; a file with more knots than this is left for the next run.
ROUNDS = 20


@frozen
class Fixed:
    """What fixing a file gave: its bytes before and after, and what checking them gave first and gives now.

    What was mended stands in `checked`.
    """

    target: Target
    before: bytes
    after: bytes
    first: Checked
    checked: Checked

    @property
    def is_changed(self) -> bool:
        return self.after != self.before

    @property
    def changes(self) -> Iterator[tuple[str, str, str]]:
        """What changed: the name of the file, or of a cell of a notebook, with its text before and after."""
        shown = self.target.shown
        if not self.target.is_notebook:
            yield shown, decode(self.before), decode(self.after)
        elif (old := notebook.read(self.before)) and (new := notebook.read(self.after)):
            for before, after in zip(old.codes, new.codes, strict=True):
                if before.source != after.source:
                    yield f"{shown}:{before.cell.name}", before.source, after.source


def fixed(text: str, reports: Iterable[Report]) -> str:
    """The text of a file with the fixes made that these reports on it offer; nothing is written.

    Of fixes that collide, the first is made. Fixes for display only are left out, unsafe ones are made.
    """
    chosen = list(_together(reports, ("safe", "unsafe")))
    return _applied(text, chosen)


def fix(data: bytes, target: Target, *, unsafe: bool = False) -> Fixed:
    """The bytes of a file with all fixes made that may be: the safe ones, and the unsafe ones if asked for."""
    allowed = ("safe", "unsafe") if unsafe else ("safe",)
    now = data
    first = checked = check_bytes(now, target)
    mended: list[Report] = []
    for _ in range(ROUNDS):
        together = list(_together(checked.reports, allowed))
        # Each was tried alone; if they do not get along, the first alone will do.
        for chosen in filter(None, (together, together[:1] if len(together) > 1 else [])):
            new = encode(_applied(decode(now), chosen), now)
            again = check_bytes(new, target)
            if _is_better(again, checked, chosen):
                break
        else:
            break
        now, checked = new, again
        mended += chosen
    return Fixed(target, data, now, first, replace(checked, mended=tuple(mended)))


def _together(reports: Iterable[Report], allowed: Sequence[str]) -> Iterator[Report]:
    """The reports whose fixes can be made at once."""
    taken: list[Edit] = []
    # An ignore is put right before anything is mended that it may have been meant to silence.
    for report in sorted(reports, key=lambda report: not packs.rule(packs.find(report.code)).meta):
        if report.fix is None or report.fix.applicability not in allowed:
            continue
        if not any(_collide(edit, other) for edit in report.fix.in_file for other in taken):
            taken += report.fix.in_file
            yield report


def _collide(one: Edit, other: Edit) -> bool:
    first, second = sorted((one, other), key=lambda edit: (edit.start, edit.end))
    return first.start == second.start or second.start < first.end


def _applied(text: str, reports: Sequence[Report]) -> str:
    return edited(text, (edit for report in reports if report.fix for edit in report.fix.in_file))


def _is_better(after: Checked, before: Checked, mended: Sequence[Report]) -> bool:
    """True when what was mended is gone, nothing is found that it did not announce, and the text can still be read
    and followed.
    """
    now, then = _codes(after), _codes(before)
    gone = {report.code for report in mended}
    announced = {code for report in mended if report.fix for code in report.fix.shows}
    return (
        all(problem.kind is Kind.WARNING for problem in after.problems)
        and len(after.problems) <= len(before.problems)
        and after.unreached <= before.unreached
        and all(now[code] < then[code] for code in gone)
        and all(
            now[r.code] <= then[r.code]
            for r in after.reports
            if _matters(r) and r.code not in announced
        )
    )


def _matters(report: Report) -> bool:
    """False for what is only possible, and for the advice of rules that must be asked for."""
    return report.confidence != "possible" and not packs.rule(packs.find(report.code)).opt_in


def _codes(checked: Checked) -> Counter[str]:
    return Counter(report.code for report in checked.reports)
