"""Where a node stands: in which function or class, and in which statement."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from accumlint.common.frozen import frozen
from accumlint.reading.syntax import Source

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_PIECE = re.compile(
    r"(?P<text>'''(?:\\.|[^\\])*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\"|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\")"
    r"|(?P<gap>(?:\s|\\\r?\n|#[^\n]*)+)"
    r"|(?P<comma>,(?=(?:\s|\\\r?\n|#[^\n]*)*[)\]}]))"
    r"|\w+|.",
    re.DOTALL,
)


@frozen
class Surroundings:
    """The qualified name of the function or class around a node, "" for the module, and its statement's normal form.

    Of a compound statement, only the head counts. `first` and `last` are the lines of the outermost loop around it in
    its function, of the function where there is none.
    """

    scope: str
    statement: str
    first: int
    last: int


def surroundings(source: Source, node: ast.AST) -> Surroundings:
    """What is around a node of a file."""
    names: list[str] = []
    statement = node
    within: ast.AST = source.tree
    for outer in _down_to(node, source):
        if isinstance(outer, ast.stmt):
            statement = outer
        if isinstance(outer, _SCOPES) and outer is not node:
            names.append(outer.name)
            within = outer
        elif isinstance(outer, _LOOPS) and not isinstance(within, _LOOPS):
            within = outer
    place = source.place(statement)
    line, column = place.end_line, place.end_column
    body: list[ast.stmt] = getattr(statement, "body", [])
    if isinstance(statement, ast.stmt) and body:
        first = source.place(body[0])
        line, column = first.line, first.column
    held = source.lines[place.line - 1 : line]
    held[-1] = held[-1][: column - 1]
    held[0] = held[0][place.column - 1 :]
    whole = source.place(within)
    return Surroundings(".".join(names), normal("\n".join(held)), whole.line, whole.end_line)


def normal(code: str) -> str:
    """Code without comments, line breaks and other layout, so that a formatter does not change it."""
    pieces: list[str] = []
    gap = False
    for match in _PIECE.finditer(code):
        if match["gap"]:
            gap = True
        elif not match["comma"]:
            piece = match[0]
            if gap and pieces and _is_word(pieces[-1][-1]) and _is_word(piece[0]):
                pieces.append(" ")
            pieces.append(piece)
            gap = False
    return "".join(pieces)


def _is_word(char: str) -> bool:
    return char.isalnum() or char in "_'\""


def _down_to(node: ast.AST, source: Source) -> Iterator[ast.AST]:
    """The nodes below the module on the way down to a node, which is the last."""
    wanted = source.place(node)
    current: ast.AST = source.tree
    while current is not node:
        inside = [
            c
            for c in _below(current)
            # The lines are asked first: working out a place takes longer, and a module may have many statements.
            if c is node
            or (
                c.lineno <= wanted.line <= (c.end_lineno or c.lineno)
                and wanted.is_within(source.place(c))
            )
        ]
        if not inside:
            return
        current = node if node in inside else inside[0]
        yield current


def _below(node: ast.AST) -> Iterator[ast.stmt | ast.expr]:
    """The nearest statements and expressions below a node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.expr):
            yield child
        else:
            yield from _below(child)
