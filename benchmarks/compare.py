"""Compares accumlint with other linters as whole processes on the same trees, and with itself on growing ones.

The peers want virtual environments of their own, as they pin other versions of what accumlint needs:

    python3 -m venv ../peers && ../peers/bin/pip install torchfix fixit pylint ruff
    python3 -m venv ../semgrep && ../semgrep/bin/pip install semgrep

    python benchmarks/compare.py --bin ../peers/bin --bin ../semgrep/bin \\
        --library transformers=…/site-packages/transformers --scripts examples=../examples --write

Libraries are checked by accumlint and ruff, scripts by every peer that is found. Each round runs every command once,
so that a busy hour slows down all of them; ratios are taken within a round, and their median is told.
Needs Unix.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median

from chart import Bar, chart
from document import around, put
from running import Cost, Failed, measured

DOCUMENT = Path(__file__).parents[1] / "docs" / "benchmarks.md"
PICTURE = DOCUMENT.with_suffix(".svg")
OURS = [sys.executable, "-m", "accumlint", "check", "--isolated", "--exit-zero"]
# What the loops of this rule look like does not matter: semgrep's time goes into starting and matching.
SEMGREP_RULE = """\
rules:
  - id: backward
    languages: [python]
    severity: INFO
    message: a backward
    pattern: $X.backward()
