"""Findings as issues of an Azure Pipelines run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from accumlint.diagnostics.reporting.paths import relative
from accumlint.diagnostics.reporting.terminal import Look, printable
from accumlint.diagnostics.results.report import Checked, Report

# Agents know no third level.
_TYPES = {"error": "error", "warning": "warning", "info": "warning"}
_CODES = {"\r": "%0D", "\n": "%0A", "]": "%5D", ";": "%3B"}
_ESCAPED = re.compile(r"%(?=0D|0A|5D|3B|AZP25)")


def azure(results: Iterable[Checked], look: Look) -> Iterator[str]:
    """A logging command for each finding."""
    for report in (report for result in results for report in result.reports):
        place = report.mark.in_file
        values = {
            "type": _TYPES[report.severity],
            "sourcepath": relative(report.file, look.root),
            "linenumber": str(place.line),
            "columnnumber": str(place.column),
            "code": report.code,
        }
        properties = "".join(f"{name}={_escaped(value, '];')};" for name, value in values.items())
        yield f"##vso[task.logissue {properties}]{_message(report)}"


def _message(report: Report) -> str:
    return _escaped(report.headline, "")


def _escaped(text: str, reserved: str) -> str:
    """Text for a command. A percent sign is left alone unless the agent would take it for the start of a code."""
    escaped = _ESCAPED.sub("%AZP25", text)
    for char in f"\r\n{reserved}":
        escaped = escaped.replace(char, _CODES[char])
    return printable(escaped)
