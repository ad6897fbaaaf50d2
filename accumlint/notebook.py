"""Reads a Jupyter notebook as one program, and tells where each of its places stands in cell and file."""

from __future__ import annotations

import ast
import json
import re
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from accumlint.place import Place
from accumlint.report import Cell, Mark
from accumlint.source import UndecodableSource, line_starts, lines

_SPACE = re.compile(r"[ \t\n\r]*")
# One character of a JSON string, as it is written.
_WRITTEN = re.compile(r"\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w|\\u\w{4}|\\.|.", re.DOTALL)
# Cell magics whose cell is Python all the same.
_PYTHON_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun")
_MAGIC = re.compile(r"\s*(?:[%!?]|.*\?\s*$)")
_ASSIGNED = re.compile(r"(\s*[\w.,\s\[\]]+=\s*)[%!]")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class _Piece:
    """A string of a cell's source, and where its first character stands in the file's text."""

    text: str
    start: int


@dataclass(frozen=True)
class _Code:
    """A code cell: its lines as they are, and the first of them in the program."""

    cell: Cell
    pieces: tuple[_Piece, ...]
    rows: Sequence[str]
    first: int


@dataclass(frozen=True)
class Notebook:
    """The code cells of a notebook as one program, in their order; magics and shell lines do nothing in it."""

    raw: str
    codes: tuple[_Code, ...]
    text: str

    def mark(self, place: Place, message: str = "") -> Mark:
        """A place of the program as a place in its cell and in the file."""
        code = self._code(place.line)
        row, end_row = place.line - code.first + 1, place.end_line - code.first + 1
        inside = Place(row, place.column, end_row, place.end_column)
        start, end = (
            self._in_file(code, row, place.column),
            self._in_file(code, end_row, place.end_column),
        )
        raw = Place(*start, *end)
        return Mark(inside, code.rows[row - 1], message, code.cell, raw)

    def line(self, line: int) -> int:
        """The line in the file that holds a line of the program."""
        code = self._code(line)
        return self._in_file(code, line - code.first + 1, 1)[0]

    def _code(self, line: int) -> _Code:
        """The cell that holds a line of the program; the blank line behind a cell is its own."""
        return self.codes[max(bisect_right([code.first for code in self.codes], line) - 1, 0)]

    def _in_file(self, code: _Code, row: int, column: int) -> tuple[int, int]:
        source = "".join(piece.text for piece in code.pieces)
        starts = line_starts(source)
        offset = min(starts[min(row, len(starts)) - 1] + column - 1, len(source))
        for piece in code.pieces:
            if offset < len(piece.text) or piece is code.pieces[-1]:
                return self._position(piece, offset)
            offset -= len(piece.text)
        return 1, 1

    def _position(self, piece: _Piece, offset: int) -> tuple[int, int]:
        """Line and column, from 1, of a character of a string as it is written in the file."""
        at = piece.start
        for _ in range(offset):
            match = _WRITTEN.match(self.raw, at)
            at = match.end() if match else at
        line = bisect_right(self._line_starts, at)
        return line, at - self._line_starts[line - 1] + 1

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.raw))]


def read(data: bytes) -> Notebook | None:
    """The notebook in these bytes, None where it is written in another language than Python.

    Raises:
        UndecodableSource: when they are no notebook.
    """
    try:
        raw = data.decode("utf-8-sig")
        document: object = json.loads(raw)
    except UnicodeDecodeError:
        raise UndecodableSource("is no notebook: it is not UTF-8") from None
    except json.JSONDecodeError as problem:
        raise UndecodableSource(f"is no notebook: {problem.msg}", problem.lineno) from None
    except (RecursionError, ValueError):
        raise UndecodableSource("is no notebook: its JSON cannot be read") from None
    held = _object(document)
    cells = held.get("cells")
    if not isinstance(cells, list):
        old = "worksheets" in held
        why = (
            "its format is older than 4; `jupyter nbconvert` renews it"
            if old
            else "it has no cells"
        )
        raise UndecodableSource(f"is no notebook that can be read: {why}")
    if _language(held) not in ("python", "ipython"):
        return None
    codes = tuple(_codes(raw, cast("list[object]", cells)))
    rows = [row for code in codes for row in (*_plain(code.rows), "")]
    return Notebook(raw, codes, "\n".join(rows) + "\n")


