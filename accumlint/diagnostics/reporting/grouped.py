"""The findings of each file under its name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from accumlint.diagnostics.reporting.summary import summary
from accumlint.diagnostics.reporting.terminal import Look, printable, printable_path
from accumlint.diagnostics.results.report import Checked, Report


def grouped(results: Iterable[Checked], look: Look) -> Iterator[str]:
    """A heading for each file with findings, a line for each of them, and one for the run."""
    seen: list[Checked] = []
    for result in results:
        seen.append(result)
        if result.reports:
            yield look.paint(f"{printable_path(result.shown)}:", "bold")
            width = max(len(report.mark.where) for report in result.reports)
            yield from (_line(report, width, look) for report in result.reports)
            yield ""
    yield from summary(seen, look)


def _line(report: Report, width: int, look: Look) -> str:
    what = look.paint(report.code, report.severity)
    return (
        f"  {report.mark.where:<{width}}  {what} [{report.severity}] {printable(report.headline)}"
    )
