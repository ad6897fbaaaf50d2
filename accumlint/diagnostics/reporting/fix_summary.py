"""What was fixed, and what could be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from accumlint.diagnostics.reporting.phrases import count
from accumlint.diagnostics.reporting.terminal import printable
from accumlint.diagnostics.results.report import Checked


def fixes(results: Sequence[Checked]) -> Iterator[str]:
    """How many findings were fixed, and how many of the reported ones could be."""
    number = sum(len(result.mended) for result in results)
    kinds = _kinds(results)
    safe, unsafe = kinds["safe"], kinds["unsafe"]
    more = f" ({unsafe} more with --unsafe-fixes)" if unsafe else ""
    if number:
        yield f"Fixed {count(number, 'finding')}{more}"
    elif safe:
        yield f"[*] {safe} fixable with --fix{more}"
    elif unsafe:
        yield f"{unsafe} fixable with --fix --unsafe-fixes"


def outlook(results: Sequence[Checked], names: bool) -> Iterator[str]:
    """How many findings `--fix` would mend, for the end of a diff, and which where asked for."""
    number = sum(len(result.mended) for result in results)
    unsafe = _kinds(results)["unsafe"]
    more = f" ({unsafe} more with --unsafe-fixes)" if unsafe else ""
    if number or unsafe:
        yield f"Would fix {count(number, 'finding')}{more}"
    if names:
        yield from mended(results)


def mended(results: Sequence[Checked]) -> Iterator[str]:
    """The findings that were fixed, by file and rule."""
    for result in results:
        if result.mended:
            yield f"- {printable(result.shown)}:"
            numbers = Counter((report.code, report.name) for report in result.mended)
            for (code, name), number in sorted(numbers.items()):
                yield f"    {number} x {code} ({name})"


def _kinds(results: Sequence[Checked]) -> Counter[str]:
    reports = (report for result in results for report in result.reports)
    return Counter(report.fix.applicability for report in reports if report.fix)
