"""Checks programs that are changed at random, and says which of them break accumlint down or take too long.

    python benchmarks/fuzz.py [--count 4000] [--seed 26] [--limit 5] [--keep FOLDER]

Each program is a fixture, or a small file of `hostile.py`, in which up to a dozen places are changed: lines and tokens
are left out, repeated, exchanged and taken from other programs, blocks are moved in and out, numbers grow. Most of them
still parse. The number of a program and the seed decide all of it. `--keep` writes those that fail. `--first` begins
later.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import subprocess
import sys
import time
import tokenize
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypedDict

import hostile

from accumlint import config
from accumlint.check import check_bytes
from accumlint.common.problem import Kind, Problem
from accumlint.diagnostics.results.report import Checked
from accumlint.files.inputs.discovery import Target
from accumlint.files.source import tree

FIXTURES = Path(__file__).parents[1] / "fixtures"
MOST = 12
BROKEN = 0.02
# Programs that one process checks.
BATCH = 250
WORDS = (
    "for", "while", "if", "else:", "return", "yield", "yield from", "await", "async", "lambda",
    "with", "try:", "except:", "break", "continue", "del", "global", "nonlocal", "not", "*", "**",
    "@", ":=", "(", ")", "[", "]", "None", "True", "loss", "model", "optimizer", "scaler", "self",
    "loss.backward()", "optimizer.step()", "zero_grad()", "/ 4", "10 ** 400", "-1", "0", "'", '"""',
    "f'{loss}'", "\\", "\f", "\t", "match loss:", "case _:", "\N{GREEK SMALL LETTER PI}",
)  # fmt: skip

Mutation = Callable[[list[str], random.Random], list[str]]


class Told(TypedDict):
    """What checking a program took and gave."""

    number: int
    seconds: float
    findings: int
    fixes: int
    refused: bool
    cut: bool
    fault: str


class Arguments(argparse.Namespace):
    count: int
    first: int
    seed: int
    limit: float
    keep: Path | None
    worker: bool


def without(lines: list[str], chance: random.Random) -> list[str]:
    first = chance.randrange(len(lines))
    return lines[:first] + lines[first + chance.choice((1, 1, 2, 5)) :]


def repeated(lines: list[str], chance: random.Random) -> list[str]:
    first = chance.randrange(len(lines))
    part = lines[first : first + chance.choice((1, 3, 8))]
    return lines[:first] + part * chance.choice((2, 3, 20)) + lines[first + len(part) :]


def exchanged(lines: list[str], chance: random.Random) -> list[str]:
    one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return lines


def moved_in(lines: list[str], chance: random.Random) -> list[str]:
    """Puts a loop, a function or the like around the rest of a block."""
    first = chance.randrange(len(lines))
    indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
    opening = chance.choice(
        ("for i in loader:", "while True:", "if flag:", "def inner(x=None):", "class Inner:", "with torch.no_grad():")
    )  # fmt: skip
    last = first + chance.choice((1, 4, len(lines)))
    inner = [f"    {line}" if line.strip() else line for line in lines[first:last]]
    return [*lines[:first], indent + opening, *inner, *lines[last:]]


def moved_out(lines: list[str], chance: random.Random) -> list[str]:
    first = chance.randrange(len(lines))
    last = first + chance.choice((1, 4))
    return [
        *lines[:first],
        *(line.removeprefix("    ") for line in lines[first:last]),
        *lines[last:],
    ]


def grafted(lines: list[str], chance: random.Random) -> list[str]:
    """Puts a part of another program somewhere."""
    other = chance.choice(_programs()).splitlines() or [""]
    start = chance.randrange(len(other))
    part = other[start : start + chance.choice((1, 5, 15))]
    first = chance.randrange(len(lines))
    return [*lines[:first], *part, *lines[first:]]


def renamed(lines: list[str], chance: random.Random) -> list[str]:
    """Calls a name of the program by another one, everywhere."""
    text = "\n".join(lines)
    words = sorted({t.string for t in _tokens(text) if t.type == tokenize.NAME})
    if len(words) < 2:
        return lines
    one, other = chance.sample(words, 2)
    tokens = [t._replace(string=other) if t.string == one else t for t in _tokens(text)]
    return _spelt(text, tokens)


def token_changed(lines: list[str], chance: random.Random) -> list[str]:
    """Leaves out a token, repeats it, or puts another one there."""
    text = "\n".join(lines)
    tokens = [t for t in _tokens(text) if t.string.strip()]
    if not tokens:
        return lines
    place = chance.randrange(len(tokens))
    token = tokens[place]
    new = chance.choice(
        ("", f"{token.string} {token.string}", chance.choice(WORDS), chance.choice(tokens).string)
    )
    tokens[place] = token._replace(string=new)
    return _spelt(text, tokens)


def grown(lines: list[str], chance: random.Random) -> list[str]:
    text = "\n".join(lines)
    numbers = ("0", "-1", "1e400", "10**400", "2**63", "True", "10_000_000", "0.0", "[1] * 9")
    tokens = [
        t._replace(string=chance.choice(numbers)) if t.type == tokenize.NUMBER and chance.random() < 0.5 else t
        for t in _tokens(text)
    ]  # fmt: skip
    return _spelt(text, tokens)


MUTATIONS: Sequence[Mutation] = (
    without, repeated, exchanged, moved_in, moved_out, grafted, renamed, token_changed, token_changed, grown,
)  # fmt: skip


