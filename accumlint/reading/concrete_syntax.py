"""libcst's tree of a file, for what Python's own leaves out: brackets, comments, and what only a newer Python reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import cast

import libcst as cst
from libcst.metadata import CodeRange, PositionProvider

from accumlint.files.source import line_starts

_STAR = re.compile(r"except\s*(\*)")


def ranges(module: cst.Module) -> Mapping[cst.CSTNode, CodeRange]:
    """Where each node stands: lines from 1, columns from 0."""
    return _Positions().of(module)


def older(text: str) -> str | None:
    """The same program for an older Python, each line and column in its place; None where libcst cannot read it either.

    Type parameters and `except*` lose what is new in them, type aliases and f-strings are left out.
    """
    try:
        module = cst.parse_module(text)
    except cst.ParserSyntaxError:
        return None
    starts, places = line_starts(text), ranges(module)
    pieces = list(text)
    for node in _newer(module):
        place = places[node]
        start = starts[place.start.line - 1] + place.start.column
        end = starts[place.end.line - 1] + place.end.column
        match node:
            case cst.ExceptStarHandler():
                star = _STAR.match(text, start)
                if star is not None:
                    pieces[star.start(1)] = " "
            case cst.TypeParameters():
                pieces[start:end] = re.sub(r"[^\r\n](?=[\r\n])", r"\\", _blank(text[start:end]))
            case _:
                pieces[start:end] = _nothing(text[start:end])
    return "".join(pieces)


def _newer(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """What may be too new, nothing that stands in one another."""
    for child in node.children:
        match child:
            case cst.TypeParameters() | cst.TypeAlias():
                yield child
            case cst.BaseString():
                if _is_formatted(child):
                    yield child
            case _:
                if isinstance(child, cst.ExceptStarHandler):
                    yield child
                yield from _newer(child)


def _is_formatted(text: cst.BaseString) -> bool:
    if isinstance(text, cst.ConcatenatedString):
        return _is_formatted(text.left) or _is_formatted(text.right)
    return not isinstance(text, cst.SimpleString)


def _nothing(piece: str) -> str:
    """An empty text over the same lines and columns."""
    blank = _blank(piece)
    return f'(""{blank[3:-1]})' if len(piece) > 3 else '""' + blank[2:]


def _blank(piece: str) -> str:
    return re.sub(r"[^\r\n]", " ", piece)


class _Positions(PositionProvider):
    """libcst's positions without its `MetadataWrapper`, which would walk the whole tree twice more."""

    def of(self, module: cst.Module) -> Mapping[cst.CSTNode, CodeRange]:
        self._gen_impl(module)
        return cast("Mapping[cst.CSTNode, CodeRange]", self._computed)  # pyright: ignore[reportUnknownMemberType]
