"""Checks commits that mended a defect: `check` finds it in the commit before, and no longer finds it in the commit.

    python benchmarks/history.py --files FOLDER --clone DIR    fetches the commits, checks both texts of each file
    python benchmarks/history.py --files FOLDER --repos DIR    uses the repositories that are there
    ... --only OWNER/NAME                                      checks those of one repository
    python benchmarks/history.py --write                       writes the page's table from docs/data/fixes.toml
    python benchmarks/history.py --check                       ends with 1 where the page has another table

The exit code is 1 where a defect is not found before or is found afterwards.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from checkouts import PROJECT, write
from document import filled, put
from labelled import InputError, Source, toml

ROOT = Path(__file__).parents[1]
DATA, PAGE, MARK = ROOT / "docs" / "data" / "fixes.toml", ROOT / "docs" / "wild.md", "history"
HOST = "https://github.com"
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


class Arguments(argparse.Namespace):
    files: Path | None
    clone: Path | None
    repos: Path | None
    host: str
    only: str
    write: bool
    check: bool


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
    if asked.check:
        return int(filled(PAGE, MARK, page) != PAGE.read_text(encoding="utf-8"))
    if asked.write:
        put(PAGE, MARK, page)
        return 0
    repositories = asked.clone or asked.repos
    if not asked.files or not repositories:
        raise InputError("--files and one of --clone and --repos are needed")
    found = [each for each in found if asked.only in ("", each.repository)]
    if not found:
        raise InputError(f"--only: the page has no fix of {asked.only}")
    sources = sorted(
        {
            Source(each.repository, commit, place.path)
            for each in found
            for commit in (each.before, each.after)
            for place in each.places
        }
    )
    for problem in write(sources, repositories, asked.files, asked.host if asked.clone else None):
        print(f"not to be had: {problem}", file=sys.stderr)
    wrong = list(contradicted(found, asked.files))
    count = sum(len(each.places) for each in found)
    print(f"{count - len(wrong)} of {count} found before and silent after")
    return int(bool(wrong))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=Path, help="the folder that checkouts are written to")
    parser.add_argument("--clone", type=Path, help="where repositories are fetched to")
    parser.add_argument("--repos", type=Path, help="where repositories are")
    parser.add_argument("--host", default=HOST, help=f"where they are fetched from ({HOST})")
    parser.add_argument("--only", default="", help="the repository whose fixes are checked")
    parser.add_argument("--write", action="store_true", help="write the table of the page")
    parser.add_argument("--check", action="store_true", help="compare the table of the page")
    try:
        sys.exit(main(parser.parse_args(namespace=Arguments())))
    except InputError as problem:
        sys.exit(f"history.py: {problem}")
