"""How a partial window comes to be stepped, with its own length as the divisor."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import Replace, Verb
from accumlint.reading.ir import Binary, render
from accumlint.reading.program import Program
from accumlint.tracing.trace import Window

from ._dividing import divisions_of
from ._partial import lengths


def own_lengths(program: Program, window: Window, stepped: bool) -> Iterator[tuple[Verb, ...]]:
    """Divides each window by its own length, where the loop is one over an enumerated loader.

    Unless the partial window is `stepped` anyway, the boundary's test becomes the end of the window's own length.
    """
    found = lengths(program, window)
    if found is None:
        return
    for division in divisions_of(program, window.backwards[-1]):
        divisor = division.right if isinstance(division, Binary) else division.value
        if render(divisor) == found.steps:
            verbs = found.insert, Replace(divisor, found.length)
            yield verbs if stepped else (*verbs, Replace(found.asked, found.boundary))
