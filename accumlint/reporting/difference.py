"""What fixing would change, as a unified diff that `patch` and `git apply` understand."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from accumlint.reporting.look import Look

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_PAINTS = {"+": "good", "-": "bad", "@": "info"}


def difference(before: str, after: str, shown: str, look: Look) -> Iterator[str]:
    """The lines of the diff, each with its end."""
    old, new = _LINE.findall(before), _LINE.findall(after)
    for number, line in enumerate(difflib.unified_diff(old, new, shown, shown)):
        paint = "bold" if number < 2 else _PAINTS.get(line[0], "")
        bare = line.removesuffix("\n")
        yield (look.paint(bare, paint) if paint else bare) + "\n"
        if bare == line:
            yield "\\ No newline at end of file\n"