"""
SIZES = (1_000, 4_000, 16_000, 64_000)
LINES = 50_000


class Arguments(argparse.Namespace):
    bin: list[Path]
    library: list[str]
    scripts: list[str]
    rounds: int
    slow_rounds: int
    growth: bool
    write: bool


@dataclass(frozen=True)
class Tool:
    """A command that takes a path as its last word; a slow one runs in fewer rounds."""

    name: str
    command: tuple[str, ...]
    slow: bool = False


def main() -> None:
    arguments = _arguments()
    if arguments.write:
        around(DOCUMENT, "compare")
    page: list[str] = [*_heading(arguments)]
    bars: dict[str, list[Bar]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        try:
            for tree, path, quick in _trees(arguments):
                tools = list(_tools(arguments.bin, Path(scratch), quick))
                costs = _alternating(tools, path, arguments)
                page += _table(f"{tree}: {_size(path)}", costs)
                bars[tree] = [
                    Bar(name, median(c.cpu for c in runs)) for name, runs in costs.items()
                ]
            page += _small(arguments, Path(scratch))
            if arguments.growth:
                page += _growing(arguments, Path(scratch))
                page += _huge(arguments, Path(scratch))
        except Failed as problem:
            sys.exit(str(problem))
    print("\n".join(page))
    if arguments.write:
        put(DOCUMENT, "compare", "\n".join(page))
        PICTURE.write_text(chart("CPU seconds, cold and warm", bars), encoding="utf-8")


def _tools(places: Sequence[Path], scratch: Path, quick: bool) -> Iterator[Tool]:
    """accumlint, and the peers that are found; `quick` leaves out those that take minutes for a library."""

    def found(name: str) -> str:
        return next((str(place / name) for place in places if (place / name).exists()), "")

    rule = scratch / "rule.yaml"
    rule.write_text(SEMGREP_RULE)
    ruff = found("ruff") or shutil.which("ruff")
    yield Tool("accumlint, cold", (*OURS, "--no-cache"))
    yield Tool("accumlint, warm", (*OURS, "--cache-dir", str(scratch / "accumlint")))
    if ruff:
        quiet = (ruff, "check", "--quiet", "--isolated", "--exit-zero", "--select", "F")
        yield Tool("ruff F, cold", (*quiet, "--no-cache"))
        yield Tool("ruff F, warm", (*quiet, "--cache-dir", str(scratch / "ruff")))
    if quick:
        return
    if command := found("torchfix"):
        yield Tool("TorchFix", (command, "-j", "1"), slow=True)
    if command := found("fixit"):
        yield Tool("Fixit", (command, "lint"), slow=True)
    if command := found("pylint"):
        yield Tool(
            "pylint E", (command, "-j1", "--disable=all", "--enable=E", "--recursive=y"), slow=True
        )
    if command := found("semgrep"):
        off = ("--metrics=off", "--disable-version-check", "--quiet", "--no-git-ignore")
        yield Tool("semgrep, 1 rule", (command, "scan", "--config", str(rule), *off), slow=True)


def _alternating(tools: Sequence[Tool], path: Path, arguments: Arguments) -> dict[str, list[Cost]]:
    """What each tool costs on a path, round for round; caches are filled before."""
    for tool in tools:
        if tool.name.endswith("warm"):
            measured([*tool.command, str(path)])
    costs: dict[str, list[Cost]] = {tool.name: [] for tool in tools}
    for number in range(arguments.rounds):
        for tool in tools:
            if number < arguments.slow_rounds or not tool.slow:
                costs[tool.name].append(measured([*tool.command, str(path)]))
    return costs


def _table(title: str, costs: Mapping[str, Sequence[Cost]]) -> list[str]:
    """A row for each tool, in proportion to the first."""
    first = next(iter(costs.values()))
    lines = [
        f"| {title} | CPU s | wall s | peak MB | CPU | wall |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, runs in costs.items():
        cpu = median(run.cpu / base.cpu for run, base in zip(runs, first, strict=False))
        wall = median(run.wall / base.wall for run, base in zip(runs, first, strict=False))
        lines.append(
            f"| {name} | {median(run.cpu for run in runs):.2f} | {median(run.wall for run in runs):.2f} "
            f"| {max(run.peak for run in runs):.0f} | {cpu:.2f} | {wall:.2f} |"
        )
    return [*lines, ""]


def _small(arguments: Arguments, scratch: Path) -> list[str]:
    """One file without a loop beside an empty process, and training scripts beside TorchFix."""
    clean, loop, wrong = (scratch / f"{name}.py" for name in ("clean", "loop", "wrong"))
    clean.write_text("def add(a, b):\n    return a + b\n")
    loop.write_text(LOOP)
    wrong.write_text(LOOP.replace(" / accumulation_steps", ""))
    torchfix = next((str(p / "torchfix") for p in arguments.bin if (p / "torchfix").exists()), "")
    scripts = {f"a loop of {_lines(loop)} lines": loop}
    if typical := _of_middling_length(arguments):
        scripts[f"{typical.name}, {_lines(typical):,} lines"] = typical
    commands = {
        "`python -c pass`": [sys.executable, "-c", "pass"],
        "accumlint, a file without a loop": [*OURS, "--no-cache", str(clean)],
        "accumlint, a wrong loop, with a fix to try": [*OURS, "--no-cache", str(wrong)],
    }
    for name, script in scripts.items():
        commands[f"accumlint, {name}"] = [*OURS, "--no-cache", str(script)]
        if torchfix:
            commands[f"TorchFix, {name}"] = [torchfix, "-j", "1", str(script)]
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(arguments.rounds):
        for name, command in commands.items():
            costs[name].append(measured(command))
    return _table("one file", costs)


def _of_middling_length(arguments: Arguments) -> Path | None:
    """The script of the trees of scripts that as many are longer as are shorter than, of those that go backward."""
    found = [
        file
        for _, path, quick in _trees(arguments)
        if not quick
        for file in path.rglob("*.py")
        if b".backward(" in file.read_bytes()
    ]
    return sorted(found, key=lambda file: (_lines(file), file))[len(found) // 2] if found else None


def _growing(arguments: Arguments, scratch: Path) -> list[str]:
    """The CPU time per file of trees that grow, cold, warm and with one changed file."""
    source = scratch / "module.py"
    source.write_text("".join(f"def f{i}(a, b):\n    return a * {i} + b\n\n\n" for i in range(60)))
    lines = [
        "| files | cold, CPU µs per file | warm | one changed | ruff F, cold |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    ruff = [
        shutil.which("ruff") or "ruff",
        "check",
        "--quiet",
        "--isolated",
        "--no-cache",
        "--select",
        "F",
    ]
    for size in SIZES:
        tree, cache = scratch / f"tree{size}", scratch / f"cache{size}"
        for number in range(size):
            if number % 100 == 0:
                (tree / f"p{number // 100}").mkdir(parents=True)
            os.link(source, tree / f"p{number // 100}" / f"m{number}.py")
        changed = tree / "p0" / "changed.py"
        changed.write_text(LOOP)
        os.utime(source, (1, 1))
        os.utime(changed, (1, 1))
        warm = [*OURS, "--cache-dir", str(cache), str(tree)]
        rounds: list[tuple[float, ...]] = []
        measured(warm)
        for number in range(arguments.rounds):
            cold = measured([*OURS, "--no-cache", str(tree)]).cpu
            unchanged = measured(warm).cpu
            changed.write_text(f"{LOOP}# {number}\n")
            os.utime(changed, (number + 2, number + 2))
            one = measured(warm).cpu
            rounds.append((cold, unchanged, one, measured([*ruff, str(tree)]).cpu))
        shown = (f"{1e6 * median(column) / size:.0f}" for column in zip(*rounds, strict=True))
        lines.append(f"| {size:,} | {' | '.join(shown)} |")
        shutil.rmtree(tree)
    return [*lines, ""]


def _huge(arguments: Arguments, scratch: Path) -> list[str]:
    """One file of many lines with one loop, beside libcst reading all of it."""
    file = scratch / "huge.py"
    function = "def f{0}(rows, {1}):\n    kept = [row for row in rows if row.{1} > {0}]\n    return sorted(kept)\n\n\n"
    functions = "".join(function.format(i, f"size{i}") for i in range(LINES // 5))
    file.write_text(f"{LOOP}\n\n{functions}")
    whole = f"import libcst; libcst.parse_module(open({str(file)!r}).read())"
    commands = {
        "libcst, whole file": [sys.executable, "-c", whole],
        "accumlint": [*OURS, "--no-cache", str(file)],
    }
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(arguments.rounds):
        for name, command in commands.items():
            costs[name].append(measured(command))
    return _table(f"one file of {LINES:,} lines with one loop", costs)


LOOP = """\
import torch.nn.functional as F


