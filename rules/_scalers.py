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
    called,
    dotted,
    names_in,
    render,
    walk,
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
        methods = set(map(called, nodes))
        if not (methods & _GRADIENTS or any(map(is_clip, methods))):
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
                    and not any(called(n) in ("backward", "update") for n in walk(other))
                    and not any(called(n) == "backward" for n in walk(side))
                ):
                    yield guard, inside[0]


def _asks_health(test: Expr, nodes: list[Node]) -> bool:
    """True for a test whether gradients are finite, or of a flag that such a test sets."""
    if _HEALTH.search(render(test).lower()):
        return True
    guards = (n for n in nodes if isinstance(n, If) and _HEALTH.search(render(n.test).lower()))
    flags = (s for guard in guards for s in guard.body if isinstance(s, Assign))
    set_to = (t for s in flags if isinstance(s.value, Const) for t in s.targets)
    return not names_in(test).isdisjoint(map(dotted, set_to))


def updates_between_steps(program: Program) -> Iterator[tuple[For, Call]]:
    """Each update of one scaler in a loop over optimizers that only steps them."""
    for loop in program.of(For):
        if not isinstance(loop.target, Name):
            continue
        nodes = [n for n in walk(loop.body) if isinstance(n, Call)]
        if any(called(n) in ("backward", "scale", "manual_backward") for n in nodes):
            continue
        own = {
            receiver_of(n)
            for n in nodes
            if called(n) == "step" and any(render(a.value) == loop.target.id for a in n.args)
        }
        for node in nodes:
            if is_update(node) and receiver_of(node) in own - {loop.target.id}:
                yield loop, node


def stepping(block: Iterable[Node]) -> set[str]:
    """What is told `….step(optimizer)` in a block."""
    return {
        receiver_of(n)
        for n in walk(tuple(block), into_functions=False)
        if isinstance(n, Call) and called(n) == "step" and n.args and receiver_of(n)
    }


def is_update(node: Node) -> bool:
    """True for `scaler.update()`."""
    return takes_nothing(node) and called(node) == "update" and bool(receiver_of(node))
