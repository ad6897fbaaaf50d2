"""Findings in the Reviewdog Diagnostic Format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from accumlint.diagnostics.reporting.encoding import dumped
from accumlint.diagnostics.reporting.paths import relative
from accumlint.diagnostics.reporting.terminal import Look
from accumlint.diagnostics.results.report import Checked, Edit, Mark, Report

_SEVERITIES = {"error": "ERROR", "warning": "WARNING", "info": "INFO"}


def rdjson(results: Iterable[Checked], look: Look) -> Iterator[str]:
    """One object with all findings."""
    reports = sorted((report for r in results for report in r.reports), key=lambda r: r.key)
    diagnostics = [_diagnostic(report, look) for report in reports]
    yield dumped({"source": {"name": "accumlint"}, "diagnostics": diagnostics}, indent=2)


def _diagnostic(report: Report, look: Look) -> dict[str, object]:
    path = relative(report.file, look.root)
    fix = report.applicable_fix
    return {
        "message": "\n".join((report.headline, *report.gradients)),
        "location": _location(path, report.mark),
        "severity": _SEVERITIES[report.severity],
        "code": {"value": report.code},
        "related_locations": [
            {"message": mark.message, "location": _location(_path(mark, path, look), mark)}
            for mark in report.related
        ],
        "suggestions": [_suggestion(edit) for edit in fix.in_file] if fix else [],
    }


def _path(mark: Mark, path: str, look: Look) -> str:
    """The file of a mark: its report's, or the one where it stands."""
    return relative(mark.elsewhere.path, look.root) if mark.elsewhere else path


def _location(path: str, mark: Mark) -> dict[str, object]:
    """The first line of a place. Columns count the bytes of UTF-8."""
    place = mark.first_line
    start = place.column + _extra(mark.text[: mark.place.column - 1])
    width = place.end_column - place.column
    held = mark.text[mark.place.column - 1 :][:width]
    return {
        "path": path,
        "range": {
            "start": {"line": place.line, "column": start},
            "end": {"line": place.line, "column": start + width + _extra(held)},
        },
    }


def _suggestion(edit: Edit) -> dict[str, object]:
    place = edit.place
    (first, last) = edit.lines
    start = {"line": place.line, "column": place.column + _extra(first[: place.column - 1])}
    end = {
        "line": place.end_line,
        "column": place.end_column + _extra(last[: place.end_column - 1]),
    }
    return {"range": {"start": start, "end": end}, "text": edit.content}


def _extra(text: str) -> int:
    """How many more bytes of UTF-8 than characters a text has."""
    return len(text.encode("utf-8", "replace")) - len(text)
