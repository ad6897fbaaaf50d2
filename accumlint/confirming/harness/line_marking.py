"""Gives a script's modules the text they are to have, and has flagged lines say that they are reached."""

from __future__ import annotations

import ast
import builtins
import importlib.machinery
from collections.abc import Callable, Collection, Mapping
from types import CodeType
from typing import Any

_REACHED = "__accumlint_reached__"
_BODIES = ("body", "orelse", "finalbody")


def compiled(text: str, file: str, lines: Collection[int]) -> CodeType:
    """The code of a module, in which each of `lines` says so right before it is run.

    Raises:
        SyntaxError: where `text` is no Python.
    """
    tree = ast.parse(text, file)
    for line in lines:
        _mark(tree, file, line)
    return compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True)


def _mark(tree: ast.Module, file: str, line: int) -> None:
    """Puts a call in front of the innermost statement that a line belongs to."""
    body: list[ast.stmt] | None = tree.body
    place: tuple[list[ast.stmt], ast.stmt] | None = None
    while body is not None:
        inside = [s for s in body if s.lineno <= line <= (s.end_lineno or s.lineno)]
        if not inside:
            break
        place = body, inside[-1]
        body = next((b for b in _bodies(inside[-1]) if _covers(b, line)), None)
    if place is not None:
        arguments: list[ast.expr] = [ast.Constant(file), ast.Constant(line)]
        call = ast.Expr(ast.Call(ast.Name(_REACHED, ast.Load()), arguments, []))
        place[0].insert(place[0].index(place[1]), ast.copy_location(call, place[1]))


def _bodies(statement: ast.stmt) -> list[list[ast.stmt]]:
    found = [getattr(statement, name, None) for name in _BODIES]
    found += [part.body for name in ("handlers", "cases") for part in getattr(statement, name, ())]
    return [body for body in found if body]


def _covers(body: list[ast.stmt], line: int) -> bool:
    return body[0].lineno <= line <= (body[-1].end_lineno or body[-1].lineno)


def enter(
    texts: Mapping[str, str],
    lines: Mapping[str, Collection[int]],
    reached: Callable[[str, int], None],
    patch: Callable[[Any, str, Any], None],
) -> None:
    """From here on modules whose files are among `texts` are made of these; `reached` hears of flagged lines."""
    setattr(builtins, _REACHED, reached)
    loader = importlib.machinery.SourceFileLoader
    usual = loader.get_code

    def get_code(self: Any, fullname: str) -> CodeType | None:
        file = self.get_filename(fullname)
        if file in texts:
            return compiled(texts[file], file, lines.get(file, ()))
        return usual(self, fullname)

    patch(loader, "get_code", get_code)
