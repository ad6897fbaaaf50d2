"""Tells which findings stand on lines that changed since a git revision.

A finding counts when a line changed that it rests on: the flagged one, a related one, or an event of its window, since
the defect is the order of these. It also counts when lines of its loop were replaced or taken away: what it lacks, such
as a division, may be what was taken. Lines that were only added beside those it rests on do not count, nor do changed
line ends. The revision is compared at the point where HEAD left it, as in a pull request.

Git tells what a file held then; what it holds now is read here, as Python counts its lines. So no attribute that the
repository gives a file can hide a change of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from accumlint.common.frozen import frozen
from accumlint.common.place import Place
from accumlint.common.problem import Misuse
from accumlint.diagnostics.results.report import Report
from accumlint.files import git
from accumlint.files.git import Git, GitError
from accumlint.files.regular import contents
from accumlint.files.source import UndecodableSource, decode, lines

_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


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
    """What changed since a commit in the files of a repository; all of a file that it does not know."""

    def __init__(self, repository: Git, base: str) -> None:
        self.repository = repository
        self.base = base
        self._known: dict[str, Sequence[Hunk] | None] = {}

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
        """What changed in a file, None where the commit has nothing to compare it with."""
        real = os.path.realpath(file)
        if real not in self._known:
            self._known[real] = self._hunks(real)
        return self._known[real]

    def _hunks(self, file: str) -> Sequence[Hunk] | None:
        name = os.path.relpath(file, self.repository.top).replace(os.sep, "/")
        blob = self._files.get(name) or (not name.startswith("../") and self._moved.get(name))
        if not blob:
            return None
        old = self.repository.contents(blob)
        is_notebook = file.endswith(".ipynb")
        try:
            before, after = (_normal(data, is_notebook) for data in (old, contents(file)))
        except (OSError, UndecodableSource):
            return None
        return [] if before == after else list(_parsed(git.patch(before, after)))

    @cached_property
    def _files(self) -> Mapping[str, str]:
        return self.repository.files(self.base)

    @cached_property
    def _moved(self) -> Mapping[str, str]:
        return self.repository.moved(self.base)


def since(revision: str, folder: str) -> Changes:
    """The changes since a revision in the repository around a folder.

    Raises:
        GitError: when there is no git, or no repository.
        ChangesError: when there is no such revision in it.
    """
    repository = git.around(folder)
    named = repository.commit(revision)
    if not named:
        raise ChangesError(f"git knows no revision {revision!r}{_mend(repository)}")
    try:
        return Changes(repository, repository.ask("merge-base", named, "HEAD").decode().split()[0])
    except GitError:
        if mend := _mend(repository):
            raise ChangesError(f"git cannot tell where HEAD left {revision!r}{mend}") from None
        # They have no commit in common.
        return Changes(repository, named)


def _mend(repository: Git) -> str:
    """What to do where the history that is asked for may not have been fetched."""
    if not repository.is_shallow:
        return ""
    return (
        ": the checkout is shallow; fetch its history with `git fetch --unshallow` or `git fetch --deepen=100`, "
        "in GitHub Actions with `fetch-depth: 0` at actions/checkout"
    )


def _lines(report: Report) -> Mapping[str, set[int]]:
    """The lines that a finding rests on, by file."""
    lines: dict[str, set[int]] = {}
    for mark in (report.mark, *report.related, *report.timeline):
        file = mark.elsewhere.path if mark.elsewhere else report.file
        place = mark.in_file
        lines.setdefault(file, set()).update(range(place.line, place.end_line + 1))
    return lines


def _normal(data: bytes, is_notebook: bool) -> bytes:
    """The lines of a file as they are numbered, with ends that are all the same."""
    if is_notebook:
        return data.replace(b"\r\n", b"\n")
    return "\n".join(lines(decode(data))).encode("utf-8", "surrogatepass")


def _parsed(patch: bytes) -> Iterator[Hunk]:
    """The hunks of a patch without context."""
    rows = iter(patch.split(b"\n"))
    for row in rows:
        if match := _HUNK.match(row):
            removed, added = (int(count) if count is not None else 1 for count in match.group(1, 3))
            # A line of code may look like a header, so the lines of a hunk are counted.
            for _ in range(removed + added):
                if next(rows, b"").startswith(b"\\"):
                    next(rows, b"")
            yield Hunk(int(match[2]), added, removed)
