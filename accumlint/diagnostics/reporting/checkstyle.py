"""Findings as a Checkstyle report, which Jenkins, SonarQube and many editors read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from accumlint.common.problem import Kind
from accumlint.diagnostics.reporting.paths import relative
from accumlint.diagnostics.reporting.terminal import Look, printable
from accumlint.diagnostics.results.report import Checked, Report


def checkstyle(results: Iterable[Checked], look: Look) -> Iterator[str]:
    """One XML document in ASCII, with the files that have findings or could not be checked."""
    from xml.etree import ElementTree

    root = ElementTree.Element("checkstyle", version="4.3")
    for result in results:
        rows = [_error(report) for report in result.reports]
        rows += [
            {"severity": "error", "message": problem.message, "source": "accumlint"}
            | ({"line": str(problem.line)} if problem.line else {})
            for problem in result.problems
            if problem.kind is not Kind.WARNING
        ]
        if rows:
            name = printable(relative(result.shown, look.root))
            file = ElementTree.SubElement(root, "file", name=name)
            for row in rows:
                shown = {key: printable(value) for key, value in row.items()}
                ElementTree.SubElement(file, "error", shown)
    ElementTree.indent(root)
    yield '<?xml version="1.0" encoding="utf-8"?>'
    yield ElementTree.tostring(root, encoding="us-ascii", xml_declaration=False).decode("ascii")


def _error(report: Report) -> dict[str, str]:
    place = report.mark.in_file
    return {
        "line": str(place.line),
        "column": str(place.column),
        "severity": report.severity,
        "message": "; ".join((report.headline, *report.gradients)),
        "source": f"accumlint.{report.code}",
    }
