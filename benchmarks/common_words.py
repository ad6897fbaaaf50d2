"""Counts the words of names in public training scripts, and writes those that `accumlint trace --report` keeps.

    python benchmarks/common_words.py REPOSITORIES [--least 12] [--write]

REPOSITORIES is a folder of checkouts called REPOSITORY@COMMIT, such as `benchmarks/labels.py` writes. The words of the
files that call `backward()` count, each once for a repository: what so many of them use tells nothing about whose code
it is.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from pathlib import Path

from accumlint.editing.anonymous import UnreadableText, words

WORDS = Path(__file__).parents[1] / "accumlint" / "editing" / "common_words.txt"


class Arguments(argparse.Namespace):
    repositories: Path
    least: int
    write: bool


def used(checkout: Path) -> set[str]:
    """The words of the names in the files of a checkout that train."""
    found: set[str] = set()
    for file in checkout.rglob("*.py"):
        text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
        if ".backward(" in text:
            try:
                found.update(words(text))
            except UnreadableText:
                continue
    return found


def main(asked: Arguments) -> None:
    by_repository: defaultdict[str, set[str]] = defaultdict(set)
    for folder in asked.repositories.iterdir():
        by_repository[folder.name.partition("@")[0]] |= used(folder)
    counted = Counter(word for words in by_repository.values() for word in words)
    kept = sorted(w for w, n in counted.items() if n >= asked.least and len(w) > 1 and w.isascii())
    print(
        f"{len(by_repository)} repositories, {len(counted)} words, {len(kept)} in at least {asked.least} of them"
    )
    if asked.write:
        WORDS.write_text("\n".join(kept) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("repositories", type=Path)
    parser.add_argument("--least", type=int, default=12, help="repositories that use a word")
    parser.add_argument("--write", action="store_true", help="write the list of words")
    main(parser.parse_args(namespace=Arguments()))
