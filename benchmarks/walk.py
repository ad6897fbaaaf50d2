"""Walks a stranger's way: from a clone to a finding, its proof, its fix, a baseline and a green hook.

    python benchmarks/walk.py --script train.py --history ../their-repository --write docs/walk.md

Every command of the way is run as it is written, in a folder of its own, with a fresh clone of this repository and
fresh environments; what the page shows is what they printed. `--script` is a training script with a finding that a safe
fix mends, `--history` a folder with findings of long ago (a copy of it is used). Needs git and an index of packages.
Times are wall times of this machine and hour, the packages' downloads included; the number of commands is what counts.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from document import put

ROOT = Path(__file__).resolve().parent.parent
# Longer prints are cut on the page.
_TALLEST = 14


@dataclass(frozen=True)
class Step:
    """A command, the exit codes that it may end with, and why it is given."""

    command: str
    why: str
    codes: tuple[int, ...] = (0,)
    shown: bool = True


@dataclass(frozen=True)
class Done:
    step: Step
    code: int
    seconds: float
    printed: str


def newcomer(script: str) -> tuple[Step, ...]:
    """From nothing to a script that is mended and proven."""
    return (
        Step("git clone --quiet REPOSITORY accumlint", "the repository", shown=False),
        Step(
            "python3 -m venv .venv && .venv/bin/pip install --quiet './accumlint[confirm]'",
            "accumlint, and torch for the proof",
            shown=False,
        ),
        Step(f".venv/bin/accumlint check {script}", "what is wrong", (1,)),
        Step(
            f".venv/bin/accumlint confirm {script} --fixed",
            "is it true, and does the fix help",
            (1,),
        ),
        Step(f".venv/bin/accumlint check {script} --fix --unsafe-fixes", "mend it", (0, 1)),
    )


def adopter() -> tuple[Step, ...]:
    """From a repository with a history to a hook that is green."""
    return (
        Step("accumlint check --statistics --exit-zero", "what is there"),
        Step("accumlint init --pre-commit", "settings and a hook"),
        Step("accumlint baseline write", "what is there is known"),
        Step("echo 'baseline = \"accumlint-baseline.json\"' >> accumlint.toml", "and left alone"),
        Step("git add --all && pre-commit run accumlint --all-files", "the hook"),
    )


def walked(steps: Sequence[Step], folder: Path, names: dict[str, str], path: str) -> Iterator[Done]:
    """Runs commands one after the other; ends the program where one ends otherwise than it should."""
    for step in steps:
        command = step.command
        for name, value in names.items():
            command = command.replace(name, value)
        start = time.perf_counter()
        ran = subprocess.run(
            command,
            shell=True,
            cwd=folder,
            env={**os.environ, "PATH": path, "NO_COLOR": "1", "COLUMNS": "100"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - start
        if ran.returncode not in step.codes:
            sys.exit(f"{command} ended with {ran.returncode}:\n{ran.stdout[-3000:]}")
        yield Done(step, ran.returncode, seconds, ran.stdout)


def page(title: str, found: Sequence[Done]) -> Iterator[str]:
    """The commands with their times, and then with what they printed."""
    yield f"## {title}"
    yield ""
    yield f"{len(found)} commands, {sum(d.seconds for d in found):.0f} seconds:"
    yield ""
    yield "| | | exit code | seconds |"
    yield "| --- | --- | --- | --- |"
    for number, done in enumerate(found, start=1):
        command = done.step.command.replace("|", "\\|")
        yield f"| {number} | `{command}` ({done.step.why}) | {done.code} | {done.seconds:.1f} |"
    for number, done in enumerate(found, start=1):
        if done.step.shown and done.printed.strip():
            yield ""
            yield f"Command {number} printed:"
            yield ""
            yield "```text"
            lines = [re.sub(r"\s+$", "", line) for line in done.printed.strip("\n").splitlines()]
            yield from lines[:_TALLEST]
            if len(lines) > _TALLEST:
                yield f"… {len(lines) - _TALLEST} more lines"
            yield "```"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--script", type=Path, required=True)
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--of", default="", help="where the two come from, for the page")
    parser.add_argument("--write", type=Path, help="a page with the marks `walk`")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        shutil.copy(given.script, folder / given.script.name)
        names = {"REPOSITORY": str(ROOT)}
        path = os.environ["PATH"]
        first = list(walked(newcomer(given.script.name), folder, names, path))
        theirs = folder / "theirs"
        shutil.copytree(given.history, theirs)
        own = f"{folder / '.venv' / 'bin'}{os.pathsep}{path}"
        prepare = Step("pip install --quiet pre-commit && git init --quiet && git add --all", "")
        list(walked([prepare], theirs, names, own))
        second = list(walked(adopter(), theirs, names, own))
    told = [
        f"Measured on {date.today()} with CPython {platform.python_version()}, {platform.system()}, "
        f"{os.cpu_count()} shared cores{given.of and f', on {given.of}'}.",
        "",
        *page("A script that is mended and proven", first),
        "",
        *page("A green hook", second),
    ]
    text = "\n".join(told).replace(str(folder), "…")
    if given.write:
        put(given.write, "walk", f"\n{text}\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
