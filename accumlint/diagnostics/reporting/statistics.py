"""How often each rule found something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from accumlint.diagnostics.reporting.encoding import dumped
from accumlint.diagnostics.reporting.summary import summary
from accumlint.diagnostics.reporting.terminal import Look
from accumlint.diagnostics.results.report import Checked, Report


def statistics(results: Iterable[Checked], look: Look) -> Iterator[str]:
    """A line for each rule that found something, the most frequent first, and one for the run."""
    seen = list(results)
    counted = _counted(seen)
    width = len(str(counted[0][1])) if counted else 0
    for report, number in counted:
        code = look.paint(report.code, report.severity)
        yield f"{number:>{width}}  {code}  {report.severity:<7}  {report.name}"
    yield from summary(seen, look)


def json_statistics(results: Iterable[Checked], look: Look) -> Iterator[str]:
    """One list with an object for each rule that found something."""
    yield dumped(
        [
            {"code": r.code, "name": r.name, "severity": r.severity, "count": number}
            for r, number in _counted(results)
        ],
        indent=2,
    )


def _counted(results: Iterable[Checked]) -> list[tuple[Report, int]]:
    """One report of each rule and severity with their number."""
    reports: dict[tuple[str, str], Report] = {}
    number: Counter[tuple[str, str]] = Counter()
    for report in (report for result in results for report in result.reports):
        key = (report.code, report.severity)
        reports.setdefault(key, report)
        number[key] += 1
    return [(reports[key], number[key]) for key in sorted(number, key=lambda k: (-number[k], k))]