def _codes(raw: str, cells: Sequence[object]) -> Iterator[_Code]:
    start = next((at for key, at in _members(raw, _skip(raw, 0)) if key == "cells"), 0)
    first = 1
    for number, (cell, at) in enumerate(zip(cells, _items(raw, start), strict=True), 1):
        held = _object(cell)
        if held.get("cell_type") != "code":
            continue
        pieces = tuple(_pieces(raw, held, at, number))
        rows = lines("".join(piece.text for piece in pieces))
        name = held.get("id")
        yield _Code(Cell(number, name if isinstance(name, str) else ""), pieces, rows, first)
        first += len(rows) + 1


def _pieces(raw: str, cell: Mapping[str, object], at: int, number: int) -> Iterator[_Piece]:
    source = cell.get("source")
    starts = [start for key, start in _members(raw, at) if key == "source"]
    if isinstance(source, str):
        yield _Piece(source, starts[-1] + 1)
        return
    strings = cast("list[object]", source if isinstance(source, list) else [None])
    for string, start in zip(strings, _items(raw, starts[-1]) if starts else [0], strict=False):
        if not isinstance(string, str):
            line = raw.count("\n", 0, start or at) + 1
            raise UndecodableSource(f"is no notebook: cell {number} has no source", line)
        yield _Piece(string, start + 1)


def _plain(rows: Sequence[str]) -> list[str]:
    """The lines of a cell with what is no Python taken out; a line stays a line."""
    plain = list(rows)
    head = next((index for index, row in enumerate(rows) if row.strip()), 0)
    if rows[head].startswith("%%"):
        if rows[head].split()[0] not in _PYTHON_CELLS:
            return [""] * len(rows)
        plain[head] = ""
    # What Python can read is no magic: `%` may begin a line of a long expression.
    while (wrong := _first_wrong(plain)) is not None:
        row = plain[wrong]
        if match := _ASSIGNED.match(row):
            plain[wrong] = f"{match[1]}None"
        elif _MAGIC.match(row):
            plain[wrong] = row[: len(row) - len(row.lstrip())] + "pass"
        else:
            break
        while row.endswith("\\") and wrong + 1 < len(plain):
            wrong += 1
            row = plain[wrong]
            plain[wrong] = ""
    return plain


def _first_wrong(rows: Sequence[str]) -> int | None:
    """The line of the first syntax error, from 0."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse("\n".join(rows))
    except SyntaxError as problem:
        return min(max((problem.lineno or 1) - 1, 0), len(rows) - 1)
    except (ValueError, RecursionError, MemoryError):
        return None
    return None


def _language(document: Mapping[str, object]) -> str:
    metadata = _object(document.get("metadata"))
    kernel, info = _object(metadata.get("kernelspec")), _object(metadata.get("language_info"))
    named = info.get("name") or kernel.get("language") or "python"
    return str(named).lower()


def _object(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value if isinstance(value, dict) else {})


def _members(raw: str, at: int) -> Iterator[tuple[str, int]]:
    """The keys of the object that starts at an offset of valid JSON, each with the offset of its value."""
    at = _skip(raw, at + 1)
    while raw[at] != "}":
        key, end = cast("tuple[str, int]", _DECODER.raw_decode(raw, at))
        value = _skip(raw, _skip(raw, end) + 1)
        yield key, value
        at = _next(raw, value)


def _items(raw: str, at: int) -> Iterator[int]:
    """The offsets of the values of the list that starts at an offset of valid JSON."""
    at = _skip(raw, at + 1)
    while raw[at] != "]":
        yield at
        at = _next(raw, at)


def _next(raw: str, at: int) -> int:
    """The offset behind a value and its comma."""
    end = _skip(raw, cast("tuple[object, int]", _DECODER.raw_decode(raw, at))[1])
    return _skip(raw, end + 1) if raw[end] == "," else end


def _skip(raw: str, at: int) -> int:
    match = _SPACE.match(raw, at)
    return match.end() if match else at
