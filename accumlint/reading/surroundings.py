"""Where a node stands: in which function or class, and in which statement."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import CodeRange

_STATEMENTS = (cst.SimpleStatementLine, cst.BaseCompoundStatement, cst.BaseSmallStatement)
_PIECE = re.compile(
    r"(?P<text>'''(?:\\.|[^\\])*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\"|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\")"
    r"|(?P<gap>(?:\s|\\\r?\n|#[^\n]*)+)"
    r"|(?P<comma>,(?=(?:\s|\\\r?\n|#[^\n]*)*[)\]}]))"
    r"|\w+|.",
    re.DOTALL,
)


@dataclass(frozen=True)
class Surroundings:
    """The qualified name of the function or class around a node, "" for the module, and its statement's normal form.

    Of a compound statement, only the head counts. `first` and `last` are the lines of the outermost loop around it in
    its function, of the function where there is none.
    """

    scope: str
    statement: str
    first: int
    last: int


def surroundings(
    module: cst.Module,
    ranges: Mapping[cst.CSTNode, CodeRange],
    lines: Sequence[str],
    node: cst.CSTNode,
) -> Surroundings:
    """What is around a node of a module, by the positions of all its nodes."""
    names: list[str] = []
    statement: cst.CSTNode = node
    within: cst.CSTNode = module
    for outer in _down_to(node, module, ranges):
        if isinstance(outer, _STATEMENTS):
            statement = outer
        if isinstance(outer, cst.FunctionDef | cst.ClassDef) and outer is not node:
            names.append(outer.name.value)
            within = outer
        elif isinstance(outer, cst.For | cst.While) and not isinstance(within, cst.For | cst.While):
            within = outer
    place = ranges[statement]
    start, end = place.start, place.end
    body = getattr(statement, "body", None)
    if isinstance(body, cst.BaseSuite):
        end = ranges[body].start
    held = [*lines[start.line - 1 : end.line]]
    held[-1] = held[-1][: end.column]
    held[0] = held[0][start.column :]
    return Surroundings(
        ".".join(names), normal("\n".join(held)), ranges[within].start.line, ranges[within].end.line
    )


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


def _down_to(
    node: cst.CSTNode, module: cst.Module, ranges: Mapping[cst.CSTNode, CodeRange]
) -> Iterator[cst.CSTNode]:
    """The nodes below the module on the way down to a node, which is the last."""
    wanted = _span(ranges[node])
    current: cst.CSTNode = module
    while current is not node:
        inside = [
            child
            for child in current.children
            if child is node or (child in ranges and _holds(_span(ranges[child]), wanted))
        ]
        if not inside:
            return
        current = node if node in inside else inside[0]
        yield current


def _span(place: CodeRange) -> tuple[tuple[int, int], tuple[int, int]]:
    return (place.start.line, place.start.column), (place.end.line, place.end.column)


def _holds(
    outer: tuple[tuple[int, int], tuple[int, int]], inner: tuple[tuple[int, int], tuple[int, int]]
) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]
