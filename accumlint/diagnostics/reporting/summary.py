"""The last lines of a text report: how much was found where, and which training loops were not read whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from accumlint.common.problem import Kind
from accumlint.diagnostics.reporting.fix_summary import fixes
from accumlint.diagnostics.reporting.phrases import count
from accumlint.diagnostics.reporting.terminal import Look, printable, printable_path
from accumlint.diagnostics.results.report import Checked

# As many backward calls that were not read whole are listed unasked.
_MOST = 5
SEVERITIES = ("error", "warning", "info")


def summary(results: Sequence[Checked], look: Look, *, listed: bool = True) -> Iterator[str]:
    """The findings of the whole run in one line, and how far its training loops were read; nothing if quiet.

    With `listed`, the backward calls that were not read whole have a line each.
    """
    if look.quiet:
        yield from partly_read(results, look) if look.coverage else ()
        return
    reports = [report for result in results for report in result.reports]
    checked = [r for r in results if all(p.kind is Kind.WARNING for p in r.problems)]
    whole = all(backward.state == "whole" for result in results for backward in result.backwards)
    if reports:
        by_severity = Counter(report.severity for report in reports)
        parts = [count(by_severity[s], s) for s in SEVERITIES if by_severity[s]]
        files = count(len({report.file for report in reports}), "file")
        yield look.paint(
            f"{count(len(reports), 'finding')} ({', '.join(parts)}) in {files}", "bold"
        )
    elif not results:
        yield "No file was checked"
    elif whole and not any(result.problems for result in results):
        yield f"{look.paint('All clear', 'good')}: no finding in {count(len(results), 'file')}"
    else:
        yield f"No finding in {count(len(checked), 'file')}"
    yield from fixes(results)
    yield from in_tests(results, look)
    known = sum(silenced.known for result in results for silenced in result.silenced)
    if known:
        yield look.paint(f"{count(known, 'finding')} known in the baseline", "dim")
    if len(checked) < len(results):
        yield f"{count(len(results) - len(checked), 'file')} could not be checked"
    if look.coverage or not whole:
        yield from read(results)
        yield from partly_read(results, look) if listed else ()


def in_tests(results: Sequence[Checked], look: Look) -> Iterator[str]:
    """A line for each test whose findings are not listed."""
    for result in results:
        if codes := Counter(result.in_tests):
            told = ", ".join(f"{number} {code}" for code, number in sorted(codes.items()))
            line = f"{printable_path(result.shown)}: {count(codes.total(), 'finding')} in a test ({told})"
            yield look.paint(f"{line}: --include-tests lists them", "dim")


def read(results: Sequence[Checked]) -> Iterator[str]:
    """How many backward calls were read how far."""
    states = Counter(backward.state for result in results for backward in result.backwards)
    told = [f"{states[state]} {state}" for state in ("whole", "partly", "not") if states[state]]
    yield f"{count(states.total(), 'backward call')} read: {', '.join(told) or 'none'}"


def partly_read(results: Sequence[Checked], look: Look) -> Iterator[str]:
    """The backward calls with how they were read: all where that is asked for, else the first that lack something."""
    found = [backward for result in results for backward in result.backwards]
    shown = found if look.coverage else [b for b in found if b.state != "whole"]
    most = len(shown) if look.coverage else _MOST
    for backward in shown[:most]:
        where = f"{printable_path(backward.shown)}:{backward.mark.row}"
        yield look.paint(f"{where}: {printable(backward.description)}", "dim")
    if len(shown) > most:
        yield look.paint(f"{len(shown) - most} more: run with --coverage to list all", "dim")
