"""Measures `accumlint confirm` beside `python -c "import torch"`: one finding alone, and many on two ranks at once.

    python benchmarks/confirm.py --rounds 5 --write docs/benchmarks.md

The loops are bad fixtures that reduce gradients over ranks, and others as often as it takes to have enough. Runs
alternate (import, one, import, many …); ratios are those of medians.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter

from document import around, put

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "fixtures"
ALONE = FIXTURES / "acc102" / "bad_modulo_loop.py"
LOOPS = 25
LIMITS = {"one finding, one rank": 2.5, f"{LOOPS} loops, two ranks": 12.0}
NAME = "confirm"


class Arguments(argparse.Namespace):
    rounds: int
    write: Path | None


@dataclass(frozen=True)
class Command:
    """What is timed; `finds` is the number of findings that it has to print, 0 for one that prints none."""

    name: str
    arguments: Sequence[str]
    finds: int = 0


def main() -> None:
    arguments = _arguments()
    if arguments.write is not None:
        around(arguments.write, NAME)
    with tempfile.TemporaryDirectory() as folder:
        commands = _commands(Path(folder))
        times = {command.name: list[tuple[float, float]]() for command in commands}
        for _ in range(arguments.rounds):
            for command in commands:
                times[command.name].append(_timed(command))
    page = "\n".join(_page(times, arguments))
    print(page)
    if arguments.write is not None:
        put(arguments.write, NAME, page)


def _commands(folder: Path) -> list[Command]:
    """The commands in the order of a round; the loops are copied, each once."""
    files = sorted(
        file
        for number in ("101", "102", "104", "202", "301", "302", "304", "305", "401", "402", "403")
        for file in (FIXTURES / f"acc{number}").glob("bad_*.py")
        if ".fixed" not in file.name and "accelerate" not in file.read_text(encoding="utf-8")
    )[:LOOPS]
    chosen: list[str] = []
    for file in files:
        copy = folder / f"{file.parent.name}_{file.name}"
        copy.write_bytes(file.read_bytes())
        chosen.append(str(copy))
    confirm = ["-m", "accumlint", "confirm", "--isolated", "--output-format", "json"]
    return [
        Command("import torch", ["-c", "import torch"]),
        Command("one finding, one rank", [*confirm, str(ALONE)], 1),
        Command("import torch, again", ["-c", "import torch"]),
        Command(f"{len(chosen)} loops, two ranks", [*confirm, "--nproc-per-node", "2", *chosen], len(chosen)),
    ]  # fmt: skip


def _timed(command: Command) -> tuple[float, float]:
    """Seconds of the clock and of the processor, those of all processes that it started included."""
    before, start = os.times(), perf_counter()
    done = subprocess.run([sys.executable, *command.arguments], capture_output=True, check=False)
    seconds, after = perf_counter() - start, os.times()
    if done.stdout.count(b'"verdict"') < command.finds or done.returncode not in (0, 1):
        sys.exit(f"{command.name}: {done.returncode}\n{done.stderr.decode()}")
    spent = after.children_user + after.children_system
    return seconds, spent - before.children_user - before.children_system


def _page(times: dict[str, list[tuple[float, float]]], arguments: Arguments) -> list[str]:
    bare = [*times.pop("import torch"), *times.pop("import torch, again")]
    wall, processor = (median(one[i] for one in bare) for i in (0, 1))
    shown = ["python", "benchmarks/confirm.py", "--rounds", str(arguments.rounds)]
    if arguments.write is not None:
        shown += ["--write", arguments.write.as_posix()]
    return [
        f"Measured on {date.today()} with accumlint {version('accumlint')}, torch {version('torch')}, "
        f"{platform.python_implementation()} {platform.python_version()}, {platform.system()}, {os.cpu_count()} cores:",
        "",
        "```sh",
        " ".join(shown),
        "```",
        "",
        "| | clock, s | processor, s | clock, times `import torch` | lowest-highest | aim |",
        "| --- | --- | --- | --- | --- | --- |",
        f"| `import torch` | {wall:.2f} | {processor:.2f} | 1 | | |",
        *(
            f"| {name} | {median(w for w, _ in found):.2f} | {median(p for _, p in found):.2f} "
            f"| **{median(w for w, _ in found) / wall:.2f}** "
            f"| {min(found)[0] / wall:.2f}-{max(found)[0] / wall:.2f} | {LIMITS.get(name, 0):g} |"
            for name, found in times.items()
        ),
    ]


def _arguments() -> Arguments:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="default: 5")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into a document")
    arguments = parser.parse_args(namespace=Arguments())
    if arguments.rounds < 1:
        parser.error("--rounds must be 1 or more")
    return arguments


if __name__ == "__main__":
    main()
