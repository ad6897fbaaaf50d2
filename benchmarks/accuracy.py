"""Measures how often each rule is right on labelled loops, and writes that beside the rules.

    python benchmarks/accuracy.py LABELS.toml REPOSITORIES

REPOSITORIES holds git repositories as owner/name. LABELS.toml holds loops that someone has read:

    [[loop]]
    repository = "owner/name"
    commit = "6104ab1b53920f6e2159749676073ff7d815c1fa"
    path = "train.py"
    line = 500
    defects = [["loss-not-divided"], ["clip-before-unscale", "clip-every-microbatch"]]
    debatable = ["trailing-window-dropped"]
    complete = true

`line` stands in the loop. `defects` has a list for each defect with the rules that may tell of it, by name, the best
first. In a loop that is `complete`, every other finding is wrong, unless its rule is `debatable`; with `complete =
false` other findings count neither way.

A finding belongs to a loop when a function or class holds both lines, or when they are at most 60 lines apart. It is
*right* when a defect lists its rule. A defect that no finding tells of is *missed*, and counts for its first rule.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scoring import Scopes, near, scopes_of

from accumlint import check
from accumlint.config import Settings
from accumlint.diagnostics.results.report import Report
from accumlint.files.inputs.discovery import Target
from accumlint.registry import packs

DATA = Path(__file__).parents[1] / "rules" / "accuracy.json"


@dataclass(frozen=True)
class Loop:
    """A loop as it was labelled."""

    repository: str
    commit: str
    path: str
    line: int
    defects: tuple[tuple[str, ...], ...]
    debatable: frozenset[str]
    complete: bool

    @property
    def file(self) -> tuple[str, str, str]:
        return self.repository, self.commit, self.path


def loops(labels: Path) -> list[Loop]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    rows: list[dict[str, Any]] = tomllib.loads(labels.read_text(encoding="utf-8"))["loop"]
    return [
        Loop(
            row["repository"],
            row["commit"],
            row["path"],
            row["line"],
            tuple(tuple(names) for names in row.get("defects", [])),
            frozenset(row.get("debatable", [])),
            row.get("complete", False),
        )
        for row in rows
    ]


def sources(labelled: Sequence[Loop], repositories: Path) -> Iterator[tuple[Sequence[Loop], bytes]]:
    """Each labelled file once, with its loops."""
    by_file: defaultdict[tuple[str, str, str], list[Loop]] = defaultdict(list)
    for loop in labelled:
        by_file[loop.file].append(loop)
    for (repository, commit, path), held in by_file.items():
        shown = subprocess.run(
            ["git", "-C", str(repositories / repository), "cat-file", "blob", f"{commit}:{path}"],
            capture_output=True,
            check=False,
        )
        if shown.returncode:
            sys.exit(f"{repository} {commit}: {path}: {shown.stderr.decode().strip()}")
        yield held, shown.stdout


def counted(
    held: Sequence[Loop], source: bytes, reports: Sequence[Report]
) -> Iterator[tuple[str, str]]:
    """What the findings of a file count as: the names of rules with "right", "wrong" or "missed"."""
    scopes = scopes_of(source)
    for report in reports:
        if label := judged(held, scopes, report):
            yield report.name, label
    for loop in held:
        found = {
            report.name for report in reports if near(report.mark.place.line, loop.line, scopes)
        }
        yield from ((names[0], "missed") for names in loop.defects if found.isdisjoint(names))


def judged(held: Sequence[Loop], scopes: Scopes, report: Report) -> str:
    """Whether a finding is "right" or "wrong"; "" where no label says."""
    around = [loop for loop in held if near(report.mark.place.line, loop.line, scopes)]
    if any(report.name in names for loop in around for names in loop.defects):
        return "right"
    debatable = any(report.name in loop.debatable for loop in around)
    return "wrong" if any(loop.complete for loop in around) and not debatable else ""


def measured(labelled: Sequence[Loop], repositories: Path) -> dict[str, dict[str, int]]:
    """The figures of each rule by its code."""
    figures: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(Path(folder), select=("ALL",))
        for number, (held, source) in enumerate(sources(labelled, repositories)):
            # A folder for each file, so that none is read as another one's neighbour.
            file = Path(folder, str(number), Path(held[0].path).name)
            file.parent.mkdir()
            file.write_bytes(source)
            (checked,) = check.check([Target(str(file), str(file), settings)])
            figures.update(counted(held, source, checked.reports))
    return {
        entry.code: {kind: figures[entry.name, kind] for kind in ("right", "wrong", "missed")}
        for entry in packs.catalogue()
        if any(figures[entry.name, kind] for kind in ("right", "wrong", "missed"))
    }


def table(figures: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """The figures as a table in Markdown."""
    yield "| rule | right | wrong | missed |"
    yield "| --- | --- | --- | --- |"
    for code, figure in figures.items():
        name = packs.find(code).name
        yield f"| {code} {name} | {figure['right']} | {figure['wrong']} | {figure['missed']} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("labels", type=Path)
    parser.add_argument("repositories", type=Path)
    parser.add_argument("--write", type=Path, default=DATA, help="where the figures go")
    asked = parser.parse_args()
    figures = measured(loops(asked.labels), asked.repositories)
    asked.write.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(*table(figures), sep="\n")


if __name__ == "__main__":
    main()
