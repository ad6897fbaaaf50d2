"""How a loop over a loader comes to know its windows' own lengths, the last one's included."""

from __future__ import annotations

from dataclasses import dataclass

from accumlint.editing import Before, Insert
from accumlint.reading.ir import Attr, Call, Const, Expr, For, Name, Sequence
from accumlint.reading.program import Program
from accumlint.tracing.trace import Window

from ._boundaries import boundary_of, guard_of, loop_of, remainders


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
    loop, guard = loop_of(program, backward), guard_of(program, window.step.node)
    asked = boundary_of(program, window.step.node)
    if guard is None or asked is None or not isinstance(loop, For):
        return None
    if loop_of(program, guard) is not loop:
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
    begin = next(
        (name for name in ("start", "window_start") if f"{name} =" not in program.text), ""
    )
    if not free or not begin:
        return None
    steps, length = program.code(remainder.right), free[0]
    past = f"({index} - 1)" if counted else index
    lines = (
        f"{begin} = {past} - {past} % {steps}",
        f"{length} = min({steps}, len({program.code(loader.value)}) - {begin})",
    )
    boundary = f"{index} == {begin} + {length}" if counted else f"{index} + 1 == {begin} + {length}"
    insert = Insert("\n".join(lines), Before(loop.body[0]))
    return Lengths(insert, length, boundary, steps, asked)
