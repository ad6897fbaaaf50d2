"""A GradScaler's steps and updates as they are written, where no run tells more."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from accumlint.reading.frameworks import CLIPS
from accumlint.reading.ir import (
    Assign,
    Call,
    Const,
    Expr,
    For,
    If,
    Name,
    Node,
    dotted,
    render,
    walk,
    walk_expr,
)
from accumlint.reading.names import is_clip
from accumlint.reading.program import Program

from ._calls import receiver_of, takes_nothing

_HEALTH = re.compile(r"(^|[^a-z])(nans?|infs?|non_?finite|overflow)($|[^a-z])|is_?(nan|inf|finite)")
_GRADIENTS = {"unscale_", *CLIPS}


def one_sided_updates(program: Program) -> Iterator[tuple[If, Call]]:
    """Each guard against NaN gradients that has a step and its scaler's update on one side, and no update besides."""
    for function in program.functions:
        if not any(call.endswith(".update") for call in function.calls):
            continue
        nodes = list(walk(function.body, into_functions=False))
        called = {_method(n) for n in nodes if isinstance(n, Call)}
        if not (called & _GRADIENTS or any(map(is_clip, called))):
            continue
        updates = [n for n in nodes if isinstance(n, Call) and is_update(n)]
        for guard in nodes:
            if not isinstance(guard, If) or not _asks_health(guard.test, nodes):
                continue
            for side, other in ((guard.body, guard.orelse), (guard.orelse, guard.body)):
                held = list(walk(side, into_functions=False))
                inside = [u for u in updates if u in held]
                if (
                    len(inside) == len(updates) == 1
                    and receiver_of(inside[0]) in stepping(side)
                    and not any(_method(n) in ("backward", "update") for n in walk(other))
                    and not any(_method(n) == "backward" for n in walk(side))
                ):
                    yield guard, inside[0]


def _asks_health(test: Expr, nodes: list[Node]) -> bool:
    """True for a test whether gradients are finite, or of a flag that such a test sets."""
    if _HEALTH.search(render(test).lower()):
        return True
    flags = {n.id for n in walk_expr(test) if isinstance(n, Name)}
    return any(
        isinstance(s, Assign)
        and isinstance(s.value, Const)
        and flags & {dotted(t) for t in s.targets}
        for guard in nodes
        if isinstance(guard, If) and _HEALTH.search(render(guard.test).lower())
        for s in guard.body
    )


def updates_between_steps(program: Program) -> Iterator[tuple[For, Call]]:
    """Each update of one scaler in a loop over optimizers that only steps them."""
    for loop in program.of(For):
        if not isinstance(loop.target, Name):
            continue
        nodes = [n for n in walk(loop.body) if isinstance(n, Call)]
        if any(_method(n) in ("backward", "scale", "manual_backward") for n in nodes):
            continue
        own = {
            receiver_of(n)
            for n in nodes
            if _method(n) == "step" and any(render(a.value) == loop.target.id for a in n.args)
        }
        for node in nodes:
            if is_update(node) and receiver_of(node) in own - {loop.target.id}:
                yield loop, node


def stepping(block: Iterable[Node]) -> set[str]:
    """What is told `….step(optimizer)` in a block."""
    return {
        receiver_of(n)
        for n in walk(tuple(block), into_functions=False)
        if isinstance(n, Call) and _method(n) == "step" and n.args and receiver_of(n)
    }


def is_update(node: Node) -> bool:
    """True for `scaler.update()`."""
    return takes_nothing(node) and _method(node) == "update" and bool(receiver_of(node))


def _method(node: Node) -> str:
    """The last name of what is called, "" for anything but a call."""
    return render(node.func).rpartition(".")[2] if isinstance(node, Call) else ""
