"""How a loop steps partial windows, each divided by its own length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from accumlint.editing import Before, Insert, Replace, Verb
from accumlint.reading.ir import (
    Assign,
    Attr,
    Augment,
    Binary,
    Call,
    Const,
    Expr,
    For,
    Name,
    Sequence,
    dotted,
    names_in,
    render,
    walk,
)
from accumlint.reading.program import Program
from accumlint.tracing.trace import Backward, Window

from ._boundaries import boundary_of, remainders
from ._dividing import divisions_of


@dataclass(frozen=True)
class Lengths:
    """What is put at the start of the loop's body, the name of the window's length there, and the boundary's test.

    `steps` is how the code writes the length of a full window, `asked` what the guard of the step asks.
    """

    insert: Insert
    length: str
    boundary: str
    steps: str
    asked: Expr


def lengths(program: Program, window: Window) -> Lengths | None:
    """The lengths of a window in a loop `for index, batch in enumerate(loader)` that steps by a modulus."""
    backward = window.backwards[-1].node
    loop, guard = program.loop_around(backward), program.guard_around(window.step.node)
    asked = boundary_of(program, window.step.node)
    if guard is None or asked is None or not isinstance(loop, For):
        return None
    if program.loop_around(guard) is not loop:
        return None
    remainder = next(remainders(asked), None)
    match loop:
        case For(
            target=Sequence(items=[Name(id=index), _]),
            iterable=Call(func=Name(id="enumerate"), args=[loader, *rest]),
        ) if isinstance(loader.value, Name | Attr) and remainder is not None:
            first = rest[0].value if rest else None
        case _:
            return None
    if first is not None and not (isinstance(first, Const) and first.value in (0, 1)):
        return None
    counted = isinstance(first, Const) and first.value == 1
    free = [name for name in ("window", "window_length") if name not in program.text]
    begins = [name for name in ("start", "window_start") if f"{name} =" not in program.text]
    if not free or not begins:
        return None
    steps, length, begin = program.code(remainder.right), free[0], begins[0]
    past = f"({index} - 1)" if counted else index
    lines = (
        f"{begin} = {past} - {past} % {steps}",
        f"{length} = min({steps}, len({program.code(loader.value)}) - {begin})",
    )
    boundary = f"{index} == {begin} + {length}" if counted else f"{index} + 1 == {begin} + {length}"
    insert = Insert("\n".join(lines), Before(loop.body[0]))
    return Lengths(insert, length, boundary, steps, asked)


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
    steps, loop = render(_divisor(division)), program.loop_around(backward.node)
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
            case Binary(op="*", left=left, right=right) if after:
                for factor, other in ((right, left), (left, right)):
                    if render(factor) == steps and _mentions(other, names):
                        yield factor
            case _:
                pass


def _mentions(expr: Expr, names: set[str]) -> bool:
    return not names_in(expr).isdisjoint(names)
