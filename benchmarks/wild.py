"""Confirms the defects of `docs/wild.md` again, in the code that they were found in.

    python benchmarks/wild.py --files FOLDER --clone DIR       fetches the commits, runs each loop
    python benchmarks/wild.py --files FOLDER --repos DIR       uses the repositories that are there
    ... --only OWNER/NAME                                      confirms those of one repository
    python benchmarks/wild.py --write                          writes the page's table from docs/data/wild.toml
    python benchmarks/wild.py --check                          ends with 1 where the page has another table

A loop is run by `accumlint confirm`, on data that accumlint makes up, in the project that it is from. The exit code is
1 where one is not confirmed, or not for the reason that the table gives.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkouts import PROJECT
from labelled import Source, source, toml
from rows import HOST, Arguments, fetched, put_or_compared, run

ROOT = Path(__file__).parents[1]
DATA, PAGE, MARK = ROOT / "docs" / "data" / "wild.toml", ROOT / "docs" / "wild.md", "defects"
OPTIONS = ("--isolated", "--output-format", "json", "--timeout", "300")


@dataclass(frozen=True)
class Defect:
    """A defect, the line that it is reported on, what a run of the loop showed, and whether it is fixed."""

    source: Source
    line: int
    code: str
    measured: str
    state: str


def defects(file: Path = DATA) -> list[Defect]:
    """The defects of the page, in its order."""
    return [
        Defect(source(each), each["line"], each["code"], each["measured"], each["state"])
        for each in toml(file)["defect"]
    ]


def rows(found: Iterable[Defect]) -> Iterator[str]:
    """The defects as a table in Markdown."""
    yield "| repository | place | rule | state | what a run shows |"
    yield "| --- | --- | --- | --- | --- |"
    for each in found:
        file = each.source
        at = f"{HOST}/{file.repository}/blob/{file.commit}/{file.path}#L{each.line}"
        place = f"[`{file.path.rpartition('/')[2]}:{each.line}`]({at})"
        rule = f"[{each.code}](rules/{each.code.lower()}.md)"
        yield f"| {file.repository} | {place} | {rule} | {each.state} | {each.measured} |"


def confirmed(file: Path, project: Path) -> list[dict[str, Any]]:
    """What `accumlint confirm` says of each finding in a file."""
    done = subprocess.run(
        (sys.executable, "-m", "accumlint", "confirm", str(file), *OPTIONS),
        cwd=project, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return json.loads(done.stdout or "[]")


def contradicted(found: Iterable[Defect], files: Path) -> Iterator[str]:
    """A line for each defect that a run does not show, or shows otherwise."""
    by_source: defaultdict[Source, list[Defect]] = defaultdict(list)
    for each in found:
        by_source[each.source].append(each)
    for place, held in by_source.items():
        project = files / PROJECT / place.folder
        said = {
            (one["location"]["row"], one["code"]): f"{one['verdict']}: {one['reason']}"
            for one in confirmed(project / place.path, project)
        }
        for each in held:
            verdict = said.get((each.line, each.code), "no finding")
            print(f"{place.repository} {place.path}:{each.line} {each.code} {verdict}")
            if verdict != f"confirmed: {each.measured}":
                yield f"{place.repository} {place.path}:{each.line} {each.code}"


def main(asked: Arguments) -> int:
    """Does what the command line asks for, and returns the exit code."""
    found = defects()
    page = "\n".join(rows(found))
    if (code := put_or_compared(asked, PAGE, MARK, page)) is not None:
        return code
    files = fetched(asked, (each.source for each in found))
    found = [each for each in found if asked.asks_for(each.source.repository)]
    wrong = list(contradicted(found, files))
    print(f"{len(found) - len(wrong)} of {len(found)} confirmed as the page says")
    return int(bool(wrong))


if __name__ == "__main__":
    run(__doc__, main)
