"""Calls as the user wrote them, and where the calls of one update end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from accumlint.editing import After, Delete, Guard, Insert, Move, Verb, Where
from accumlint.reading.ir import Attr, Call, Expr, Name, Node, dotted
from accumlint.reading.program import Program
from accumlint.rule import Fix, safe
from accumlint.tracing.trace import Backward, Run, Step, Trace, Update, Window


def receiver_of(node: Node) -> str:
    """`scaler` of `scaler.step(optimizer)`, "" where the receiver is no plain name."""
    if isinstance(node, Call) and isinstance(node.func, Attr):
        return _name(node.func.base)
    return ""


def argument_of(node: Node) -> str:
    """`optimizer` of `scaler.step(optimizer)`, "" where the only argument is no plain name."""
    if isinstance(node, Call) and len(node.args) == 1:
        return _name(node.args[0].value)
    return ""


def takes_nothing(node: Node) -> bool:
    """True for a call without arguments."""
    return isinstance(node, Call) and not node.args


def accelerators(program: Program) -> list[str]:
    """What is called as `….accumulate(model)` somewhere in the file, each name once."""
    calls = program.of(Call)
    found = (receiver_of(c) for c in calls if dotted(c.func).endswith(".accumulate"))
    return [name for name in dict.fromkeys(found) if name]


def taken(program: Program, call: Node, where: Where) -> Iterator[tuple[Verb, ...]]:
    """A call of its own taken elsewhere: moved, or made there and no longer where it stands."""
    yield (Move(call, where),)
    yield Delete(call), Insert(program.code(call), where)


def once_per_update(
    trace: Trace, window: Window, call: Node, what: str, make: Callable[..., Fix] = safe
) -> Iterator[Fix]:
    """Makes a call once per update: by Accelerate's own flag where the step waits for it, else behind the step."""
    for accelerator in accelerators(trace.program) if window.step.gated else ():
        test = f"{accelerator}.sync_gradients"
        yield make(f"{what} only when `{test}`", Guard(call, test))
    yield from after_update(trace, window, call, what, make)


def after_update(
    trace: Trace, window: Window, call: Node, what: str, make: Callable[..., Fix] = safe
) -> Iterator[Fix]:
    """Takes a call behind the step, or behind the scaler's update."""
    for last in ends_of_update(trace.main, window.step):
        for verbs in taken(trace.program, call, After(last.node)):
            yield make(f"{what} after the step", *verbs)


def ends_of_update(run: Run, step: Step) -> Iterator[Step | Update]:
    """The places behind which an update is over: the scaler's update where one follows, else the step itself."""
    for event in run.events[step.index + 1 :]:
        if isinstance(event, Backward):
            break
        if isinstance(event, Update) and event.scaler is step.scaler:
            yield event
            break
    yield step


def _name(expr: Expr) -> str:
    base = expr
    while isinstance(base, Attr):
        base = base.base
    return dotted(expr) if isinstance(base, Name) else ""
