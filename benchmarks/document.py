"""The part of a document that a benchmark writes: what stands between its two marks."""

from __future__ import annotations

import sys
from pathlib import Path


def around(file: Path, name: str) -> tuple[str, str]:
    """What stands before and behind a benchmark's part of a document, marks included; ends the run without marks."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    before, begun, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        sys.exit(f"{file}: has no lines {begin.strip()} and {end.strip()} to write between")
    return before + begin, end + after


def write(file: Path, name: str, page: str) -> None:
    """Puts a page in the place of a benchmark's part."""
    before, after = around(file, name)
    file.write_text(f"{before}\n{page}\n{after}", encoding="utf-8")
