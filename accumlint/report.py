"""What checking one file gave: plain values that every output format prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from accumlint.problem import Problem

if TYPE_CHECKING:
    # Imported by name only: files that hold no training loop are never read, nor is what reads them imported.
    from accumlint.reading.program import Place


@dataclass(frozen=True)
class Mark:
    """A place in the source with the text of its first line; `message` says why it matters ("" for the finding)."""

    place: Place
    text: str
    message: str = ""


@dataclass(frozen=True)
class Report:
    """A finding with its place, after ignores. `shown` is the path as the user wrote it, `file` the absolute one.

    `severity` and `confidence` are in words. `condition` says when it holds, `timeline` tells its window.
    """

    shown: str
    file: str
    code: str
    name: str
    message: str
    severity: str
    confidence: str
    mark: Mark
    related: tuple[Mark, ...] = ()
    condition: str = ""
    applied: str = ""
    expected: str = ""
    timeline: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, int, int, str]:
        """File, row, column and code: the order in which reports are printed."""
        return self.file, self.mark.place.line, self.mark.place.column, self.code


@dataclass(frozen=True)
class Untraced:
    """A training loop that could not be followed, and why."""

    shown: str
    line: int
    reason: str


@dataclass(frozen=True)
class Checked:
    """What checking one file gave."""

    shown: str
    reports: tuple[Report, ...] = ()
    problems: tuple[Problem, ...] = ()
    untraced: tuple[Untraced, ...] = ()
