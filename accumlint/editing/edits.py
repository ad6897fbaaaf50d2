"""Edits of a text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, order=True)
class Edit:
    """`content` in the place of what stands between two offsets of a text, the end exclusive."""

    start: int
    end: int
    content: str

    def collides(self, other: Edit) -> bool:
        """True when the order of two edits would matter: they overlap, or start at the same place."""
        return self.start == other.start or (self.start < other.end and other.start < self.end)


def applied(text: str, edits: Iterable[Edit]) -> str:
    """The text with edits made that do not collide."""
    parts: list[str] = []
    done = 0
    for edit in sorted(edits):
        parts += (text[done : edit.start], edit.content)
        done = edit.end
    return "".join([*parts, text[done:]])


def collide(edits: Iterable[Edit]) -> bool:
    """True when any two of the edits collide."""
    ordered = sorted(edits)
    return any(one.collides(other) for one, other in pairwise(ordered))
