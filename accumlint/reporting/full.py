"""Each finding with its source, its window as a timeline, and the applied gradient beside the large batch's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from accumlint.report import Checked, Report
from accumlint.reporting.frame import frame
from accumlint.reporting.look import Look, printable
from accumlint.reporting.summary import summary


def full(results: Iterable[Checked], look: Look) -> Iterator[str]:
    """A block of lines for each finding, the loops that were not traced, and a line for the run."""
    seen: list[Checked] = []
    for result in results:
        seen.append(result)
        for report in result.reports:
            yield from _block(report, look)
            yield ""
    for loop in (loop for result in seen for loop in result.untraced):
        where = f"{printable(loop.shown)}:{loop.line}"
        yield look.paint(f"not traced: {where}: {printable(loop.reason)}", "dim")
    yield from summary(seen, look)


def _block(report: Report, look: Look) -> Iterator[str]:
    marks = (report.mark, *report.related)
    width = len(str(max(mark.place.line for mark in marks)))
    margin = " " * width
    where = f"{printable(report.shown)}:{report.mark.where}"

    code = look.paint(f"{report.code} {report.name}", report.severity)
    yield f"{code} {look.paint(f'({report.severity}, {report.confidence})', 'dim')}"
    yield look.paint(printable(report.message), "bold")
    yield f"{margin} {look.paint(look.opening, 'dim')} {where}"
    yield from frame(marks, width, look)
    for paragraph in (report.timeline, tuple(_gradients(report, look)), tuple(_condition(report))):
        if paragraph:
            yield f"{margin} {look.paint(look.side, 'dim')}"
            yield from (f"{margin} {look.paint(look.side, 'dim')} {line}" for line in paragraph)
    yield f"{margin} {look.paint(look.closing, 'dim')} {_more(report, look)}"


def _gradients(report: Report, look: Look) -> Iterator[str]:
    if report.applied:
        yield look.paint(printable(report.applied), "bad")
    if report.expected:
        yield look.paint(printable(report.expected), "good")


def _condition(report: Report) -> Iterator[str]:
    if report.condition:
        yield f"This happens {printable(report.condition)}."


def _more(report: Report, look: Look) -> str:
    return look.paint(f"accumlint rule {report.code}", "dim")
