"""One line per finding, for scripts and for editors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from accumlint.diagnostics.reporting.summary import summary
from accumlint.diagnostics.reporting.terminal import Look, printable, printable_path
from accumlint.diagnostics.results.report import Checked, Report


def concise(results: Iterable[Checked], look: Look) -> Iterator[str]:
    """A line for each finding, and one for the run."""
    seen: list[Checked] = []
    for result in results:
        seen.append(result)
        for report in result.reports:
            yield line(report, look)
    yield from summary(seen, look)


def line(report: Report, look: Look) -> str:
    """A finding in one line."""
    where = look.paint(f"{printable_path(report.shown)}:{report.mark.where}:", "bold")
    what = look.paint(report.code, report.severity)
    star = " [*]" if report.fix and report.fix.applicability == "safe" else ""
    return f"{where} {what} [{report.severity}]{star} {printable(report.headline)}"
