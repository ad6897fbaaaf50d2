"""Findings as a JSON list in ruff's shape, with what accumlint knows besides."""

from __future__ import annotations

import json as standard
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from accumlint.report import Checked, Mark, Report
from accumlint.reporting.look import Look

if TYPE_CHECKING:
    from accumlint.reading.program import Place


def json(results: Iterable[Checked], look: Look) -> Iterator[str]:
    """One list, sorted by file, row, column and code."""
    reports = sorted((report for r in results for report in r.reports), key=lambda r: r.key)
    yield standard.dumps([_finding(report) for report in reports], indent=2)


def _finding(report: Report) -> dict[str, object]:
    return {
        "cell": report.mark.cell.number if report.mark.cell else None,
        "code": report.code,
        "name": report.name,
        "message": report.message,
        "severity": report.severity,
        "confidence": report.confidence,
        "condition": report.condition or None,
        "applied": report.applied or None,
        "expected": report.expected or None,
        "filename": report.file,
        **_places(report.mark.place),
        "related": [_related(mark) for mark in report.related],
        "fix": None,
        "noqa_row": report.mark.place.line,
        "url": None,
    }


def _related(mark: Mark) -> dict[str, object]:
    cell = mark.cell.number if mark.cell else None
    return {"message": mark.message, "cell": cell, **_places(mark.place)}


def _places(place: Place) -> dict[str, object]:
    return {
        "location": {"row": place.line, "column": place.column},
        "end_location": {"row": place.end_line, "column": place.end_column},
    }
