"""Places findings in the file that is being checked, although the defect may stand in another one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from accumlint.reading.ir import Node
from accumlint.reading.program import Program
from accumlint.reading.syntax import Source
from accumlint.rule import Finding, Related

# A rule's code, and the line and column where it found something.
Known = frozenset[tuple[str, int, int]]


def placed(
    findings: Iterable[Finding],
    program: Program,
    leads: Mapping[Node, Node],
    known: Callable[[Source], Known | None],
) -> Iterator[Finding]:
    """The findings, each at a node of `program`.

    One in another file stands where `leads` says that the program goes there, with a related place in that file;
    one that the other file's own check tells (`known`) is left to it, and so are those of files of which that is None.
    """
    taken: set[tuple[str, Node]] = set()
    for finding in findings:
        if program.source.holds(finding.node.at):
            yield finding
            continue
        lead = leads.get(finding.node)
        if lead is None:
            # A caller's, whose own check tells it.
            continue
        spot = program.spot(finding.node)
        code = finding.rule.code
        told = known(spot.source)
        if told is None or (code, spot.place.line, spot.place.column) in told:
            continue
        if (code, lead) not in taken:
            taken.add((code, lead))
            there = Related(finding.node, "it happens here")
            # What would mend it stands in the other file, too.
            yield replace(finding, node=lead, related=(there, *finding.related), fixes=())
