"""Findings as a JUnit report, a suite for each file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from accumlint.common.problem import Kind, Problem
from accumlint.diagnostics.reporting.paths import relative
from accumlint.diagnostics.reporting.terminal import Look, printable, printable_path
from accumlint.diagnostics.results.report import Checked, Report

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


def junit(results: Iterable[Checked], look: Look) -> Iterator[str]:
    """One XML document in ASCII. A file without findings is a test that passes."""
    from xml.etree import ElementTree

    root = ElementTree.Element("testsuites", name="accumlint")
    for result in results:
        root.append(_suite(result, look))
    for kind in ("tests", "failures", "errors"):
        root.set(kind, str(sum(int(suite.get(kind, 0)) for suite in root)))
    ElementTree.indent(root)
    yield '<?xml version="1.0" encoding="utf-8"?>'
    yield ElementTree.tostring(root, encoding="us-ascii", xml_declaration=False).decode("ascii")


def _suite(result: Checked, look: Look) -> Element:
    name = relative(result.shown, look.root)
    grave = [problem for problem in result.problems if problem.kind is not Kind.WARNING]
    cases = [_failure(report, name) for report in result.reports]
    cases += [_error(problem, name) for problem in grave]
    suite = _element(
        "testsuite",
        {
            "name": name,
            "tests": str(len(cases) or 1),
            "failures": str(len(result.reports)),
            "errors": str(len(grave)),
            "skipped": "0",
        },
    )
    suite.extend(cases or [_element("testcase", {"name": "accumlint", "classname": name})])
    return suite


def _failure(report: Report, name: str) -> Element:
    place = report.mark.in_file
    case = _element(
        "testcase",
        {
            "name": f"{report.code} {report.name} at {report.mark.where}",
            "classname": name,
            "file": name,
            "line": str(place.line),
            "column": str(place.column),
        },
    )
    case.append(
        _element(
            "failure",
            {"message": report.headline, "type": report.severity},
            (f"{name}:{report.mark.where}", report.headline, *report.gradients),
        )
    )
    return case


def _error(problem: Problem, name: str) -> Element:
    case = _element("testcase", {"name": "accumlint", "classname": name, "file": name})
    case.append(_element("error", {"message": problem.message}, problem.traceback.split("\n")))
    return case


def _element(tag: str, attributes: Mapping[str, str], lines: Iterable[str] = ()) -> Element:
    """An element whose text holds nothing that XML forbids, nor what a log would obey."""
    from xml.etree import ElementTree

    element = ElementTree.Element(tag, {key: printable(value) for key, value in attributes.items()})
    element.text = "\n".join(printable_path(line) for line in lines) or None
    return element
