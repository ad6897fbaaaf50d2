"""Findings as JSON in ruff's shape, with what accumlint knows besides: a list, or a line for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from accumlint.common.place import Place
from accumlint.diagnostics.reporting.encoding import dumped
from accumlint.diagnostics.reporting.terminal import Look
from accumlint.diagnostics.results.measured import Measured, Update
from accumlint.diagnostics.results.report import Backward, Checked, Fix, Mark, Report
from accumlint.registry import packs

# Each finding carries it, so that a line of json-lines can be read on its own. It counts changes that break readers.
SCHEMA_VERSION = 1


def json(results: Iterable[Checked], look: Look) -> Iterator[str]:
    """One list, sorted by file, row, column and code; with coverage or figures, an object that holds it."""
    seen = list(results)
    reports = sorted((report for r in seen for report in r.reports), key=lambda r: r.key)
    findings = [_finding(report) for report in reports]
    if not look.coverage and not look.figures:
        yield dumped(findings, indent=2)
        return
    whole: dict[str, object] = {"schema_version": SCHEMA_VERSION, "findings": findings}
    if look.coverage:
        whole["coverage"] = [_backward(backward) for r in seen for backward in r.backwards]
    if look.figures:
        whole["measured"] = [_measured(measured) for r in seen for measured in r.measured]
    yield dumped(whole, indent=2)


def json_lines(results: Iterable[Checked], look: Look) -> Iterator[str]:
    """A line for each finding, as files are checked; with coverage, one for each backward call, too.

    With figures, there is one for each optimizer of a run.
    """
    for result in results:
        yield from (dumped(_finding(report)) for report in result.reports)
        if look.coverage:
            yield from (dumped({"coverage": _backward(b)}) for b in result.backwards)
        if look.figures:
            yield from (dumped({"measured": _measured(m)}) for m in result.measured)


def _finding(report: Report) -> dict[str, object]:
    return {
        "schema_version": SCHEMA_VERSION,
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
        "scope": report.scope,
        "fingerprint": report.fingerprint,
        "related": [_mark(mark) for mark in report.related],
        "window": [_mark(mark) for mark in report.timeline],
        "fix": _fix(report.fix) if report.fix else None,
        "noqa_row": report.mark.place.line,
        "url": packs.url(report.code) or None,
    }


def _backward(backward: Backward) -> dict[str, object]:
    return {
        "cell": backward.mark.cell.number if backward.mark.cell else None,
        "filename": backward.file,
        **_places(backward.mark.place),
        "read": backward.state,
        "reasons": [*backward.reasons],
    }


def _measured(measured: Measured) -> dict[str, object]:
    return {
        "optimizer": measured.optimizer,
        "filename": measured.file,
        "ranks": measured.ranks,
        "elements": measured.elements,
        "updates": [_update(update) for update in measured.updates],
    }


def _update(update: Update) -> dict[str, object]:
    return {
        "row": update.row,
        "micro_batches": update.microbatches,
        "applied_norm": update.applied,
        "unclipped_norm": update.unclipped,
        "wanted_norm": update.wanted,
        "rank_spread": update.spread,
        "weights": [
            {
                "rank": weight.rank,
                "micro_batch": weight.microbatch,
                "targets": weight.targets,
                "weight": weight.weight,
                "least": weight.least,
                "most": weight.most,
            }
            for weight in update.weights
        ],
    }


def _fix(fix: Fix) -> dict[str, object]:
    return {
        "applicability": fix.applicability,
        "message": fix.message,
        "edits": [{"content": edit.content, **_places(edit.place)} for edit in fix.edits],
    }


def _mark(mark: Mark) -> dict[str, object]:
    cell = mark.cell.number if mark.cell else None
    where = {"filename": mark.elsewhere.path} if mark.elsewhere else {}
    return {"message": mark.message, "cell": cell, **where, **_places(mark.place)}


def _places(place: Place) -> dict[str, object]:
    return {
        "location": {"row": place.line, "column": place.column},
        "end_location": {"row": place.end_line, "column": place.end_column},
    }
