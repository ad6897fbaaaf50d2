"""What is checked of a file: its text, or the program of a notebook; and how places and edits of it are told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from accumlint.place import Place
from accumlint.report import Edit, Fix, Mark
from accumlint.source import decode, line_starts, lines

if TYPE_CHECKING:
    from accumlint.notebook import Notebook


@dataclass(frozen=True)
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
    from accumlint import notebook

    book = notebook.read(data)
    return Text(book.text, book) if book else None


def difference(before: str, after: str) -> tuple[str, ...]:
    """What is different, for people: the body of a unified diff with a line around."""
    from difflib import unified_diff

    shown = unified_diff(before.splitlines(), after.splitlines(), n=1, lineterm="")
    return tuple(line for line in shown if not line.startswith(("--- ", "+++ ")))


def edited(text: str, edits: Iterable[Edit]) -> str:
    """The text of a file after edits that do not collide."""
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        text = text[: edit.start] + edit.content + text[edit.end :]
    return text
