"""Where a loss is divided, and by what its window wants it divided."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import Delete, Replace, Verb
from accumlint.reading.ir import (
    Assign,
    Attr,
    Augment,
    Binary,
    Call,
    Compare,
    Const,
    Expr,
    For,
    Item,
    Name,
    dotted,
    names_in,
    render,
    walk,
    walk_expr,
)
from accumlint.reading.names import is_length
from accumlint.reading.program import Program
from accumlint.tracing.trace import Backward, Window

from ._boundaries import boundary_of, remainders


def loss_of(backward: Backward) -> Expr | None:
    """What goes backward in `loss.backward()`, in `scaler.scale(loss).backward()` and in `engine.backward(loss)`."""
    node = backward.node
    if not isinstance(node, Call) or not isinstance(node.func, Attr):
        return None
    if backward.via not in ("tensor", "scaler"):
        return node.positional(0)
    scaled = node.func.base
    return scaled.positional(0) if isinstance(scaled, Call) and backward.via == "scaler" else scaled


def window_sizes(program: Program, window: Window) -> list[str]:
    """How the code writes the number of micro-batches of a window: in the step's guard, or in the loop around them."""
    asked = boundary_of(program, window.step.node)
    found = [remainder.right for remainder in remainders(asked)] if asked is not None else []
    for test in walk_expr(asked) if asked is not None else ():
        match test:
            case Compare(rest=[("==" | ">=", (Name() | Attr() | Item() | Const()) as size)]):
                # An epoch's end closes its last window, whatever its size.
                if render(size) != "0" and not is_length(dotted(size).rpartition(".")[2]):
                    found.append(size)
            case _:
                pass
    for backward in window.backwards[-1:]:
        match program.loop_around(backward.node):
            case For(iterable=Call(func=Name(id="range"), args=[steps])) as loop if (
                # A loop that the step is in as well goes over windows.
                program.loop_around(window.step.node) is not loop
            ):
                found.append(steps.value)
            case _:
                pass
    return list(dict.fromkeys(map(program.code, found)))


def divided(program: Program, loss: Expr, size: str) -> str:
    """The text of a loss over a window's size."""
    code = program.code(loss)
    atom = isinstance(loss, Name | Attr | Call | Item)
    over = f"{code if atom else f'({code})'} / {size}"
    parent = program.parents.get(loss)
    return f"({over})" if isinstance(parent, Attr) else over


def undivided(
    program: Program, backward: Backward, divisors: set[str]
) -> Iterator[tuple[Verb, ...]]:
    """Ways to take one division by any of some divisors out of a loss, the last one that is made first."""
    for division in divisions_of(program, backward):
        match division:
            case Binary(left=left, right=right) if render(right) in divisors:
                yield from _without(program, division, left)
            case Augment(value=value) if render(value) in divisors:
                yield (Delete(division, bound=True),)
            case _:
                pass


def _without(program: Program, division: Binary, left: Expr) -> Iterator[tuple[Verb, ...]]:
    """What remains of a division, or nothing where it only divides a name."""
    statement = program.parents.get(division)
    if isinstance(statement, Assign) and len(statement.targets) == 1:
        if render(statement.targets[0]) == render(left):
            yield (Delete(statement, bound=True),)
            return
    yield (Replace(division, program.code(left)),)


def divisions_of(program: Program, backward: Backward) -> Iterator[Binary | Augment]:
    """The divisions of the loss that goes backward: in the call, or where its name is bound in the same function."""
    loss = loss_of(backward)
    if loss is None:
        return
    yield from reversed(list(_divisions_in(loss)))
    names = names_in(loss)
    for node in reversed(list(walk(program.body_around(backward.node), into_functions=False))):
        match node:
            case Assign(targets=[target], value=value) if dotted(target) in names:
                yield from _divisions_in(value)
            case Augment(target=target, op="/") if dotted(target) in names:
                yield node
            case _:
                pass


def _divisions_in(expr: Expr) -> Iterator[Binary]:
    return (n for n in walk_expr(expr) if isinstance(n, Binary) and n.op == "/")
