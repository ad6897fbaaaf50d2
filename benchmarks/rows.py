"""The command line of scripts that check the rows of a page in repositories that are fetched."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from checkouts import write
from document import filled, put
from labelled import InputError, Source

HOST = "https://github.com"


class Arguments(argparse.Namespace):
    files: Path | None
    clone: Path | None
    repos: Path | None
    host: str
    only: str
    write: bool
    check: bool

    def asks_for(self, repository: str) -> bool:
        """Whether the rows of a repository are checked."""
        return self.only in ("", repository)


def put_or_compared(asked: Arguments, page: Path, mark: str, table: str) -> int | None:
    """The exit code where the table is to be written or compared, None where its rows are to be checked."""
    if asked.check:
        return int(filled(page, mark, table) != page.read_text(encoding="utf-8"))
    if asked.write:
        put(page, mark, table)
        return 0
    return None


def fetched(asked: Arguments, sources: Iterable[Source]) -> Path:
    """The folder to which the files of some commits are written; what is not to be had is told.

    Raises:
        InputError: where the command line names no folders, or no row's repository.
    """
    repositories = asked.clone or asked.repos
    if not asked.files or not repositories:
        raise InputError("--files and one of --clone and --repos are needed")
    wanted = sorted({source for source in sources if asked.asks_for(source.repository)})
    if not wanted:
        raise InputError(f"--only: the page has no row of {asked.only}")
    for problem in write(wanted, repositories, asked.files, asked.host if asked.clone else None):
        print(f"not to be had: {problem}", file=sys.stderr)
    return asked.files


def run(description: str | None, main: Callable[[Arguments], int]) -> None:
    """Ends the program with the exit code that `main` gives for the command line."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=Path, help="the folder that checkouts are written to")
    parser.add_argument("--clone", type=Path, help="where repositories are fetched to")
    parser.add_argument("--repos", type=Path, help="where repositories are")
    parser.add_argument("--host", default=HOST, help=f"where they are fetched from ({HOST})")
    parser.add_argument("--only", default="", help="the repository whose rows are checked")
    parser.add_argument("--write", action="store_true", help="write the table of the page")
    parser.add_argument("--check", action="store_true", help="compare the table of the page")
    try:
        sys.exit(main(parser.parse_args(namespace=Arguments())))
    except InputError as problem:
        sys.exit(f"{Path(sys.argv[0]).name}: {problem}")