def _tokens(text: str) -> list[tokenize.TokenInfo]:
    """The tokens of a text as far as it has any."""
    found: list[tokenize.TokenInfo] = []
    with suppress(tokenize.TokenError, SyntaxError):
        found.extend(tokenize.generate_tokens(io.StringIO(text).readline))
    return found


def _spelt(text: str, tokens: Sequence[tokenize.TokenInfo]) -> list[str]:
    """A text in which tokens of one line have other strings."""
    lines = text.split("\n")
    for token in reversed(tokens):
        (row, start), (end_row, end) = token.start, token.end
        if row == end_row and row <= len(lines) and lines[row - 1][start:end] != token.string:
            lines[row - 1] = lines[row - 1][:start] + token.string + lines[row - 1][end:]
    return "\n".join(lines).split("\n")


@cache
def _programs() -> tuple[str, ...]:
    fixtures = (file.read_text(encoding="utf-8") for file in sorted(FIXTURES.rglob("*.py")))
    made = (hostile.made(kind, 0.004) for kind in hostile.KINDS)
    return (*fixtures, *made)


def program(seed: int, number: int) -> str:
    """The changed program of a number."""
    chance = random.Random(f"{seed} {number}")
    lines = chance.choice(_programs()).split("\n")
    for _ in range(chance.randint(1, MOST)):
        changed = chance.choice(MUTATIONS)(list(lines), chance) or [""]
        # Of what Python cannot read, a little is enough.
        if tree("\n".join(changed)) is not None or chance.random() < BROKEN:
            lines = changed
    return "\n".join(lines)


def work(arguments: Arguments) -> None:
    """Checks programs, and prints of each what it took and gave, before the next one begins."""
    target = Target(
        "train.py", "train.py", config.settings(Path("/"), config.Options(isolated=True))
    )
    for number in range(arguments.first, arguments.first + arguments.count):
        data = program(arguments.seed, number).encode()
        start = time.process_time()
        try:
            checked = check_bytes(data, target)
        except Exception:  # noqa: BLE001 (whatever breaks is what is looked for)
            fault = Problem(target.shown, "", Kind.FAULT, traceback=traceback.format_exc())
            checked = Checked(target.shown, problems=(fault,))
        told: Told = {
            "number": number,
            "seconds": time.process_time() - start,
            "findings": len(checked.reports),
            "fixes": sum(report.fix is not None for report in checked.reports),
            "refused": any(p.kind is Kind.UNREADABLE for p in checked.problems),
            "cut": any(p.kind is Kind.WARNING for p in checked.problems),
            "fault": "".join(p.traceback for p in checked.problems),
        }
        print(json.dumps(told), flush=True)


def main() -> None:
    arguments = _arguments()
    if arguments.worker:
        return work(arguments)
    failed: dict[int, str] = {}
    totals: Counter[str] = Counter()
    longest = (0.0, 0)
    end = arguments.first + arguments.count
    number = arguments.first
    while number < end:
        batch = min(BATCH, end - number)
        code, rows = _checked(number, batch, arguments)
        for row in rows:
            totals += Counter(
                findings=row["findings"], fixes=row["fixes"], refused=row["refused"], cut=row["cut"]
            )
            longest = max(longest, (row["seconds"], row["number"]))
            if row["fault"] or row["seconds"] > arguments.limit:
                failed[row["number"]] = row["fault"] or f"{row['seconds']:.1f} CPU seconds"
        number += len(rows)
        if len(rows) < batch:
            failed[number] = f"its process ended with {code}"
            number += 1
        print(
            f"{number - arguments.first} of {arguments.count}, {len(failed)} failed",
            file=sys.stderr,
        )
    for failure, reason in failed.items():
        print(f"program {failure}: {reason}")
        if arguments.keep:
            arguments.keep.mkdir(parents=True, exist_ok=True)
            path = arguments.keep / f"program_{arguments.seed}_{failure}.py"
            path.write_text(program(arguments.seed, failure), encoding="utf-8")
    print(
        f"{arguments.count} programs with seed {arguments.seed}: {len(failed)} faults or past {arguments.limit:g} s; "
        f"{totals['refused']} refused in one line, {totals['findings']} findings, {totals['fixes']} fixes, "
        f"{totals['cut']} cut short; the longest took {longest[0]:.2f} s (program {longest[1]})"
    )
    sys.exit(bool(failed))


def _checked(first: int, count: int, arguments: Arguments) -> tuple[int, list[Told]]:
    """How a process that checked some programs ended, and what it told of each."""
    command = [sys.executable, __file__, "--worker", "--first", str(first), "--count", str(count)]
    command += ["--seed", str(arguments.seed)]
    limit = max(60.0, arguments.limit * count)
    try:
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=limit)
        code, told = ran.returncode, ran.stdout
    except subprocess.TimeoutExpired as over:
        code, told = -1, over.stdout.decode() if isinstance(over.stdout, bytes) else ""
    return code, [json.loads(row) for row in told.splitlines()]


def _arguments() -> Arguments:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=4_000, help="how many programs")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--seed", type=int, default=26, help="what the programs depend on")
    parser.add_argument("--limit", type=float, default=5, help="CPU seconds that one may take")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="where to write those that fail"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(namespace=Arguments())


if __name__ == "__main__":
    main()
