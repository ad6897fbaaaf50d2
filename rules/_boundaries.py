"""The tests by which a loop knows the last micro-batch of a window, and the bounds of what it counts."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.reading.ir import (
    Assign,
    Attr,
    Augment,
    Binary,
    Call,
    Compare,
    Expr,
    For,
    Function,
    If,
    Jump,
    Name,
    Node,
    Return,
    Sequence,
    Unary,
    While,
    dotted,
    render,
    target_names,
    walk,
    walk_expr,
)
from accumlint.reading.program import Program
from accumlint.tracing.trace import Window

from ._definitions import stands_for


def loop_of(program: Program, node: Node) -> For | While | None:
    """The innermost loop around a node."""
    return next((n for n in program.above(node) if isinstance(n, For | While)), None)


def loop_leading_to(program: Program, node: Node, calls: int = 4) -> For | While | None:
    """The innermost loop around a node, or around what calls the function that it stands in."""
    loop = loop_of(program, node)
    function = program.function_around(node)
    if loop is not None or function is None or not calls:
        return loop
    callers = program.calls.get(function.name, ())
    found = (loop_leading_to(program, call, calls - 1) for call in callers)
    return next((loop for loop in found if loop is not None), None)


def guard_of(program: Program, node: Node) -> If | None:
    """The innermost `if` under whose test a node stands, within its loop."""
    below = node
    for outer in program.above(node):
        if isinstance(outer, For | While):
            return None
        if isinstance(outer, If) and below in outer.body:
            return outer
        below = outer
    return None


def boundary_tests(program: Program, window: Window) -> Iterator[str]:
    """How the window's last micro-batch is told: by the test that guards the step, or by the loop in front of it."""
    guard = guard_of(program, window.step.node)
    if guard is not None:
        yield program.code(guard.test)
    for backward in window.backwards[-1:]:
        match loop_of(program, backward.node):
            case For(target=Name(id=index), iterable=Call(func=Name(id="range"), args=[steps])):
                yield f"{index} + 1 == {program.code(steps.value)}"
            case _:
                pass


def boundary_of(program: Program, step: Node) -> Expr | None:
    """What the guard of a step asks: its test, or what the name in it was worked out from in the same round."""
    guard = guard_of(program, step)
    if guard is not None and isinstance(guard.test, Name):
        values = program.assigned.get(guard.test.id, ())
        if len(values) == 1 and loop_of(program, values[0]) is loop_of(program, guard):
            return values[0]
    return guard.test if guard is not None else None


def remainders(test: Expr) -> Iterator[Binary]:
    """Each `counter % steps` in a test."""
    for node in walk_expr(test):
        if isinstance(node, Binary) and node.op == "%":
            yield node


def is_counted_by_the_caller(program: Program, step: Node) -> bool:
    """True for a boundary that asks for a count which came with the data, as one part of what a function is given."""
    guard = guard_of(program, step)
    function = program.function_around(step)
    if guard is None or function is None:
        return False
    counts = {
        n.id for r in remainders(guard.test) for n in walk_expr(r.left) if isinstance(n, Name)
    }
    given = {param.name for param in function.params}
    return any(
        isinstance(target, Sequence) and counts & target_names(target)
        for node in walk(function.body)
        if isinstance(node, Assign) and isinstance(node.value, Name) and node.value.id in given
        for target in node.targets
    )


def is_told_by_the_caller(entry: Function | None, step: Node) -> bool:
    """True for a step behind a flag that is given to the function where the run starts: nobody knows when it is set."""
    if entry is None:
        return False
    flags = {param.name for param in entry.params}
    behind = False
    for node in walk(entry.body):
        if node is step:
            break
        if isinstance(node, If) and not node.orelse and _flag(node.test) in flags:
            if step in walk(node.body):
                return True
            behind = behind or isinstance(node.body[-1], Return)
    return behind


def _flag(test: Expr) -> str:
    """The name that a test asks for, or for the opposite of."""
    bare = test.operand if isinstance(test, Unary) else test
    return bare.id if isinstance(bare, Name) else ""


def mentions(expr: Expr, name: str) -> bool:
    """True when an expression has a name or member of this name in it."""
    return name in render(expr).replace("(", ".").replace(")", ".").split(".")


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
            found = [
                bound
                for c in compared
                if _plain(c.left) in counters
                for op, bound in c.rest
                if op in ("<", "<=")
            ]
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
