"""Findings as a SARIF 2.1.0 log, as GitHub's code scanning takes it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from accumlint import __version__
from accumlint.common.problem import Kind, Problem
from accumlint.diagnostics.reporting.encoding import dumped
from accumlint.diagnostics.reporting.paths import relative
from accumlint.diagnostics.reporting.phrases import count
from accumlint.diagnostics.reporting.rule_pages import sentence
from accumlint.diagnostics.reporting.terminal import Look
from accumlint.diagnostics.results.report import Checked, Fix, Mark, Report, Silenced
from accumlint.registry import accuracy, packs

if TYPE_CHECKING:
    from accumlint.common.place import Place
    from accumlint.rule import Rule

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_ROOT = "%SRCROOT%"
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_WEIGHTS = {"error": "error", "warning": "warning", "info": "recommendation"}
# GitHub cuts descriptions here.
_LONGEST = 1024

_Object = dict[str, object]


def sarif(results: Iterable[Checked], look: Look) -> Iterator[str]:
    """One log with one run.

    An alert shows in a pull request only where all its lines were changed, so a result stands on one line; the loop
    around it is told by related locations and by a code flow through the window.
    """
    seen = list(results)
    shown = [report for result in seen for report in result.reports]
    silenced = [item for result in seen for item in result.silenced] if look.silenced else []
    codes = sorted({report.code for report in (*shown, *(item.report for item in silenced))})
    told = [_result(report, codes, look) for report in shown]
    told += [
        {**_result(item.report, codes, look), "suppressions": [_suppression(item)]}
        for item in silenced
    ]
    run: _Object = {
        "tool": {
            "driver": {
                "name": "accumlint",
                "semanticVersion": __version__,
                "rules": [_rule(packs.rule(packs.find(code))) for code in codes],
            }
        },
        "automationDetails": {"id": look.category},
        "originalUriBaseIds": {_ROOT: {"uri": f"{look.root.as_uri().rstrip('/')}/"}},
        "columnKind": "unicodeCodePoints",
        "invocations": [_invocation(seen, look)],
        "results": told,
    }
    yield dumped({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _rule(rule: Rule) -> _Object:
    page = rule.page() or rule.name
    paragraphs = [" ".join(paragraph.split()) for paragraph in page.split("\n\n")]
    severity = rule.severity.value
    measured = accuracy.of(rule.code)
    precision = measured.precision if measured else ""
    url = packs.url(rule.code)
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": (sentence(rule) or rule.name)[:_LONGEST]},
        "fullDescription": {"text": "\n\n".join(paragraphs[:2])[:_LONGEST]},
        "help": {"text": page, "markdown": page},
        **({"helpUri": url} if url else {}),
        "defaultConfiguration": {"level": _LEVELS[severity]},
        "properties": {
            "tags": ["gradient-accumulation", "pytorch", rule.claim.value],
            "problem.severity": _WEIGHTS[severity],
            **({"precision": precision} if precision else {}),
        },
    }


def _result(report: Report, codes: Sequence[str], look: Look) -> _Object:
    uri = _artifact(report.file, look)
    properties: _Object = {"confidence": report.confidence}
    if report.mark.cell:
        place = report.mark.place
        properties |= {"cell": report.mark.cell.number, "cellLine": place.line}
    result: _Object = {
        "ruleId": report.code,
        "ruleIndex": codes.index(report.code),
        "level": _LEVELS[report.severity],
        "message": {"text": _text(f"{report.headline}.", *report.gradients)},
        "locations": [
            {
                **_location(report.mark, uri),
                "logicalLocations": [{"fullyQualifiedName": report.scope or "<module>"}],
            }
        ],
        "partialFingerprints": {
            "primaryLocationLineHash": report.line_hash,
            "accumlintFingerprint/v1": report.fingerprint,
        },
        "properties": properties,
    }
    if report.related:
        result["relatedLocations"] = [
            {
                "id": number,
                **_location(mark, _uri(mark, uri, look)),
                "message": {"text": _text(mark.message)},
            }
            for number, mark in enumerate(report.related, 1)
        ]
    if report.timeline:
        steps = [
            {
                "location": {
                    **_location(mark, _uri(mark, uri, look)),
                    "message": {"text": _text(mark.message)},
                }
            }
            for mark in report.timeline
        ]
        result["codeFlows"] = [{"threadFlows": [{"locations": steps}]}]
    if report.applicable_fix:
        result["fixes"] = [_fix(report.applicable_fix, uri)]
    return result


def _fix(fix: Fix, uri: _Object) -> _Object:
    replacements = [
        {"deletedRegion": _region(edit.place), "insertedContent": {"text": edit.content}}
        for edit in fix.in_file
    ]
    return {
        "description": {"text": _text(fix.message)},
        "artifactChanges": [{"artifactLocation": uri, "replacements": replacements}],
    }


def _suppression(item: Silenced) -> _Object:
    suppression: _Object = {"kind": "inSource" if item.by_comment else "external"}
    reason = item.reason or ("known in the baseline" if item.known else "")
    return suppression | ({"justification": reason} if reason else {})


def _uri(mark: Mark, uri: _Object, look: Look) -> _Object:
    """The file of a mark: its report's, or the one where it stands."""
    return _artifact(mark.elsewhere.path, look) if mark.elsewhere else uri


def _location(mark: Mark, uri: _Object) -> _Object:
    return {"physicalLocation": {"artifactLocation": uri, "region": _region(mark.first_line)}}


def _region(place: Place) -> _Object:
    return {
        "startLine": place.line,
        "startColumn": place.column,
        "endLine": place.end_line,
        "endColumn": place.end_column,
    }


def _invocation(results: Iterable[Checked], look: Look) -> _Object:
    """What kept files from being checked; backward calls that were not read whole are notes."""
    results = list(results)
    problems = [problem for result in results for problem in result.problems]
    notes = (
        _notification(
            f"backward {backward.description}",
            "note",
            backward.shown,
            backward.mark.in_file.line,
            look,
        )
        for result in results
        for backward in result.backwards
        if look.coverage or backward.state != "whole"
    )
    tests = (
        _notification(
            f"{count(len(result.in_tests), 'finding')} in a test: {', '.join(sorted({*result.in_tests}))}",
            "note",
            result.shown,
            None,
            look,
        )
        for result in results
        if result.in_tests
    )
    return {
        "executionSuccessful": all(problem.kind is Kind.WARNING for problem in problems),
        "toolExecutionNotifications": [
            *chain((_problem_notification(p, look) for p in problems), notes, tests)
        ],
    }


def _problem_notification(problem: Problem, look: Look) -> _Object:
    level = "warning" if problem.kind is Kind.WARNING else "error"
    return _notification(problem.message, level, problem.path, problem.line, look)


def _notification(message: str, level: str, file: str, line: int | None, look: Look) -> _Object:
    place: _Object = {"artifactLocation": _artifact(file, look)}
    if line:
        place["region"] = {"startLine": line}
    return {
        "level": level,
        "message": {"text": _text(message)},
        "locations": [{"physicalLocation": place}],
    }


def _artifact(file: str, look: Look) -> _Object:
    from urllib.parse import quote

    path = relative(file, look.root)
    if Path(path).is_absolute():
        return {"uri": Path(path).as_uri()}
    return {"uri": quote(os.fsencode(path)), "uriBaseId": _ROOT}


def _text(*lines: str) -> str:
    """Lines of text in which nothing looks like one of SARIF's links, such as `losses[i](x)`."""
    return "\n".join(lines).replace("](", "] (")
