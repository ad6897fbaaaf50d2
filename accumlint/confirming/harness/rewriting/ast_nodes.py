"""Builds `ast` nodes with the location of a user's node."""

from __future__ import annotations

import ast
from typing import TypeVar

RUNTIME = "__accumlint__"
N = TypeVar("N", bound=ast.AST)


def failed() -> ast.expr:
    return loaded("__failed")


def tried(body: list[ast.stmt], mends: list[ast.stmt]) -> ast.Try:
    """A try statement whose handler binds the exception to `__failed`."""
    handler = ast.ExceptHandler(loaded("Exception"), "__failed", mends)
    return ast.Try(body, [handler], [], [])


def later(value: ast.expr) -> ast.expr:
    """A lambda that returns the value."""
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), value)


def loaded(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def constant(value: object) -> ast.expr:
    # Strings and nested tuples of them: pyright cannot infer the type of the elements.
    if isinstance(value, tuple):
        return ast.Tuple([constant(v) for v in value], ast.Load())  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    return ast.Constant(value)  # pyright: ignore[reportArgumentType]


def runtime(name: str, *arguments: object, at: ast.AST | None = None) -> ast.Call:
    """A call of the runtime, located at `at`; arguments that are no expressions become constants."""
    args = [
        argument if isinstance(argument, ast.expr) else constant(argument) for argument in arguments
    ]
    call = ast.Call(ast.Attribute(loaded(RUNTIME), name, ast.Load()), args, [])
    return placed(call, at) if at else call


def assigned(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def placed(node: N, place: ast.AST) -> N:
    """A new node with the location of the user's node."""
    for inner in ast.walk(node):
        if not hasattr(inner, "lineno") and isinstance(
            inner, ast.expr | ast.stmt | ast.excepthandler
        ):
            ast.copy_location(inner, place)
    return node


def listed(result: object) -> list[ast.stmt]:
    if isinstance(result, list):
        # A transformer returns statements only.
        return result  # pyright: ignore[reportUnknownVariableType]
    return [result] if isinstance(result, ast.stmt) else []
