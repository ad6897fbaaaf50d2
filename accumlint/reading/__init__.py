"""Reads a source file into a `Program`."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from accumlint.reading.lowering import lowered
from accumlint.reading.program import Place, Program


class UnreadableSource(Exception):
    """The source is no Python that can be read; `line` is where (0 when unknown)."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


def read(text: str, path: str) -> Program:
    """The program in `text`.

    Raises:
        UnreadableSource: on a syntax error, or nesting too deep for the parser.
    """
    try:
        module = cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        raise UnreadableSource("syntax error", error.raw_line) from error
    except RecursionError as error:
        raise UnreadableSource("nested too deeply to be read", 0) from error
    places = _Places(module)
    return Program(path, text.splitlines(), lowered(module), places.of)


class _Places:
    """Positions, worked out for the whole file when the first is asked for: most files need none."""

    def __init__(self, module: cst.Module) -> None:
        self.module = module
        self.ranges: Mapping[cst.CSTNode, CodeRange] | None = None

    def of(self, node: cst.CSTNode) -> Place:
        if self.ranges is None:
            # The wrapper must not copy the module: the program's nodes point into this very tree.
            wrapper = MetadataWrapper(self.module, unsafe_skip_copy=True)
            self.ranges = wrapper.resolve(PositionProvider)
        found = self.ranges[node]
        return Place(
            found.start.line, found.start.column + 1, found.end.line, found.end.column + 1
        )
