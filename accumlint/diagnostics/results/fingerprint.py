"""Names findings so that they are recognised when the file around them changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from accumlint.diagnostics.results.report import Report

_BLOCK = 100
_FACTOR = 37
_END = "\uffff"


def fingerprinted(reports: Sequence[Report], data: bytes) -> Iterator[Report]:
    """The reports on the bytes of one file, which are in order, with `fingerprint` and `line_hash` filled in.

    The fingerprint knows a finding by its rule, its function and its statement; equal ones are numbered. So it stays
    when lines move, and when other findings come and go.
    """
    from hashlib import sha256

    hashes = line_hashes(data, {report.mark.in_file.line for report in reports})
    seen: Counter[tuple[str, ...]] = Counter()
    for report in reports:
        identity = (report.code, report.scope, report.statement)
        seen[identity] += 1
        name = "\0".join((*identity, str(seen[identity])))
        yield replace(
            report,
            fingerprint=sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32],
            line_hash=hashes[report.mark.in_file.line],
        )


def line_hashes(data: bytes, lines: Iterable[int]) -> Mapping[int, str]:
    """The name that GitHub's upload action gives to each of some lines (from 1) of a file.

    It is a polynomial in the next 100 UTF-16 units that are no blanks, modulo 2**64, in hexadecimal, and how many lines
    up to this one share it (github/codeql-action, src/fingerprints.ts).
    """
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    rows = (text.replace(" ", "").replace("\t", "") + _END).split("\n")
    units = "\n".join(rows).encode("utf-16-le")
    starts = [0]
    for row in rows:
        starts.append(starts[-1] + len(row.encode("utf-16-le")) + 2)
    asked = set(lines)
    named: dict[int, str] = {}
    seen: Counter[bytes] = Counter()
    for line, start in enumerate(starts[:-1], 1):
        block = units[start : start + 2 * _BLOCK]
        seen[block] += 1
        if line in asked:
            named[line] = f"{_hash(block):x}:{seen[block]}"
    return named


def _hash(block: bytes) -> int:
    value = 0
    for index in range(0, 2 * _BLOCK, 2):
        value = value * _FACTOR + int.from_bytes(block[index : index + 2], "little")
    return value % 2**64
