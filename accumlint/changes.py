"""Tells which findings stand on lines that changed since a git revision.

A finding counts when a line changed that it rests on: the flagged one, a related one, or an event of its window, since
the defect is the order of these. It also counts when lines of its loop were replaced or taken away: what it lacks, such
as a division, may be what was taken. Lines that were only added beside those it rests on do not count. The revision is
compared at the point where HEAD left it, as in a pull request.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from accumlint.frozen import frozen
from accumlint.place import Place
from accumlint.problem import Misuse
from accumlint.report import Report

_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)")
_LETTERS = {
    b"n": b"\n",
    b"t": b"\t",
    b"r": b"\r",
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"v": b"\v",
}


class ChangesError(Misuse):
    """Git cannot say what changed; the message says why."""


@frozen
class Hunk:
    """`added` lines from `first` on, in the place of `removed` ones; with none added, `first` is the line before."""

    first: int
    added: int
    removed: int

    def touches(self, lines: set[int]) -> bool:
        """True when one of these lines changed."""
        return any(line in lines for line in range(self.first, self.first + self.added))

    def thins(self, loop: Place | None) -> bool:
        """True when lines were replaced in or taken from a loop."""
        return self.removed > 0 and loop is not None and loop.line <= self.first <= loop.end_line


class Changes:
    """What changed since a revision, in whichever repository a file lies."""

    def __init__(self, revision: str) -> None:
        self.revision = revision
        self.repositories: dict[str, _Repository] = {}

    def touch(self, report: Report) -> bool:
        """True when a finding stands on what changed, or its file is not known to git.

        Raises:
            ChangesError: when git cannot say.
        """
        return any(
            hunks is None or any(hunk.touches(lines) for hunk in hunks)
            for file, lines in _lines(report).items()
            for hunks in [self.hunks(file)]
        ) or any(hunk.thins(report.loop) for hunk in self.hunks(report.file) or ())

    def hunks(self, file: str) -> Sequence[Hunk] | None:
        """What changed in a file, None where git does not know it."""
        real = os.path.realpath(file)
        repository = self.around(os.path.dirname(real))
        name = os.path.relpath(real, repository.root).replace(os.sep, "/")
        return repository.hunks.get(name, () if name in repository.tracked else None)

    def around(self, folder: str) -> _Repository:
        """The repository that a folder lies in."""
        if folder not in self.repositories:
            root = os.fsdecode(_git(folder, "rev-parse", "--show-toplevel").rstrip(b"\n"))
            known = self.repositories.get(root) or _Repository(root, self.revision)
            self.repositories[root] = self.repositories[folder] = known
        return self.repositories[folder]


def since(revision: str, folder: str) -> Changes:
    """The changes since a revision.

    Raises:
        ChangesError: when there is no git, no repository around the folder, or no such revision in it.
    """
    changes = Changes(revision)
    assert changes.around(folder).base
    return changes


@frozen
class _Repository:
    root: str
    revision: str

    @cached_property
    def base(self) -> str:
        """The commit to compare with: where HEAD left the revision, or itself where history does not tell."""
        asked = f"{self.revision}^{{commit}}"
        options = ("--verify", "--quiet", "--end-of-options")
        try:
            named = _git(self.root, "rev-parse", *options, asked).decode().strip()
        except ChangesError:
            raise ChangesError(f"git knows no revision {self.revision!r}") from None
        try:
            return _git(self.root, "merge-base", named, "HEAD").decode().split()[0]
        except ChangesError:
            return named

    @cached_property
    def tracked(self) -> frozenset[str]:
        return frozenset(map(os.fsdecode, _git(self.root, "ls-files", "-z").split(b"\0")))

    @cached_property
    def hunks(self) -> Mapping[str, list[Hunk]]:
        """What changed in each file between the revision and the working tree."""
        options = ("--no-ext-diff", "--no-textconv", "--no-color", "-U0", "-M")
        forms = ("--inter-hunk-context=0", "--src-prefix=a/", "--dst-prefix=b/")
        files: dict[str, list[Hunk]] = {}
        for name, hunk in _parsed(_git(self.root, "diff", *options, *forms, self.base, "--")):
            files.setdefault(name, []).append(hunk)
        return files


def _lines(report: Report) -> Mapping[str, set[int]]:
    """The lines that a finding rests on, by file."""
    lines: dict[str, set[int]] = {}
    for mark in (report.mark, *report.related, *report.timeline):
        file = mark.elsewhere.path if mark.elsewhere else report.file
        place = mark.in_file
        lines.setdefault(file, set()).update(range(place.line, place.end_line + 1))
    return lines


def _parsed(patch: bytes) -> Iterator[tuple[str, Hunk]]:
    """The hunks of a patch without context, with the new names of their files."""
    rows = iter(patch.split(b"\n"))
    name = ""
    for row in rows:
        if row.startswith(b"+++ "):
            name = _name(row[4:])
        elif match := _HUNK.match(row):
            removed, added = (int(count) if count is not None else 1 for count in match.group(1, 3))
            # A line of code may look like a header, so the lines of a hunk are counted.
            for _ in range(removed + added):
                if next(rows, b"").startswith(b"\\"):
                    next(rows, b"")
            yield name, Hunk(int(match[2]), added, removed)


def _name(quoted: bytes) -> str:
    """A path as git writes it in a patch: behind `b/`, in quotes when it holds what a line cannot."""
    raw = quoted.rstrip(b"\t")
    if raw.startswith(b'"'):
        raw = _ESCAPE.sub(_unescaped, raw[1:-1])
    return os.fsdecode(raw[2:])


def _unescaped(match: re.Match[bytes]) -> bytes:
    letter = match[1]
    return bytes([int(letter, 8)]) if len(letter) == 3 else _LETTERS.get(letter, letter)


def _git(folder: str, *arguments: str) -> bytes:
    """What a git command prints.

    Raises:
        ChangesError: with git's own words, when it fails.
    """
    command = ["git", "-c", "core.quotePath=true", "-C", folder, *arguments]
    try:
        ran = subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    except OSError as problem:
        raise ChangesError(f"git cannot be run: {problem.strerror or problem}") from None
    if ran.returncode:
        told = ran.stderr.decode(errors="replace").strip().splitlines()
        raise ChangesError(told[0].removeprefix("fatal: ") if told else "")
    return ran.stdout
