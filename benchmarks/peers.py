"""Runs accumlint and other linters as whole processes on the same files, in turn."""

from __future__ import annotations

import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

# The folder comes last; what was found does not matter, and nothing is shown.
ACCUMLINT = [sys.executable, "-m", "accumlint", "check", "--isolated", "--exit-zero"]
_COUNTED = re.compile(r"checking (\d+) files?|(\d+) files? (?:checked|clean)")


class PeerError(Exception):
    """A linter cannot be run, or did not look at the files."""


@dataclass(frozen=True)
class Pair:
    """The CPU seconds of accumlint and of a peer, run for run, and how many files the peer looked at."""

    peer: str
    files: int
    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        return tuple(ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=True))

    def row(self) -> str:
        low, high = min(self.ratios), max(self.ratios)
        return (
            f"| {self.peer} | {self.files} | {median(self.ours):.1f} | {median(self.theirs):.1f} "
            f"| **{median(self.ratios):.2f}** | {low:.2f}-{high:.2f} |"
        )


def compare(files: Sequence[Path], torchfix: str, fixit: str, rounds: int) -> Iterator[Pair]:
    """Each peer beside accumlint: A B A B …, so that a busy hour slows down both."""
    # One process each for accumlint and TorchFix; Fixit has no such option.
    commands = [[torchfix, "-j", "1"], [fixit, "lint"]]
    names = [f"TorchFix {_version(torchfix)}", f"Fixit {_version(fixit)}"]
    with tempfile.TemporaryDirectory() as folder:
        # Copies, so that no settings or ignore files around the originals have a say.
        for number, file in enumerate(files):
            shutil.copyfile(file, Path(folder, f"{number:05}_{file.name}"))
        for name, command in zip(names, commands, strict=True):
            ours: list[float] = []
            theirs: list[float] = []
            counted = 0
            for _ in range(rounds):
                ours.append(_run([*ACCUMLINT, folder]).seconds)
                ran = _run([*command, folder])
                theirs.append(ran.seconds)
                counted = _counted(name, ran.said)
            yield Pair(name, counted, tuple(ours), tuple(theirs))


@dataclass(frozen=True)
class _Ran:
    seconds: float
    said: str


def _run(command: list[str]) -> _Ran:
    """The CPU seconds of a command, its own processes included, and what it said."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as problem:
        raise PeerError(f"{command[0]}: {problem.strerror}; see --help") from None
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if "Traceback (most recent call last)" in done.stderr:
        raise PeerError(f"{shlex.join(command)} failed:\n{done.stderr[-1000:]}")
    return _Ran(seconds, done.stdout + done.stderr)


def _counted(name: str, said: str) -> int:
    """How many files a peer says it looked at: one that fails is quick, and no yardstick."""
    found = _COUNTED.search(said)
    if found is None:
        raise PeerError(f"{name} does not tell how many files it checked:\n{said[-1000:]}")
    return int(found[1] or found[2])


def _version(command: str) -> str:
    found = re.search(r"\d[\w.]+", _run([command, "--version"]).said)
    return found.group() if found else "of unknown version"
