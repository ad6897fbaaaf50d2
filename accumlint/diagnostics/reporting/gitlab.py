"""Findings as a GitLab code quality report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from accumlint.diagnostics.reporting.encoding import dumped
from accumlint.diagnostics.reporting.paths import relative
from accumlint.diagnostics.reporting.terminal import Look
from accumlint.diagnostics.results.report import Checked, Report

_SEVERITIES = {"error": "critical", "warning": "major", "info": "info"}


def gitlab(results: Iterable[Checked], look: Look) -> Iterator[str]:
    """One list."""
    reports = sorted((report for r in results for report in r.reports), key=lambda r: r.key)
    yield dumped([_issue(report, look) for report in reports], indent=2)


def _issue(report: Report, look: Look) -> dict[str, object]:
    from hashlib import sha256

    path = relative(report.file, look.root)
    place = report.mark.in_file
    name = f"{path}\0{report.fingerprint}".encode("utf-8", "surrogateescape")
    return {
        "description": report.headline,
        "check_name": report.code,
        "fingerprint": sha256(name).hexdigest(),
        "severity": _SEVERITIES[report.severity],
        "location": {"path": path, "lines": {"begin": place.line, "end": place.end_line}},
        "content": {"body": "\n\n".join(report.gradients)},
    }
