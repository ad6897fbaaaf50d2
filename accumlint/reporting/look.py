"""How text looks on its way out: colours, box lines, and characters that must not reach a terminal raw."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Control characters, reordering of text, and halves of characters that no encoding can write.
_UNPRINTABLE = re.compile(
    "[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ud800-\udfff]"
)

_PAINTS = {
    "bold": "1",
    "dim": "2",
    "error": "1;31",
    "warning": "1;33",
    "info": "1;36",
    "good": "32",
    "bad": "31",
}


@dataclass(frozen=True)
class Look:
    """What the reader's terminal can show."""

    color: bool = False
    boxes: bool = True

    def paint(self, text: str, paint: str) -> str:
        return f"\x1b[{_PAINTS[paint]}m{text}\x1b[0m" if self.color and text else text

    @property
    def opening(self) -> str:
        return "╭─" if self.boxes else "-->"

    @property
    def side(self) -> str:
        return "│" if self.boxes else "|"

    @property
    def gap(self) -> str:
        return "┆" if self.boxes else ":"

    @property
    def closing(self) -> str:
        return "╰─" if self.boxes else "="


def printable(text: str) -> str:
    """Text in which every character that a terminal would obey is written out as an escape."""
    return _UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)
