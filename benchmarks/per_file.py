"""Measures accumlint's time per file after imports, and beside other linters on request.

Every Python file of the given folders that may hold a training loop is checked in one process, some rounds over; the
time of a file is the CPU time of its median round. Garbage is collected between files, outside the measurement.

The peers want a virtual environment of their own, as they pin other versions of what accumlint needs:

    python3 -m venv ../peers && ../peers/bin/pip install torchfix fixit

    python benchmarks/per_file.py FOLDER
    python benchmarks/per_file.py --peers --torchfix ../peers/bin/torchfix --fixit ../peers/bin/fixit \\
        --files-are "training files of my company" --write docs/benchmarks.md FOLDER

Peers run as whole processes, imports included, on copies of the same files: accumlint, peer, accumlint, peer …
Needs Unix.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles

from document import around, put
from peers import Pair, PeerError, compare
from stopwatch import STAGES, pipeline

from accumlint import check
from accumlint.common.problem import Kind
from accumlint.config import Options
from accumlint.diagnostics.results.report import Checked
from accumlint.files import prefilter
from accumlint.files.inputs import discovery
from accumlint.files.inputs.discovery import Target

# One finding, so that all that is imported late is there before the clock starts.
WARM = b"""
for i, batch in enumerate(loader):
    loss = model(batch).mean()
    loss.backward()
    if (i + 1) % accumulation_steps == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
LIMITS = (0.15, 1.0, 3.0)


class Arguments(argparse.Namespace):
    paths: list[str]
    peers: bool
    torchfix: str
    fixit: str
    rounds: int
    files_are: str
    write: Path | None


@dataclass(frozen=True)
class Timed:
    """One file: the seconds of its stages in the median round, and what checking it gave."""

    name: str
    stages: dict[str, float]
    checked: Checked

    @property
    def seconds(self) -> float:
        return sum(self.stages.values())


def main() -> None:
    arguments = _arguments()
    targets = [
        target
        for target in discovery.find(arguments.paths, Options(isolated=True))[0]
        if prefilter.may_train(Path(target.file).read_bytes())
    ]
    if len(targets) < 2:
        sys.exit("fewer than two files that may hold a training loop: nothing to measure")
    if arguments.write is not None:
        around(arguments.write, "per_file")
    pairs: list[Pair] = []
    if arguments.peers:
        files = [Path(target.file) for target in targets]
        try:
            pairs.extend(compare(files, arguments.torchfix, arguments.fixit, arguments.rounds))
        except PeerError as problem:
            sys.exit(str(problem))
    timed = _measured(targets, arguments.rounds)
    page = "\n".join(
        [*_heading(arguments), *_summary(timed, arguments), *_stages(timed), *_pairs(pairs)]
    )
    print(page)
    print("The slowest files:\n")
    for one in sorted(timed, key=lambda one: -one.seconds)[:10]:
        parts = ", ".join(f"{stage} {1000 * one.stages[stage]:.0f}" for stage in STAGES)
        print(f"{one.seconds:7.3f} s  {one.name}\n           {parts} ms")
    if arguments.write is not None:
        put(arguments.write, "per_file", page)


def _measured(targets: Sequence[Target], rounds: int) -> list[Timed]:
    found: list[list[Timed]] = [[] for _ in targets]
    shared = os.path.commonpath([os.path.dirname(target.file) for target in targets])
    check.check_bytes(WARM, targets[0])
    with pipeline() as watch:
        for _ in range(rounds):
            for target, rounds_of_it in zip(targets, found, strict=True):
                gc.collect()
                watch.lap()
                checked = next(check.check([target]))
                name = os.path.relpath(target.file, shared)
                rounds_of_it.append(Timed(name, watch.lap(), checked))
    return [sorted(each, key=lambda one: one.seconds)[len(each) // 2] for each in found]


def _heading(arguments: Arguments) -> list[str]:
    shown = ["python", "benchmarks/per_file.py", "--rounds", str(arguments.rounds)]
    if arguments.peers:
        shown += ["--peers", "--torchfix", "PEERS/bin/torchfix", "--fixit", "PEERS/bin/fixit"]
    if arguments.files_are:
        shown += ["--files-are", arguments.files_are]
    if arguments.write is not None:
        shown += ["--write", arguments.write.as_posix()]
    return [
        f"Measured on {date.today()} with accumlint {version('accumlint')}, "
        f"{platform.python_implementation()} {platform.python_version()}, {platform.system()}, "
        f"{os.cpu_count()} cores:",
        "",
        "```sh",
        shlex.join([*shown, "FOLDER"]),
        "```",
        "",
    ]


def _summary(timed: Sequence[Timed], arguments: Arguments) -> list[str]:
    seconds = [one.seconds for one in timed]
    kinds = [{problem.kind for problem in one.checked.problems} for one in timed]
    over = {limit: sum(one > limit for one in seconds) for limit in LIMITS}
    return [
        f"| {len(timed)} {arguments.files_are or 'files'} | CPU time per file, after imports |",
        "| --- | --- |",
        f"| median | {median(seconds):.3f} s |",
        f"| 95th percentile | {quantiles(seconds, n=20, method='inclusive')[-1]:.3f} s |",
        f"| maximum | {max(seconds):.3f} s |",
        f"| all files together | {sum(seconds):.1f} s |",
        *(
            f"| over {limit:g} s | {count} ({count / len(timed):.1%}) |"
            for limit, count in over.items()
        ),
        f"| not followed to the end | {sum(Kind.WARNING in each for each in kinds)} |",
        f"| unreadable, or failed on | {sum(bool(each - {Kind.WARNING}) for each in kinds)} |",
        "",
    ]


def _stages(timed: Sequence[Timed]) -> list[str]:
    whole = sum(one.seconds for one in timed)
    lines = ["| stage | median per file | share of all time |", "| --- | --- | --- |"]
    for stage in STAGES:
        spent = [one.stages[stage] for one in timed]
        lines.append(f"| {stage} | {1000 * median(spent):.1f} ms | {sum(spent) / whole:.1%} |")
    return [*lines, ""]


def _pairs(pairs: Sequence[Pair]) -> list[str]:
    if not pairs:
        return []
    return [
        "| peer | files it checked | accumlint, CPU s | peer, CPU s | accumlint / peer | lowest-highest |",
        "| --- | --- | --- | --- | --- | --- |",
        *(pair.row() for pair in pairs),
        "",
    ]


def _arguments() -> Arguments:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a folder or a file")
    parser.add_argument("--peers", action="store_true", help="also run TorchFix and Fixit")
    parser.add_argument("--torchfix", default="torchfix", metavar="CMD", help="where TorchFix is")
    parser.add_argument("--fixit", default="fixit", metavar="CMD", help="where Fixit is")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="default: 3")
    parser.add_argument("--files-are", default="", metavar="WORDS", help="what to call the files")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into a document")
    arguments = parser.parse_args(namespace=Arguments())
    if arguments.rounds < 1:
        parser.error("--rounds must be 1 or more")
    return arguments


if __name__ == "__main__":
    main()
