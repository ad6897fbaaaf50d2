"""Parses a file, or a part of one, and tells where its nodes stand."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import cast

import libcst as cst
from libcst.metadata import CodeRange, PositionProvider

from accumlint.place import Place
from accumlint.reading.lowering import lowered
from accumlint.reading.program import Source, Stmt
from accumlint.reading.surroundings import Surroundings, surroundings


class UnreadableSource(Exception):
    """The source is no Python that can be read; `line` is where (0 when unknown)."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


def parsed(text: str, source: Source, first: int = 1, indent: int = 0) -> tuple[Stmt, ...]:
    """The statements in `text`, a part of `source` that begins on line `first` and lost `indent` columns there.

    Raises:
        UnreadableSource: on a syntax error.
    """
    try:
        module = cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        raise UnreadableSource(f"syntax error: {_reason(error)}", error.raw_line) from error
    source.parts.append(_Places(module, source, first - 1, indent))
    return lowered(module, source)


def _reason(error: cst.ParserSyntaxError) -> str:
    """The parser's own words, on one line."""
    words = error.message.removeprefix("Syntax Error").strip(" .@:")
    return " ".join(words.split())[:120] or "not Python"


class _Places:
    """Positions, worked out for a whole part when the first is asked for: most need none."""

    def __init__(self, module: cst.Module, source: Source, above: int, indent: int) -> None:
        self.module = module
        self.source = source
        self.above = above
        self.indent = indent

    @cached_property
    def ranges(self) -> Mapping[cst.CSTNode, CodeRange]:
        return _Positions().of(self.module)

    def of(self, node: cst.CSTNode) -> Place | None:
        found = self.ranges.get(node)
        if found is None:
            return None
        start, end, left = found.start, found.end, self.indent + 1
        return Place(
            start.line + self.above, start.column + left, end.line + self.above, end.column + left
        )

    def around(self, node: cst.CSTNode) -> Surroundings:
        return surroundings(self.module, self.ranges, self.source.lines[self.above :], node)


class _Positions(PositionProvider):
    """libcst's positions without its `MetadataWrapper`, which would walk the whole tree twice more."""

    def of(self, module: cst.Module) -> Mapping[cst.CSTNode, CodeRange]:
        self._gen_impl(module)
        return cast("Mapping[cst.CSTNode, CodeRange]", self._computed)  # pyright: ignore[reportUnknownMemberType]
