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
    """Divides each window by its own length, where the loop is one over an enumerated loader: first all that is divided
    by the steps, then each such division alone.

    Unless the partial window is `stepped` anyway, the boundary's test becomes the end of the window's own length.
    """
    found = lengths(program, window)
    if found is None:
        return
    divisions = dict.fromkeys(divisions_of(program, window.backwards[-1]))
    divisors = [d.right if isinstance(d, Binary) else d.value for d in divisions]
    each = [(d,) for d in divisors if render(d) == found.steps]
    together = [tuple(d for (d,) in each)] if len(each) > 1 else []
    for chosen in (*together, *each):
        verbs = (found.insert, *(Replace(divisor, found.length) for divisor in chosen))
        yield verbs if stepped else (*verbs, Replace(found.asked, found.boundary))
