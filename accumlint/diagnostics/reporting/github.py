"""Findings as annotations of a GitHub workflow run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from accumlint.diagnostics.reporting.concise import line
from accumlint.diagnostics.reporting.paths import relative
from accumlint.diagnostics.reporting.phrases import count
from accumlint.diagnostics.reporting.summary import summary
from accumlint.diagnostics.reporting.terminal import Look, printable
from accumlint.diagnostics.results.report import Checked, Report

_LEVELS = {"error": "error", "warning": "warning", "info": "notice"}
_CONFIDENCES = ("certain", "likely", "possible")
# GitHub drops what a step says beyond this, level by level.
_LIMIT = 10


def github(results: Iterable[Checked], look: Look) -> Iterator[str]:
    """The ten surest findings of each severity as annotations, the others as lines of the log."""
    seen = list(results)
    reports = [report for result in seen for report in result.reports]
    for severity in _LEVELS:
        held = [report for report in reports if report.severity == severity]
        ranked = sorted(held, key=lambda report: _CONFIDENCES.index(report.confidence))
        rest = ranked[_LIMIT:]
        for number, report in enumerate(ranked[:_LIMIT], 1):
            yield _annotation(report, len(rest) if number == _LIMIT else 0, look)
        yield from (line(report, look) for report in sorted(rest, key=lambda r: r.key))
    yield from summary(seen, look)


def _annotation(report: Report, rest: int, look: Look) -> str:
    place = report.mark.first_line
    values = {
        "file": relative(report.file, look.root),
        "line": str(place.line),
        "endLine": str(place.end_line),
        "col": str(place.column),
        "endColumn": str(place.end_column),
        "title": f"{report.code} {report.name}",
    }
    more = f"{count(rest, f'more {report.severity}')} in the log and in the summary of the run"
    told = "\n".join((report.headline, *report.gradients, *([more] if rest else [])))
    properties = ",".join(f"{name}={_property(value)}" for name, value in values.items())
    return f"::{_LEVELS[report.severity]} {properties}::{_data(told)}"


def _data(text: str) -> str:
    return printable(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
