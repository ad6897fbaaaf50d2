"""The tests by which a loop knows the last micro-batch of a window, and the bounds of what it counts."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import Enclose, Import, Rename, Verb
from accumlint.reading.frameworks import is_chance
from accumlint.reading.ir import (
    Assign,
    Attr,
    Augment,
    Binary,
    Call,
    Compare,
    Expr,
    For,
    If,
    Jump,
    Name,
    Node,
    Return,
    Sequence,
    While,
    dotted,
    names_in,
    render,
    target_names,
    walk,
    walk_expr,
)
from accumlint.reading.program import Program
from accumlint.tracing.trace import Window

from ._definitions import stands_for


def loop_leading_to(program: Program, node: Node, calls: int = 4) -> For | While | None:
    """The innermost loop around a node, or around what calls the function that it stands in."""
    loop = program.loop_around(node)
    function = program.function_around(node)
    if loop is not None or function is None or not calls:
        return loop
    callers = program.calls.get(function.name, ())
    found = (loop_leading_to(program, call, calls - 1) for call in callers)
    return next((loop for loop in found if loop is not None), None)


def boundary_tests(program: Program, window: Window) -> Iterator[str]:
    """How the window's last micro-batch is told: by the test that guards the step, or by the loop in front of it."""
    guard = program.guard_around(window.step.node)
    if guard is not None:
        yield program.code(guard.test)
    for backward in window.backwards[-1:]:
        match program.loop_around(backward.node):
            case For(target=Name(id=index), iterable=Call(func=Name(id="range"), args=[steps])):
                yield f"{index} + 1 == {program.code(steps.value)}"
            case _:
                pass


def under_no_sync(program: Program, window: Window, ddp: str = "") -> Iterator[tuple[Verb, ...]]:
    """Encloses what stands between a forward of `ddp` (by default: what it calls) and its backward."""
    for contribution in window.contributions[-1:]:
        forward = contribution.forward
        # A helper that is given the model may call it anywhere: its forward is no event.
        if forward is None or forward not in window.between:
            continue
        if not isinstance(forward.node, Call) or is_chance(dotted(forward.node.func)):
            continue
        name = ddp or dotted(forward.node.func)
        loop = program.loop_around(contribution.backward.node)
        for test in boundary_tests(program, window):
            verbs: list[Verb] = [Import("contextlib", "nullcontext")]
            if isinstance(loop, For) and isinstance(loop.target, Name) and loop.target.id == "_":
                verbs.append(Rename(loop.target, "micro_step"))
                test = test.replace("_ + 1", "micro_step + 1", 1)
            header = f"with nullcontext() if {test} else {name}.no_sync():"
            yield *verbs, Enclose(forward.node, contribution.backward.node, header)


def boundary_of(program: Program, step: Node) -> Expr | None:
    """What the guard of a step asks: its test, or what the name in it was worked out from in the same round."""
    guard = program.guard_around(step)
    if guard is not None and isinstance(guard.test, Name):
        values = program.assigned.get(guard.test.id, ())
        if len(values) == 1 and program.loop_around(values[0]) is program.loop_around(guard):
            return values[0]
    return guard.test if guard is not None else None


def remainders(test: Expr) -> Iterator[Binary]:
    """Each `counter % steps` in a test."""
    return (n for n in walk_expr(test) if isinstance(n, Binary) and n.op == "%")


def is_counted_by_the_caller(program: Program, step: Node) -> bool:
    """True for a boundary that asks for a count which came with the data, as one part of what a function is given."""
    guard = program.guard_around(step)
    function = program.function_around(step)
    if guard is None or function is None:
        return False
    counts = {name for r in remainders(guard.test) for name in names_in(r.left)}
    given = {param.name for param in function.params}
    parts = (n for n in walk(function.body) if isinstance(n, Assign) and dotted(n.value) in given)
    targets = (target for node in parts for target in node.targets)
    return any(isinstance(target, Sequence) and counts & target_names(target) for target in targets)


def ends(program: Program, loop: For | While, counters: set[str]) -> Iterator[Expr]:
    """The bounds, known by a name, that one of the counters runs up to in a loop, or is raised along with."""
    match loop:
        case For(target=target, iterable=iterable) if counters & {render(target), *raised(loop)}:
            parts = stands_for(program, iterable)
            calls = [n for part in parts for n in walk_expr(part) if isinstance(n, Call)]
            ranges = [c for c in calls if dotted(c.func).endswith("range")]
            found = [c.positional(1) or c.positional(0) for c in ranges]
        case While(test=test):
            compared = [n for n in walk_expr(test) if isinstance(n, Compare)]
            counted = [bound for c in compared if _plain(c.left) in counters for bound in c.rest]
            found = [bound for op, bound in counted if op in ("<", "<=")]
        case _:
            found = []
    for end in [*found, *_limits(loop, counters)]:
        # `range(1, steps + 1)` counts to the same number.
        plain = end.left if isinstance(end, Binary) and render(end.right) == "1" else end
        if isinstance(plain, Attr | Name):
            yield plain


def _limits(loop: For | While, counters: set[str]) -> Iterator[Expr]:
    """The limits at which a loop is left (`if step >= max_steps: break`) that one of the counters runs up to."""
    for guard in walk(loop.body, into_functions=False):
        match guard:
            case If(
                test=Compare(left=left, rest=[(">=" | ">" | "==", limit)]),
                body=[*_, Jump(kind="break") | Return()],
            ) if _plain(left) in counters:
                yield limit
            case _:
                pass


def _plain(counter: Expr) -> str:
    """`step` for `step + 1`, which is held against a limit as well."""
    raised = isinstance(counter, Binary) and counter.op == "+" and render(counter.right) == "1"
    return render(counter.left) if isinstance(counter, Binary) and raised else render(counter)


def raised(loop: For | While) -> set[str]:
    """What each round of the loop raises by one."""
    added = (s for s in loop.body if isinstance(s, Augment) and s.op == "+")
    return {render(s.target) for s in added if render(s.value) == "1"}
