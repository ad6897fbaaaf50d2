"""How text looks on its way out: colours, box lines, and characters that must not reach a terminal raw."""

from __future__ import annotations

import re
from pathlib import Path

from accumlint.common.frozen import frozen

# Control characters, reordering of text, halves of characters that no encoding can write, and what XML must not hold.
_UNPRINTABLE = re.compile(
    "[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
    # What opens a command wherever it stands in the log of Azure Pipelines or GitHub Actions.
    r"|(?<=##)\[|(?<=##vso)\["
)

_PAINTS = {
    "bold": "1",
    "dim": "2",
    "error": "1;31",
    "warning": "1;33",
    "info": "1;36",
    "good": "32",
    "bad": "31",
    "mark": "34",
}


@frozen
class Look:
    """What the reader's terminal can show, and what some formats are asked for besides.

    Paths are told relative to the `root`. `category` and `silenced` (show silenced findings, too) are SARIF's. What is
    `quiet` says nothing about the run. With `coverage`, every backward call is told with how far it was read; with
    `figures`, JSON has what a run measured of each update.
    """

    color: bool = False
    boxes: bool = True
    root: Path = Path("/")
    category: str = "accumlint/"
    silenced: bool = False
    quiet: bool = False
    coverage: bool = False
    figures: bool = False

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
    def pointer(self) -> str:
        return "◀" if self.boxes else "<"

    @property
    def closing(self) -> str:
        return "╰─" if self.boxes else "="


def printable(text: str) -> str:
    """Text in which every character that a terminal or a log would obey is written out as an escape."""
    return _UNPRINTABLE.sub(_written_out, text)


def printable_path(path: str) -> str:
    """A path for the beginning of a line, where "::" would open a command in the log of GitHub Actions."""
    return printable(f"./{path}" if path.lstrip().startswith("::") else path)


def _written_out(match: re.Match[str]) -> str:
    return r"\x5b" if match[0] == "[" else ascii(match[0])[1:-1]
