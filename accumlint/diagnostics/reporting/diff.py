"""What fixing would change, as a unified diff that `patch` and `git apply` understand."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from accumlint.diagnostics.reporting.terminal import Look, printable

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_PAINTS = {"+": "good", "-": "bad", "@": "info"}
_ODD = re.compile(r'[\0-\x1f\x7f"\\]')


def difference(
    before: str, after: str, shown: str, look: Look, *, verbatim: bool = True
) -> Iterator[str]:
    """The lines of the diff with their ends; if not `verbatim`, what a terminal or a log would obey is written out."""
    old, new = _LINE.findall(before), _LINE.findall(after)
    name = _quoted(shown)
    for number, line in enumerate(difflib.unified_diff(old, new, name, name)):
        paint = "bold" if number < 2 else _PAINTS.get(line[0], "")
        bare = line.removesuffix("\n")
        told = bare if verbatim else _written_out(bare)
        yield (look.paint(told, paint) if paint else told) + "\n"
        if bare == line:
            yield "\\ No newline at end of file\n"


def _quoted(shown: str) -> str:
    """A name as git writes it: in quotes where it holds what a line cannot."""
    if not _ODD.search(shown):
        return shown
    return '"' + _ODD.sub(lambda found: f"\\{ord(found[0]):03o}", shown) + '"'


def _written_out(line: str) -> str:
    """A line of the diff for the eye: tabs are part of code, and a carriage return of the line's end."""
    mark, text = line[:1], line[1:].removesuffix("\r")
    if mark == " " and text.lstrip().startswith("::"):
        # The log of GitHub Actions would take it for a command.
        text = text.replace("::", r"\x3a:", 1)
    return mark + "\t".join(map(printable, text.split("\t")))
