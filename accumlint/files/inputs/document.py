"""What is checked of a file: its text, or the program of a notebook; and how places and edits of it are told."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from accumlint.common.frozen import frozen
from accumlint.common.place import Place
from accumlint.diagnostics.results.report import Edit, Fix, Mark
from accumlint.files.source import decode, line_starts, lines

if TYPE_CHECKING:
    from accumlint.files.notebook import Notebook

_HUNK = re.compile(r"@@ -(\d+)((?:,\d+)?) \+(\d+)((?:,\d+)?) @@")


@frozen
class Text:
    """The program in a file, with the notebook that it comes from, if any."""

    text: str
    book: Notebook | None = None

    @cached_property
    def rows(self) -> list[str]:
        return lines(self.text)

    @cached_property
    def _starts(self) -> list[int]:
        return line_starts(self.text)

    def mark(self, place: Place, message: str = "") -> Mark:
        """A place of the program as one of the file."""
        if self.book:
            return self.book.mark(place, message)
        return Mark(place, self.rows[place.line - 1], message)

    def line(self, line: int) -> int:
        """The line of the file that holds a line of the program."""
        return self.book.line(line) if self.book else line

    def line_of(self, mark: Mark) -> int:
        """The line of the program in which a mark starts."""
        return self.book.line_of(mark) if self.book else mark.place.line

    def replacing(self, place: Place, content: str) -> Edit:
        """The edit of the program that puts a text in a place."""
        start = self._starts[place.line - 1] + place.column - 1
        end = self._starts[place.end_line - 1] + place.end_column - 1
        lines = (self.rows[place.line - 1], self.rows[place.end_line - 1])
        return Edit(place, start, end, content, lines)

    def difference(self, edit: Edit) -> tuple[str, ...]:
        """What an edit of the program changes, for people."""
        first, last = max(1, edit.place.line - 1), edit.place.end_line + 1
        start = self._starts[first - 1]
        end = self._starts[last] if last < len(self.rows) else len(self.text)
        after = self.text[start : edit.start] + edit.content + self.text[edit.end : end]
        return difference(self.text[start:end], after, first)

    def fix(self, fix: Fix) -> Fix | None:
        """A fix of the program as one of the file; None where it cannot be made there."""
        return self.book.fix(fix) if self.book else fix


def read(data: bytes, is_notebook: bool) -> Text | None:
    """The program in the bytes of a file, None for a notebook in another language.

    Raises:
        UndecodableSource: when there is none.
    """
    if not is_notebook:
        return Text(decode(data))
    from accumlint.files import notebook

    book = notebook.read(data)
    return Text(book.text, book) if book else None


def difference(before: str, after: str, first: int = 1) -> tuple[str, ...]:
    """What is different, for people: the body of a unified diff with a line around.

    `first` is the number of the texts' first line where they are parts of longer ones.
    """
    from difflib import unified_diff

    old, new = before.splitlines(), after.splitlines()
    # What is equal at both ends is cut off first: comparing whole files takes much longer.
    above = _equal(old, new)
    below = _equal(old[:above:-1], new[:above:-1])
    above, below = max(0, above - 1), max(0, below - 1)
    shown = unified_diff(
        old[above : len(old) - below], new[above : len(new) - below], n=1, lineterm=""
    )
    return tuple(
        _moved(line, above + first - 1) for line in shown if not line.startswith(("--- ", "+++ "))
    )


def _equal(one: Sequence[str], other: Sequence[str]) -> int:
    """How many lines two texts begin with in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _moved(line: str, down: int) -> str:
    """A line of a difference, its numbers moved where it heads a hunk."""
    head = _HUNK.fullmatch(line)
    if head is None:
        return line
    return f"@@ -{int(head[1]) + down}{head[2]} +{int(head[3]) + down}{head[4]} @@"


def edited(text: str, edits: Iterable[Edit]) -> str:
    """The text of a file after edits that do not collide."""
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        text = text[: edit.start] + edit.content + text[edit.end :]
    return text
