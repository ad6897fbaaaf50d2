"""The last lines of a text report: how much was found where, and what could not be followed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from accumlint.problem import Kind
from accumlint.report import Checked
from accumlint.reporting.look import Look
from accumlint.reporting.mending import fixes
from accumlint.reporting.words import count

SEVERITIES = ("error", "warning", "info")


def summary(results: Sequence[Checked], look: Look) -> Iterator[str]:
    """The findings of the whole run in one line, and the loops that were not traced in another; nothing if quiet."""
    if look.quiet:
        return
    reports = [report for result in results for report in result.reports]
    checked = [r for r in results if all(p.kind is Kind.WARNING for p in r.problems)]
    untraced = sum(len(result.untraced) for result in results)
    if reports:
        by_severity = Counter(report.severity for report in reports)
        parts = [count(by_severity[s], s) for s in SEVERITIES if by_severity[s]]
        files = count(len({report.file for report in reports}), "file")
        yield look.paint(
            f"{count(len(reports), 'finding')} ({', '.join(parts)}) in {files}", "bold"
        )
    elif len(checked) == len(results):
        yield f"{look.paint('All clear', 'good')}: no finding in {count(len(results), 'file')}"
    else:
        yield f"No finding in {count(len(checked), 'file')}"
    yield from fixes(results)
    known = sum(silenced.known for result in results for silenced in result.silenced)
    if known:
        yield look.paint(f"{count(known, 'finding')} known in the baseline", "dim")
    if len(checked) < len(results):
        yield f"{count(len(results) - len(checked), 'file')} could not be checked"
    if untraced:
        verb = "was" if untraced == 1 else "were"
        yield look.paint(f"{count(untraced, 'loop')} {verb} not traced", "dim")
