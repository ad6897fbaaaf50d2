"""Checks commits that mended a defect: `check` finds it in the commit before, and no longer finds it in the commit.

    python benchmarks/history.py --files FOLDER --clone DIR    fetches the commits, checks both texts of each file
    python benchmarks/history.py --files FOLDER --repos DIR    uses the repositories that are there
    ... --only OWNER/NAME                                      checks those of one repository
    python benchmarks/history.py --write                       writes the page's table from docs/data/fixes.toml
    python benchmarks/history.py --check                       ends with 1 where the page has another table

The exit code is 1 where a defect is not found before or is found afterwards.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from checkouts import PROJECT
from labelled import Source, toml
from rows import HOST, Arguments, fetched, put_or_compared, run

ROOT = Path(__file__).parents[1]
DATA, PAGE, MARK = ROOT / "docs" / "data" / "fixes.toml", ROOT / "docs" / "wild.md", "history"
OPTIONS = (
    "--isolated",
    "--no-cache",
    "--exit-zero",
    "--min-confidence",
    "possible",
    "--output-format",
    "json",
)


@dataclass(frozen=True)
class Place:
    """A defect in the commit before; `possible`: by default, `check` does not report it."""

    path: str
    line: int
    code: str
    possible: bool = False


@dataclass(frozen=True)
class Fix:
    """A commit that mended defects, the commit before it, its day and its pull request (0 for none)."""

    repository: str
    before: str
    after: str
    date: date
    pull: int
    was: str
    places: tuple[Place, ...]


def fixes(file: Path = DATA) -> list[Fix]:
    """The fixes of the page, in its order."""
    return [
        Fix(
            each["repository"], each["before"], each["after"], each["date"], each.get("pull", 0), each["was"],
            tuple(Place(**place) for place in each["places"]),
        )
        for each in toml(file)["fix"]
    ]  # fmt: skip


def rows(found: Iterable[Fix]) -> Iterator[str]:
    """The fixes as a table in Markdown."""
    yield "| repository | fixed in | what the update was | found in the commit before |"
    yield "| --- | --- | --- | --- |"
    for each in found:
        home = f"{HOST}/{each.repository}"
        pull = f"[#{each.pull}]({home}/pull/{each.pull})" if each.pull else ""
        fixed = pull or f"[{each.after[:7]}]({home}/commit/{each.after})"
        places = ", ".join(
            f"[`{place.path.rpartition('/')[2]}:{place.line}`]"
            f"({home}/blob/{each.before}/{place.path}#L{place.line})"
            for place in each.places
        )
        codes = ", ".join(f"[{c}](rules/{c.lower()}.md)" for c in sorted(codes_of(each)))
        codes += " (*possible*)" if any(place.possible for place in each.places) else ""
        yield f"| {each.repository} | {fixed}, {each.date} | {each.was} | {codes}: {places} |"


def codes_of(fix: Fix) -> set[str]:
    return {place.code for place in fix.places}


def checked(commit: str, fix: Fix, files: Path) -> set[Place]:
    """What `check` finds of a fix's rules in its files, in their project at a commit."""
    project = files / PROJECT / Source(fix.repository, commit, "").folder
    paths = sorted({place.path for place in fix.places})
    done = subprocess.run(
        (sys.executable, "-m", "accumlint", "check", *paths, *OPTIONS, "--select", ",".join(codes_of(fix))),
        cwd=project, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return {
        Place(Path(one["filename"]).as_posix().removeprefix(f"{project.resolve().as_posix()}/"),
              one["location"]["row"], one["code"], one["confidence"] == "possible")
        for one in json.loads(done.stdout or "[]")
    }  # fmt: skip


def contradicted(found: Iterable[Fix], files: Path) -> Iterator[str]:
    """A line for each defect that is not found before its fix, or found after it."""
    for fix in found:
        before, after = (checked(commit, fix, files) for commit in (fix.before, fix.after))
        left = {(place.path, place.code) for place in after}
        for place in fix.places:
            silent = (place.path, place.code) not in left
            shown = f"{fix.repository} {place.path}:{place.line} {place.code}"
            said = "found" if place in before else "not found"
            print(f"{shown} {said} before, {'silent' if silent else 'found'} after")
            if place not in before or not silent:
                yield shown


def main(asked: Arguments) -> int:
    """Does what the command line asks for, and returns the exit code."""
    found = fixes()
    page = '<div class="stacked" markdown>\n\n' + "\n".join(rows(found)) + "\n\n</div>"
    if (code := put_or_compared(asked, PAGE, MARK, page)) is not None:
        return code
    sources = (
        Source(each.repository, commit, place.path)
        for each in found
        for commit in (each.before, each.after)
        for place in each.places
    )
    files = fetched(asked, sources)
    found = [each for each in found if asked.asks_for(each.repository)]
    wrong = list(contradicted(found, files))
    count = sum(len(each.places) for each in found)
    print(f"{count - len(wrong)} of {count} found before and silent after")
    return int(bool(wrong))


if __name__ == "__main__":
    run(__doc__, main)
