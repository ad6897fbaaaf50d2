"""What a name stands for, as far as its file tells."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.reading.ir import Attr, Call, Comprehension, Expr, Name, Node, render, walk_expr
from accumlint.reading.program import Program


def stands_for(program: Program, argument: Expr, *, number: bool = False) -> tuple[Expr, ...]:
    """An argument and all that is ever assigned or given to the names in it.

    A `number` is asked for what it is made of: `len(loader)` does not say how the loader was built, nor `args.epochs`
    how all the settings were.
    """
    found: list[Expr] = []
    known: set[str] = set()
    waiting = [argument]
    while waiting:
        expression = waiting.pop()
        found.append(expression)
        for name in dict.fromkeys(_factors(expression) if number else _names(expression)):
            if name not in known:
                known.add(name)
                waiting.extend(program.assigned.get(name, ()))
                waiting.extend(_arguments_for(program, name))
    return tuple(found)


def _arguments_for(program: Program, name: str) -> Iterator[Expr]:
    """What the file's own calls give the parameters of a name."""
    for function in program.functions:
        names = [q.name for q in function.params]
        if name in names:
            position = names.index(name) - (names[0] in ("self", "cls"))
            for call in program.calls.get(function.name, ()):
                value = call.keyword(name) or call.positional(position)
                if value is not None:
                    yield value


def _names(expression: Expr) -> Iterator[str]:
    return (render(n) for n in walk_expr(expression) if isinstance(n, Attr | Name))


def _factors(expression: Expr) -> Iterator[str]:
    """The names whose values make a number."""
    inside = {
        part
        for node in walk_expr(expression)
        for whole in _holders(node)
        for part in walk_expr(whole)
    }
    return (
        render(n) for n in walk_expr(expression) if isinstance(n, Attr | Name) and n not in inside
    )


def _holders(node: Node) -> Iterator[Expr]:
    """What a length is the length of, what is summed over, and what an attribute belongs to."""
    match node:
        case Comprehension(clauses=clauses):
            yield from (iterable for _, iterable, _ in clauses)
        case Call(func=Name(id="len"), args=args):
            yield from (argument.value for argument in args)
        case Attr(base=base):
            yield base
        case _:
            pass
