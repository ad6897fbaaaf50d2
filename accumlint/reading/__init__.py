"""Reads a source file into a `Program`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from accumlint.place import Place
from accumlint.reading.lowering import lowered
from accumlint.reading.program import Program
from accumlint.reading.surroundings import Surroundings, surroundings
from accumlint.source import lines


class UnreadableSource(Exception):
    """The source is no Python that can be read; `line` is where (0 when unknown)."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


def read(text: str, path: str) -> Program:
    """The program in `text`.

    Raises:
        UnreadableSource: on a syntax error.
    """
    try:
        module = cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        raise UnreadableSource(f"syntax error: {_reason(error)}", error.raw_line) from error
    places = _Places(module, lines(text))
    return Program(path, places.lines, lowered(module), places.of, places.around, text, module)


def _reason(error: cst.ParserSyntaxError) -> str:
    """The parser's own words, on one line."""
    words = error.message.removeprefix("Syntax Error").strip(" .@:")
    return " ".join(words.split())[:120] or "not Python"


class _Places:
    """Positions, worked out for the whole file when the first is asked for: most files need none."""

    def __init__(self, module: cst.Module, lines: list[str]) -> None:
        self.module = module
        self.lines = lines

    @cached_property
    def ranges(self) -> Mapping[cst.CSTNode, CodeRange]:
        # The wrapper must not copy the module: the program's nodes point into this very tree.
        return MetadataWrapper(self.module, unsafe_skip_copy=True).resolve(PositionProvider)

    def around(self, node: cst.CSTNode) -> Surroundings:
        return surroundings(self.module, self.ranges, self.lines, node)

    def of(self, node: cst.CSTNode) -> Place:
        found = self.ranges[node]
        return Place(found.start.line, found.start.column + 1, found.end.line, found.end.column + 1)
