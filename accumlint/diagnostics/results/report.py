"""What checking one file gave: plain values that every output format prints."""

from __future__ import annotations

import os
from dataclasses import replace

from accumlint.common.frozen import frozen
from accumlint.common.place import Place
from accumlint.common.problem import Problem
from accumlint.diagnostics.results.diagram import Loop
from accumlint.diagnostics.results.measured import Measured


@frozen
class Cell:
    """A cell of a notebook: its number among all cells, from 1, and its id ("" in notebooks of old formats)."""

    number: int
    id: str = ""

    @property
    def name(self) -> str:
        return f"cell {self.number}"


@frozen
class File:
    """A file: its path as the user would write it, and its absolute one."""

    shown: str
    path: str


@frozen
class Mark:
    """A place in the source with the text of its first line; `message` says why it matters ("" for the finding).

    In a notebook, `place` counts within the `cell`, and `raw` is where that stands in the .ipynb file. `elsewhere` is
    the file of a mark that does not stand in its report's own.
    """

    place: Place
    text: str
    message: str = ""
    cell: Cell | None = None
    raw: Place | None = None
    elsewhere: File | None = None

    @property
    def in_file(self) -> Place:
        """The place in the file itself, for readers that know no cells."""
        return self.raw or self.place

    @property
    def first_line(self) -> Place:
        """The place in the file, as far as its first line goes."""
        place = self.in_file
        if place.end_line == place.line:
            return place
        rest = len(self.text.rstrip()) + 1 - self.place.column
        return replace(place, end_line=place.line, end_column=place.column + rest)

    @property
    def where(self) -> str:
        """Row and column for people: "3:5", in a notebook "cell 2:3:5", in another file "loss.py:3:5"."""
        cell = f"{self.cell.name}:" if self.cell else ""
        file = f"{self.elsewhere.shown}:" if self.elsewhere else ""
        return f"{file}{cell}{self.place.line}:{self.place.column}"

    @property
    def row(self) -> str:
        """The row for people, short: "3", in a notebook "cell 2:3", in another file "loss.py:3"."""
        cell = f"cell {self.cell.number}:" if self.cell else ""
        file = f"{os.path.basename(self.elsewhere.shown)}:" if self.elsewhere else ""
        return f"{file}{cell}{self.place.line}"

    @property
    def order(self) -> tuple[int, int, int]:
        """Cell, row and column: the order of the marks of one file."""
        return self.cell.number if self.cell else 0, self.place.line, self.place.column


@frozen
class Edit:
    """`content` in the place of the text at `place`, whose offsets in the decoded file are `start` and `end`.

    `lines` are the texts of the lines in which the place starts and ends. In a `cell`, all of these count within its
    source.
    """

    place: Place
    start: int
    end: int
    content: str
    lines: tuple[str, str] = ("", "")
    cell: Cell | None = None


@frozen
class Fix:
    """How a finding can be mended.

    `applicability` is "safe", "unsafe" (something must be tuned or checked) or "display" (only shown). `difference` is
    what would change, as the body of a unified diff. `raw` are the edits of a notebook's file that make those of its
    cells. `shows` are the codes of what the finding hides, and what is found once it is gone.
    """

    applicability: str
    message: str
    edits: tuple[Edit, ...]
    difference: tuple[str, ...] = ()
    raw: tuple[Edit, ...] = ()
    shows: tuple[str, ...] = ()

    @property
    def in_file(self) -> tuple[Edit, ...]:
        """The edits of the file itself, for readers that know no cells."""
        return self.raw or self.edits


@frozen
class Report:
    """A finding with its place. `shown` is the path as the user wrote it, `file` the absolute one.

    `severity` and `confidence` are in words. `condition` says when it holds, `timeline` tells its window. `scope` is
    the qualified name of the function or class around it ("" for the module), `statement` the flagged statement in one
    normal form: with the code they recognise a finding after its lines have moved, and `fingerprint` is their hash.
    `line_hash` is what GitHub knows an alert by. `loop` is where the loop around it stands in the file, or else the
    function. `picture` is the loop that it was seen in, where that was asked for. `behind` is the code of what hides it
    until that is mended.
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
    timeline: tuple[Mark, ...] = ()
    scope: str = ""
    statement: str = ""
    loop: Place | None = None
    fingerprint: str = ""
    line_hash: str = ""
    fix: Fix | None = None
    picture: Loop | None = None
    behind: str = ""

    @property
    def applicable_fix(self) -> Fix | None:
        """The fix that a tool may apply."""
        return self.fix if self.fix and self.fix.applicability != "display" else None

    @property
    def headline(self) -> str:
        """What happens, and when, in one line."""
        return f"{self.message} ({self.condition})" if self.condition else self.message

    @property
    def gradients(self) -> tuple[str, ...]:
        """What is applied and what the large batch is, a line each, as far as they are known."""
        return tuple(line for line in (self.applied, self.expected) if line)

    @property
    def key(self) -> tuple[str, tuple[int, int, int], str]:
        """File, cell, row, column and code: the order in which reports are printed."""
        return self.file, self.mark.order, self.code


@frozen
class Silenced:
    """A finding that a comment or the settings silence; `reason` is what the comment gives as one.

    One that is `known` stands in the baseline.
    """

    report: Report
    by_comment: bool
    reason: str = ""
    known: bool = False


@frozen
class Backward:
    """A backward call: whether its training loop was read "whole", "partly" or "not", and what kept it from more."""

    shown: str
    file: str
    mark: Mark
    state: str
    reasons: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        """How it was read, and why no better, in one line."""
        read = "not read" if self.state == "not" else f"read {self.state}"
        return ": ".join((read, *filter(None, ["; ".join(self.reasons)])))


@frozen
class Checked:
    """What checking one file gave; `mended` are the findings that were fixed before.

    `backwards` are the backward calls of its training loops, with how they were read. Of a test whose findings are
    not asked for, `in_tests` has their codes, and nothing else is told. `measured` are the figures of a run.
    """

    shown: str
    reports: tuple[Report, ...] = ()
    silenced: tuple[Silenced, ...] = ()
    problems: tuple[Problem, ...] = ()
    backwards: tuple[Backward, ...] = ()
    mended: tuple[Report, ...] = ()
    in_tests: tuple[str, ...] = ()
    measured: tuple[Measured, ...] = ()

    @property
    def unreached(self) -> int:
        """How many backward calls no run of a training loop reaches."""
        return sum(backward.state == "not" for backward in self.backwards)