def train(model, loader, optimizer, accumulation_steps):
    batches = iter(loader)
    for _ in range(len(loader) // accumulation_steps):
        optimizer.zero_grad()
        for _ in range(accumulation_steps):
            images, labels = next(batches)
            loss = F.cross_entropy(model(images), labels) / accumulation_steps
            loss.backward()
        optimizer.step()
"""


def _trees(arguments: Arguments) -> Iterator[tuple[str, Path, bool]]:
    for listed, quick in ((arguments.library, True), (arguments.scripts, False)):
        for name, _, path in (text.partition("=") for text in listed):
            yield name, Path(path).resolve(), quick


def _size(path: Path) -> str:
    files = list(path.rglob("*.py"))
    return f"{len(files):,} files, {sum(map(_lines, files)):,} lines"


def _lines(file: Path) -> int:
    return file.read_bytes().count(b"\n")


def _heading(arguments: Arguments) -> list[str]:
    named = [*arguments.library, *arguments.scripts]
    trees = " ".join(f"{text.partition('=')[0]}=…" for text in named)
    return [
        f"Measured on {date.today()} with accumlint {version('accumlint')}, "
        f"{platform.python_implementation()} {platform.python_version()}, {platform.system()}, "
        f"{os.cpu_count()} shared cores; {arguments.rounds} rounds ({arguments.slow_rounds} of the slow peers), "
        f"by `benchmarks/compare.py` on {trees}. The last two columns are in proportion to the first row.",
        "",
    ]


def _arguments() -> Arguments:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", type=Path, action="append", default=[], help="where peers are")
    parser.add_argument("--library", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--scripts", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slow-rounds", type=int, default=1)
    parser.add_argument("--growth", action="store_true", help="also trees of up to 64,000 files")
    parser.add_argument("--write", action="store_true", help="put it into docs/benchmarks.md")
    return parser.parse_args(namespace=Arguments())


if __name__ == "__main__":
    main()
