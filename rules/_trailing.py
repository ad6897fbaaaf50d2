"""How a partial window comes to be stepped, with its own length as the divisor."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import Replace, Verb
from accumlint.reading.ir import (
    Assign,
    Attr,
    Augment,
    Binary,
    Expr,
    Name,
    dotted,
    render,
    walk,
    walk_expr,
)
from accumlint.reading.program import Program
from accumlint.tracing.trace import Backward, Window

from ._boundaries import loop_of
from ._dividing import divisions_of
from ._partial import lengths


def own_lengths(program: Program, window: Window, stepped: bool) -> Iterator[tuple[Verb, ...]]:
    """Divides each window by its own length, where the loop is one over an enumerated loader: first all that is divided
    by the steps, then each such division alone.

    Unless the partial window is `stepped` anyway, the boundary's test becomes the end of the window's own length.
    What takes a division back, as a log does, is changed with it.
    """
    found = lengths(program, window)
    if found is None:
        return
    divisions = dict.fromkeys(divisions_of(program, window.backwards[-1]))
    each = [(d,) for d in divisions if render(_divisor(d)) == found.steps]
    together = [tuple(d for (d,) in each)] if len(each) > 1 else []
    for chosen in (*together, *each):
        back = (f for d in chosen for f in _taken_back(program, window.backwards[-1], d))
        numbers = dict.fromkeys((*map(_divisor, chosen), *back))
        verbs = (found.insert, *(Replace(number, found.length) for number in numbers))
        yield verbs if stepped else (*verbs, Replace(found.asked, found.boundary))


def _divisor(division: Binary | Augment) -> Expr:
    return division.right if isinstance(division, Binary) else division.value


def _taken_back(program: Program, backward: Backward, division: Binary | Augment) -> Iterator[Expr]:
    """The steps that a divided loss is multiplied by later in the round."""
    steps, loop = render(_divisor(division)), loop_of(program, backward.node)
    around = (division, *program.above(division))
    bound = next((n for n in around if isinstance(n, Assign | Augment)), None)
    targets = bound.targets if isinstance(bound, Assign) else (bound.target,) if bound else ()
    names = {dotted(target) for target in targets}
    after = False
    for node in walk(loop.body) if loop is not None else ():
        after = after or node is bound
        match node:
            case Assign(targets=[Name(id=name)], value=value) if after and _mentions(value, names):
                names.add(name)
            case Augment(op="*", target=target, value=by) if (
                after and dotted(target) in names and render(by) == steps
            ):
                yield by
            case Binary(op="*", left=left, right=right) if after:
                for factor, other in ((right, left), (left, right)):
                    if render(factor) == steps and _mentions(other, names):
                        yield factor
            case _:
                pass


def _mentions(expr: Expr, names: set[str]) -> bool:
    return any(isinstance(n, Name | Attr) and dotted(n) in names for n in walk_expr(expr))
