"""A notebook as one program, and where each of its places stands in cell and file."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from accumlint.common.frozen import frozen
from accumlint.common.place import Place
from accumlint.diagnostics.results.report import Cell, Edit, Fix, Mark
from accumlint.files.source import line_starts

# One character of a JSON string, as it is written.
_WRITTEN = re.compile(r"\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w|\\u\w{4}|\\.|.", re.DOTALL)


@frozen
class Piece:
    """A string of a cell's source, and where its first character stands in the file's text."""

    text: str
    start: int


@frozen
class Code:
    """A code cell: its lines as they are written and as the program has them, and the first of them in the program.

    `joint` is what stands in the file between two strings of the source, "" where the source is one string.
    """

    cell: Cell
    pieces: tuple[Piece, ...]
    joint: str
    rows: Sequence[str]
    plain: Sequence[str]
    first: int

    @cached_property
    def source(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    def offset(self, row: int, column: int) -> int:
        """The offset in the source of a row and column of the cell; behind the last row comes the source's end."""
        if row > len(self.rows):
            return len(self.source)
        return min(self._starts[row - 1] + column - 1, len(self.source))

    def edit(self, edit: Edit) -> Edit:
        """An edit of the program as one of the cell, with offsets in its source."""
        above = self.first - 1
        start = self.offset(edit.place.line - above, edit.place.column)
        end = self.offset(edit.place.end_line - above, edit.place.end_column)
        newline = "\r\n" if "\r\n" in self.source else "\n"
        content = edit.content.replace("\r\n", "\n").replace("\n", newline)
        # In the program the last row has an end, in the cell it need not have one.
        if edit.place.end_line - above > len(self.rows) and not self.source.endswith("\n"):
            if start == len(self.source):
                content = newline + content
            elif not content and self.source[:start].endswith(newline):
                start -= len(newline)
            content = content.removesuffix(newline)
        first, last = self.position(start), self.position(end)
        rows = self.rows[first[0] - 1], self.rows[last[0] - 1]
        return Edit(Place(*first, *last), start, end, content, rows, self.cell)

    def position(self, offset: int) -> tuple[int, int]:
        """Row and column, from 1, of an offset in the source."""
        row = bisect_right(self._starts, offset)
        return row, offset - self._starts[row - 1] + 1

    def is_as_written(self, place: Place) -> bool:
        """True when the cell has the rows of a place just as the program has them."""
        above = self.first - 1
        last = place.end_line - (place.end_column == 1)
        rows = slice(place.line - above - 1, max(place.line, last) - above)
        return self.rows[rows] == self.plain[rows]

    @cached_property
    def _starts(self) -> list[int]:
        return line_starts(self.source)


@frozen
class Notebook:
    """The code cells of a notebook as one program, in their order; magics and shell lines do nothing in it."""

    raw: str
    codes: tuple[Code, ...]

    @cached_property
    def text(self) -> str:
        """The program. A blank line stands behind each cell."""
        rows = [row for code in self.codes for row in (*code.plain, "")]
        return "\n".join(rows) + "\n"

    def mark(self, place: Place, message: str = "") -> Mark:
        """A place of the program as a place in its cell and in the file."""
        code = self._code(place.line)
        above = code.first - 1
        inside = replace(place, line=place.line - above, end_line=place.end_line - above)
        raw = Place(
            *self._position(self._at(code, code.offset(inside.line, inside.column))),
            *self._position(self._at(code, code.offset(inside.end_line, inside.end_column))),
        )
        return Mark(inside, code.rows[inside.line - 1], message, code.cell, raw)

    def line(self, line: int) -> int:
        """The line in the file that holds a line of the program."""
        code = self._code(line)
        return self._position(self._at(code, code.offset(line - code.first + 1, 1)))[0]

    def line_of(self, mark: Mark) -> int:
        """The line of the program in which a mark starts."""
        first = next(code.first for code in self.codes if code.cell == mark.cell)
        return first + mark.place.line - 1

    def fix(self, fix: Fix) -> Fix | None:
        """A fix of the program as one of cells and of the file; None where magics or other cells stand in the way."""
        inside: list[Edit] = []
        raw: list[Edit] = []
        for edit in fix.edits:
            code = self._code(edit.place.line)
            if self._code(edit.place.end_line) is not code or not code.is_as_written(edit.place):
                return None
            inside.append(code.edit(edit))
            raw.append(self._raw(inside[-1], code))
        return replace(fix, edits=tuple(inside), raw=tuple(raw))

    def _raw(self, edit: Edit, code: Code) -> Edit:
        """The edit of the file that makes one of a cell; each row of a source in strings remains one string."""
        plain = self.raw.isascii()
        rows = [json.dumps(row, ensure_ascii=plain)[1:-1] for row in edit.content.split("\n")]
        content = f"\\n{code.joint}".join(rows)
        if edit.end == len(code.source):
            content = content.removesuffix(code.joint) if not rows[-1] else content
            if edit.start == edit.end and code.source.endswith("\n"):
                content = code.joint + content
        first, last = self._at(code, edit.start), self._at(code, edit.end)
        place = Place(*self._position(first), *self._position(last))
        return Edit(place, first, last, content, (self._line(first), self._line(last)))

    def _code(self, line: int) -> Code:
        """The cell that holds a line of the program; the blank line behind a cell is its own."""
        return self.codes[max(bisect_right([code.first for code in self.codes], line) - 1, 0)]

    def _at(self, code: Code, offset: int) -> int:
        """Where in the file's text a character of a cell's source is written."""
        for piece in code.pieces:
            if offset < len(piece.text) or piece is code.pieces[-1]:
                at = piece.start
                for _ in range(offset):
                    match = _WRITTEN.match(self.raw, at)
                    at = match.end() if match else at
                return at
            offset -= len(piece.text)
        return 0

    def _position(self, at: int) -> tuple[int, int]:
        """Line and column, from 1, of an offset of the file's text."""
        line = bisect_right(self._line_starts, at)
        return line, at - self._line_starts[line - 1] + 1

    def _line(self, at: int) -> str:
        """The line of the file that holds an offset."""
        line = bisect_right(self._line_starts, at)
        ends = [*self._line_starts, len(self.raw) + 1]
        return self.raw[ends[line - 1] : ends[line] - 1].removesuffix("\r")

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.raw))]
