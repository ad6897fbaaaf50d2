"""Source lines with carets under the places that matter."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import groupby

from accumlint.diagnostics.reporting.terminal import Look, printable
from accumlint.diagnostics.results.report import Mark

_WIDEST = 160
_TAB = 4


def frame(marks: Sequence[Mark], width: int, look: Look) -> Iterator[str]:
    """The marked lines in order, each once, with a gap where lines are left out; `width` is that of line numbers.

    The first mark is the finding, underlined with carets; the others are underlined with dashes and say why.
    """
    side = look.paint(look.side, "dim")
    margin = " " * width
    yield f"{margin} {side}"
    before: tuple[int, int] | None = None
    ordered = sorted(enumerate(marks), key=lambda pair: (pair[1].order[:2], pair[0]))
    for (cell, line), group in groupby(ordered, key=lambda pair: pair[1].order[:2]):
        marked = list(group)
        if before and (cell, line) > (before[0], before[1] + 1):
            yield f"{margin} {look.paint(look.gap, 'dim')}"
        before = cell, line
        text, shift = _cropped(marked[0][1])
        yield f"{look.paint(f'{line:>{width}}', 'dim')} {side} {text}"
        for index, mark in marked:
            yield f"{margin} {side} {_underline(mark, text, shift, index == 0, look)}"


def _underline(mark: Mark, text: str, shift: int, is_finding: bool, look: Look) -> str:
    start, end = (min(max(index - shift, 0), len(text)) for index in _span(mark))
    line = ("^" if is_finding else "-") * max(_cells(text[start:end]), 1)
    painted = look.paint(line, "bad" if is_finding else "info")
    message = f" {printable(mark.message)}" if mark.message else ""
    return f"{' ' * _cells(text[:start])}{painted}{message}"


def _cropped(mark: Mark) -> tuple[str, int]:
    """The mark's line, and how much of a very long one is left out in front to keep the mark in sight."""
    text = _expanded(mark.text)
    start, end = _span(mark)
    shift = max(start - _WIDEST // 2, 0) if end > _WIDEST else 0
    return text[shift : shift + _WIDEST].rstrip(), shift


def _span(mark: Mark) -> tuple[int, int]:
    """Where a mark starts and ends in its first line as shown."""
    place = mark.place
    end = place.end_column - 1 if place.end_line == place.line else len(mark.text.rstrip())
    return len(_expanded(mark.text[: place.column - 1])), len(_expanded(mark.text[:end]))


def _expanded(text: str) -> str:
    return printable(text.expandtabs(_TAB))


def _cells(text: str) -> int:
    """How many cells of a terminal the text takes; East Asian characters take two, combining marks none."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )
