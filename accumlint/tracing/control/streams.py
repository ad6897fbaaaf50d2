"""Streams of items that are known, and what a loop tells of the items that it goes through."""

from __future__ import annotations

from collections.abc import Callable

from accumlint.reading import ir as p
from accumlint.tracing.values import Lazy, Object, Stream, Unknown, Value

# No list of items is longer.
LONGEST = 400


def adds_up_calls(node: p.Node | None) -> bool:
    """`for term in terms: total += term(output, target)`: somebody chose some of the terms."""
    if not isinstance(node, p.For) or not isinstance(node.target, p.Name):
        return False
    match node.body:
        case [p.Augment(op="+", value=value) | p.Assign(value=p.Binary(op="+") as value)]:
            calls = (n for n in p.walk_expr(value) if isinstance(n, p.Call))
            return any(p.dotted(c.func) == node.target.id for c in calls)
        case _:
            return False


def numbered(inner: Stream, start: int) -> Stream:
    """`enumerate`."""

    def count(body: Callable[[Value], None]) -> None:
        number = start

        def one(item: Value) -> None:
            nonlocal number
            at, number = number, number + 1
            body((at, item))

        inner.drive(one)

    return Stream(count, inner.loader, inner.rounds)


def mapped(inner: Stream, make: Callable[[Value], Value]) -> Stream:
    """What is made of each item of another stream."""
    return Stream(lambda body: inner.drive(lambda item: body(make(item))), inner.loader)


def each_of(items: list[Value], loader: bool = False) -> Stream:
    def drive(body: Callable[[Value], None]) -> None:
        for item in items:
            body(item)

    return Stream(drive, loader)


def repeated(times: int, body: Callable[[], None]) -> None:
    for _ in range(times):
        body()


def compared_with_number(node: p.Node | None) -> frozenset[str]:
    """The names that a loop compares its own number with (`i < cycles - 1`)."""
    if not isinstance(node, p.For):
        return frozenset()
    own = p.target_names(node.target)
    compared = (n for n in p.walk(node.body, into_functions=False) if isinstance(n, p.Compare))
    read = ({n.id for n in p.walk_expr(c) if isinstance(n, p.Name)} for c in compared)
    return frozenset[str]().union(*(r - own for r in read if r & own))


def asks_a_length(node: p.Node | None) -> bool:
    """True for a loop whose number of rounds is not written as a number."""
    return isinstance(node, p.For) and not any(
        isinstance(n, p.Const) and n.value not in (0, 1) for n in p.walk_expr(node.iterable)
    )


def is_fixed(value: Value) -> bool:
    return isinstance(value, list | tuple | dict) or (
        isinstance(value, Object) and value.role not in ("", "loader")
    )


def counts(function: p.Function) -> bool:
    """True for a generator that gives a number of items (`for _ in range(self.size)`): a window, and no epoch."""
    loops = [
        n
        for n in p.walk(function.body, into_functions=False)
        if isinstance(n, p.For)
        and any(isinstance(i, p.Yield) for i in p.walk(n.body, into_functions=False))
    ]
    return bool(loops) and all(
        isinstance(n.iterable, p.Call)
        and p.dotted(n.iterable.func) == "range"
        and "len(" not in p.render(n.iterable)
        for n in loops
    )


def text_of(value: Value) -> str:
    return value.text if isinstance(value, Unknown | Object) else "…"


def alike(source: Value, item: Value) -> Value:
    """What comes beside `item` in a zip: data of the same micro-batch, with its gradients, or the object itself."""
    if isinstance(source, Object) and source.role != "loader":
        return source
    found = Unknown(
        f"{text_of(source)}[…]", item.batches if isinstance(item, Unknown) else frozenset()
    )
    if isinstance(source, Unknown):
        found.networks, found.forwards = source.networks, source.forwards
    return found


def counted(value: Value, items: Callable[[Value, int], list[Value]]) -> Value:
    """Numbers that go round or go on (`cycle(range(1, n + 1))`, `count()`) as the numbers themselves."""
    match value:
        case Lazy(kind="count", args=args):
            start = args[0] if args and isinstance(args[0], int) else 0
            return list(range(start, start + LONGEST))
        case Lazy(kind="cycle", args=[Lazy(kind="range") | list() as inner]):
            numbers = items(inner, LONGEST)
            rounds = LONGEST // len(numbers) if numbers else 0
            return numbers * rounds if all(isinstance(i, int) for i in numbers) else value
        case _:
            return value
