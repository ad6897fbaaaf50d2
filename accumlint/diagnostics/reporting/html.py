"""Findings as one HTML file with a picture of each loop beside its source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from accumlint.diagnostics.reporting.summary import summary
from accumlint.diagnostics.reporting.terminal import Look
from accumlint.diagnostics.results.report import Checked


def html(results: Iterable[Checked], look: Look) -> Iterator[str]:
    """The whole file; it needs nothing else and runs nothing."""
    from accumlint.diagnostics.drawing.findings_page import page

    seen = list(results)
    told = list(summary(seen, replace(look, color=False, quiet=False), listed=False))
    yield page(seen, told, look).rstrip("\n")
