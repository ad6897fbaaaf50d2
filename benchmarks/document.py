"""Puts measured tables between two marks of a document."""

from __future__ import annotations

import sys
from pathlib import Path


def put(file: Path, mark: str, page: str) -> None:
    """Replaces what stands between the marks."""
    file.write_text(filled(file, mark, page), encoding="utf-8")


def filled(file: Path, mark: str, page: str, text: str | None = None) -> str:
    """The file's text (or the one given in its place) with the page between the marks."""
    before, after = around(file, mark, text)
    begin, end = _marks(mark)
    return f"{before}{begin}\n{page}\n{end}{after}"


def around(file: Path, mark: str, text: str | None = None) -> tuple[str, str]:
    """What stands before and behind the marks; ends the program where there are none."""
    begin, end = _marks(mark)
    if text is None:
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
    before, begun, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        sys.exit(f"{file}: has no lines {begin.strip()} and {end.strip()} to write between")
    return before, after


def _marks(mark: str) -> tuple[str, str]:
    return f"<!-- {mark}: begin -->\n", f"<!-- {mark}: end -->\n"
