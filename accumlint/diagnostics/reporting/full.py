"""Each finding with its source, its window as a timeline, and the applied gradient beside the large batch's."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from accumlint.diagnostics.reporting.code_frame import frame
from accumlint.diagnostics.reporting.summary import summary
from accumlint.diagnostics.reporting.terminal import Look, printable
from accumlint.diagnostics.results.report import Checked, Mark, Report

_LONGEST = 24
# As much is shown of a line that a fix changes.
_WIDEST = 160


def full(results: Iterable[Checked], look: Look) -> Iterator[str]:
    """A block of lines for each finding, and what sums up the run."""
    seen: list[Checked] = []
    for result in results:
        seen.append(result)
        for report in result.reports:
            yield from _block(report, look)
            yield ""
    yield from summary(seen, look)


def _block(report: Report, look: Look) -> Iterator[str]:
    marks = (report.mark, *(mark for mark in report.related if not mark.elsewhere))
    width = len(str(max(mark.place.line for mark in marks)))
    margin = " " * width
    where = f"{printable(report.shown)}:{report.mark.where}"

    code = look.paint(f"{report.code} {report.name}", report.severity)
    star = " [*]" if report.fix and report.fix.applicability == "safe" else ""
    yield f"{code} {look.paint(f'({report.severity}, {report.confidence}){star}', 'dim')}"
    yield look.paint(printable(report.message), "bold")
    yield f"{margin} {look.paint(look.opening, 'dim')} {where}"
    yield from frame(marks, width, look)
    paragraphs = (
        _elsewhere(report.related),
        _timeline(report.timeline),
        _gradients(report, look),
        _condition(report),
        _fix(report, look),
    )
    for paragraph in paragraphs:
        if paragraph:
            yield f"{margin} {look.paint(look.side, 'dim')}"
            yield from (f"{margin} {look.paint(look.side, 'dim')} {line}" for line in paragraph)
    yield f"{margin} {look.paint(look.closing, 'dim')} {_more(report, look)}"


def _elsewhere(marks: Sequence[Mark]) -> list[str]:
    """A line for each related place in another file."""
    return [printable(f"{mark.where} {mark.message}") for mark in marks if mark.elsewhere]


def _timeline(marks: Sequence[Mark]) -> list[str]:
    """A line for each event; the middle of a very long window is left out."""
    places = [_line(mark) for mark in marks]
    width = max(map(len, places), default=0)
    rows = [
        f"{place:>{width}}  {printable(mark.message)}"
        for place, mark in zip(places, marks, strict=True)
    ]
    if len(rows) <= _LONGEST:
        return rows
    return [*rows[: _LONGEST // 2], f"{'':>{width}}  …", *rows[-_LONGEST // 2 :]]


def _line(mark: Mark) -> str:
    """The line of an event, with its file's name where that is another one."""
    file = f"{printable(os.path.basename(mark.elsewhere.shown))}:" if mark.elsewhere else ""
    return f"{file}{mark.place.line}"


def _gradients(report: Report, look: Look) -> list[str]:
    lines = ((report.applied, "bad"), (report.expected, "good"))
    return [look.paint(printable(line), paint) for line, paint in lines if line]


def _condition(report: Report) -> list[str]:
    return [f"This happens {printable(report.condition)}."] if report.condition else []


def _fix(report: Report, look: Look) -> list[str]:
    """What the fix would change; "unsafe" where something must be tuned or checked afterwards."""
    if report.fix is None:
        return []
    fix = report.fix
    heads = {"safe": "Fix", "unsafe": "Fix (unsafe)", "display": "Suggestion"}
    paints = {"+": "good", "-": "bad", " ": "dim"}
    changes = (
        look.paint(look.gap, "dim")
        if line.startswith("@@")
        else look.paint(printable(line[:_WIDEST]), paints[line[0]])
        for line in fix.difference[1:]
    )
    return [f"{heads[fix.applicability]}: {printable(fix.message)}", *changes]


def _more(report: Report, look: Look) -> str:
    return look.paint(f"accumlint rule {report.code}", "dim")
