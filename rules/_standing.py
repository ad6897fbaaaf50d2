"""What a name stands for, as far as its file tells."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.reading.program import Attr, Expr, Name, Program, render, walk_expr


def stands_for(program: Program, argument: Expr) -> tuple[Expr, ...]:
    """An argument and all that is ever assigned or given to the names in it."""
    found: list[Expr] = []
    known: set[str] = set()
    waiting = [argument]
    while waiting:
        expression = waiting.pop()
        found.append(expression)
        for name in dict.fromkeys(_names(expression)):
            if name not in known:
                known.add(name)
                waiting.extend(program.assigned.get(name, ()))
                waiting.extend(_given(program, name))
    return tuple(found)


def _given(program: Program, name: str) -> Iterator[Expr]:
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
