"""Puts measured tables between two marks of a document."""

from __future__ import annotations

import sys
from pathlib import Path


def put(file: Path, mark: str, page: str) -> None:
    """Replaces what stands between the marks."""
    before, after = around(file, mark)
    begin, end = _marks(mark)
    file.write_text(f"{before}{begin}\n{page}\n{end}{after}", encoding="utf-8")


def around(file: Path, mark: str) -> tuple[str, str]:
    """What stands before and behind the marks; ends the program where there are none."""
    begin, end = _marks(mark)
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    before, begun, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        sys.exit(f"{file}: has no lines {begin.strip()} and {end.strip()} to write between")
    return before, after


def _marks(mark: str) -> tuple[str, str]:
    return f"<!-- {mark}: begin -->\n", f"<!-- {mark}: end -->\n"
