"""The part of a file that its edits may depend on: libcst takes a hundred times as long for a line as Python does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from accumlint.reading.program import Node, Source
from accumlint.source import line_starts

_LINE_END = re.compile("\r\n|\r|\n")
_Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"


def excerpt(source: Source, nodes: Iterable[Node]) -> str:
    """The text with empty bodies for the functions in which none of the nodes stands, each line in its place.

    It is the whole text when a node stands outside of functions: what any of them names may matter there.
    """
    wanted = {source.place(node.at).line for node in nodes if source.holds(node)}
    functions = list(_functions(source.tree.body))
    held = {line for f in functions for line in wanted if _first(f) <= line <= _last(f)}
    if held != wanted:
        return source.text
    starts = [*line_starts(source.text), len(source.text)]
    parts: list[str] = []
    done = 0
    for function in functions:
        first, last = _first(function.body[0]), _last(function)
        indentation = source.lines[first - 1][: function.body[0].col_offset]
        # A body may begin on the line on which the function's head ends.
        if indentation.strip() or any(_first(function) <= line <= last for line in wanted):
            continue
        start, end = starts[first - 1], starts[last]
        ends = "".join(_LINE_END.findall(source.text, start, end))
        parts += (source.text[done:start], indentation, "...", ends)
        done = end
    return "".join([*parts, source.text[done:]])


def _functions(body: Iterable[ast.stmt]) -> Iterator[_Function]:
    """The functions at the top of a file and the methods of its classes, in the order of the text."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement
        elif isinstance(statement, ast.ClassDef):
            yield from _functions(statement.body)


def _first(statement: ast.stmt) -> int:
    """The line on which a statement begins, with its decorators."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def _last(statement: ast.stmt) -> int:
    return statement.end_lineno or statement.lineno
