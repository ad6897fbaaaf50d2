"""Makes nodes of Python's `ast` that stand where the user's stand."""

from __future__ import annotations

import ast
from typing import TypeVar

RUNTIME = "__accumlint__"
N = TypeVar("N", bound=ast.AST)


def failed() -> ast.expr:
    return loaded("__failed")


def tried(body: list[ast.stmt], mends: list[ast.stmt]) -> ast.Try:
    """Statements whose failure, under the name `__failed`, leads to others."""
    handler = ast.ExceptHandler(loaded("Exception"), "__failed", mends)
    return ast.Try(body, [handler], [], [])


def later(value: ast.expr) -> ast.expr:
    """A function that gives a value when it is called."""
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), value)


def loaded(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def constant(value: object) -> ast.expr:
    # Strings and tuples of them, nested: what is in a tuple that is met as an object, no annotation says, so pyright
    # is switched off for both lines below.
    if isinstance(value, tuple):
        return ast.Tuple([constant(v) for v in value], ast.Load())  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    return ast.Constant(value)  # pyright: ignore[reportArgumentType]


def runtime(name: str, *given: object, at: ast.AST | None = None) -> ast.Call:
    """A call of the runtime's, put where `at` stands; what is given and no expression is a constant."""
    args = [one if isinstance(one, ast.expr) else constant(one) for one in given]
    call = ast.Call(ast.Attribute(loaded(RUNTIME), name, ast.Load()), args, [])
    return placed(call, at) if at else call


def assigned(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def placed(node: N, place: ast.AST) -> N:
    """A made node, put where the user's stands."""
    for inner in ast.walk(node):
        if not hasattr(inner, "lineno") and isinstance(
            inner, ast.expr | ast.stmt | ast.excepthandler
        ):
            ast.copy_location(inner, place)
    return node


def listed(result: object) -> list[ast.stmt]:
    if isinstance(result, list):
        # A transformer gives statements only.
        return result  # pyright: ignore[reportUnknownVariableType]
    return [result] if isinstance(result, ast.stmt) else []
