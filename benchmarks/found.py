"""What other linters say of the defects that accumlint's fixtures hold, and of the right loops beside them.

    python benchmarks/found.py --peers PEERS/bin --write docs/benchmarks.md

PEERS is a virtual environment with `pip install torchfix flake8 flake8-bugbear pylint fixit`; ruff is the one at hand.

A defect counts as found by a linter when one of its checks marks a marked line of a bad fixture and no line of any good
one: a check that fires on right loops as well is about something else (style, unused names), and is counted as an
accident. All checks of each linter are switched on.
"""

from __future__ import annotations

import argparse
import datetime
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "fixtures"
_MARKER = re.compile(r"# error: ([A-Z0-9, ]+)$")
# file:line[:column]: CODE …
_SAID = re.compile(
    r"^(?P<file>[^:\n]+\.py)[:@](?P<line>\d+)(?::\d+)?:? \[?(?P<code>[A-Za-z][\w-]*)"
)


@dataclass(frozen=True)
class Said:
    """One message of a linter."""

    file: str
    line: int
    code: str


@dataclass(frozen=True)
class Linter:
    """A linter with all of its checks, and the words that ask for its version."""

    name: str
    command: tuple[str, ...]

    def run(self, files: Sequence[Path]) -> set[Said]:
        names = [str(file.relative_to(ROOT)) for file in files]
        ran = subprocess.run(
            [*self.command, *names], cwd=ROOT, capture_output=True, check=False, timeout=1800
        )
        text = ran.stdout.decode() + ran.stderr.decode()
        found = {
            Said(m["file"], int(m["line"]), m["code"])
            for line in text.splitlines()
            if (m := _SAID.match(line))
        }
        if ran.returncode not in (0, 1, 2, 4, 8, 16, *range(17, 32)):
            sys.exit(f"{self.name} failed: {text[-500:]}")
        return found

    @property
    def version(self) -> str:
        ours = ["-m", "accumlint"] if self.name == "accumlint" else []
        ran = subprocess.run(
            [self.command[0], *ours, "--version"], capture_output=True, check=False
        )
        match = re.search(r"\d+\.\d+(\.\d+)*", ran.stdout.decode() + ran.stderr.decode())
        return match[0] if match else ""


def linters(peers: Path) -> list[Linter]:
    """accumlint and its peers; those that print otherwise are told to print lines."""
    ours = [
        "-m",
        "accumlint",
        "check",
        "--isolated",
        "--select",
        "ALL",
        "--output-format",
        "concise",
    ]
    ruff = [
        "check",
        "--isolated",
        "--preview",
        "--select",
        "ALL",
        "--output-format",
        "concise",
        "--no-cache",
    ]
    pylint = ["--rcfile=/dev/null", "--enable=all", "--score=no"]
    template = "--msg-template={path}:{line}:{column}: {msg_id} {msg}"
    return [
        Linter("accumlint", (sys.executable, *ours)),
        Linter("TorchFix", (str(peers / "torchfix"), "--select=ALL")),
        Linter("ruff", (shutil.which("ruff") or "ruff", *ruff)),
        Linter("pylint", (str(peers / "pylint"), *pylint, template)),
        Linter(
            "flake8 + bugbear", (str(peers / "flake8"), "--isolated", "--extend-select", "B,B9")
        ),
        Linter("Fixit", (str(peers / "fixit"), "lint")),
    ]


def marked(file: Path) -> dict[int, set[str]]:
    """The codes that each line of a fixture is marked with."""
    rows = enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
    return {
        n: set(m[1].replace(" ", "").split(",")) for n, row in rows if (m := _MARKER.search(row))
    }


def fixtures() -> tuple[list[Path], list[Path]]:
    """The bad and the good ones of single files, ignores and settings left out: those are about no loop."""
    files = [
        f
        for f in sorted(FIXTURES.glob("*/*.py"))
        if not f.parent.name.startswith(("acc9", "hostile", "sample"))
    ]
    bad = [f for f in files if f.name.startswith("bad_") and not f.name.endswith(".fixed.py")]
    return bad, [f for f in files if f.name.startswith("good_") or f.parent.name == "clean"]


@dataclass(frozen=True)
class Score:
    """The defects that a linter found, those it marked by accident, and its checks that found them."""

    linter: str
    found: frozenset[str]
    accidents: frozenset[str]
    codes: frozenset[str]


def score(linter: Linter, bad: Sequence[Path], good: Sequence[Path]) -> Score:
    on_good = {said.code for said in linter.run(good)}
    if linter.name == "accumlint":
        # It must be silent on right loops altogether, so that nothing is set aside for it.
        assert not on_good, on_good
    marks = {str(f.relative_to(ROOT)): marked(f) for f in bad}
    found: set[str] = set()
    accidents: set[str] = set()
    codes: set[str] = set()
    for said in linter.run(bad):
        here = marks.get(said.file, {}).get(said.line, set())
        if linter.name == "accumlint":
            here = here & {said.code}
        (accidents if said.code in on_good else found).update(here)
        if here and said.code not in on_good:
            codes.add(said.code)
    return Score(
        f"{linter.name} {linter.version}",
        frozenset(found),
        frozenset(accidents - found),
        frozenset(codes),
    )


def report(
    scores: Sequence[Score], bad: Sequence[Path], good: Sequence[Path], command: str
) -> Iterator[str]:
    whole = {code for file in bad for codes in marked(file).values() for code in codes}
    yield f"Measured on {datetime.date.today()} on {len(bad)} wrong and {len(good)} right files:"
    yield ""
    yield f"```sh\n{command}\n```"
    yield ""
    yield f"| linter | of {len(whole)} kinds of defects, found | marked by a check that marks right loops too | by |"
    yield "| --- | --- | --- | --- |"
    for one in scores:
        by = "" if one.linter.startswith("accumlint") else ", ".join(sorted(one.codes))
        yield f"| {one.linter} | {len(one.found)} | {len(one.accidents)} | {by} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    bad, good = fixtures()
    scores = [score(linter, bad, good) for linter in linters(asked.peers)]
    command = "python benchmarks/found.py --peers PEERS/bin --write docs/benchmarks.md"
    told = "\n".join(report(scores, bad, good, command))
    print(told)
    if asked.write:
        text = asked.write.read_text(encoding="utf-8")
        between = re.compile(r"(<!-- found: begin -->\n).*?(\n<!-- found: end -->)", re.DOTALL)
        asked.write.write_text(
            between.sub(lambda m: f"{m[1]}\n{told}\n{m[2]}", text), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
