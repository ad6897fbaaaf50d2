"""Where running totals start."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.reading.ir import Assign, Attr, Name, dotted, walk_expr
from accumlint.reading.program import Program


def first_values(program: Program, total: str) -> Iterator[Assign]:
    """The plain assignments of a total that do not ask for its value before."""
    for node in program.of(Assign):
        if len(node.targets) == 1:
            asked = any(
                dotted(n) == total for n in walk_expr(node.value) if isinstance(n, Attr | Name)
            )
            if dotted(node.targets[0]) == total and not asked:
                yield node
