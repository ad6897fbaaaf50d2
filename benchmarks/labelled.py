"""Reads the labels of the public benchmark; `docs/benchmark.md` tells their format."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LABELS = Path(__file__).parents[1] / "docs" / "data" / "labels"
SPLITS = ("mended", "unseen")
_REPOSITORY = re.compile(r"\w[\w.-]*/[\w.-]*\w")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class InputError(Exception):
    """What the user can mend, in one line."""


@dataclass(frozen=True, order=True)
class Source:
    """A labelled file."""

    repository: str
    commit: str
    path: str

    @property
    def folder(self) -> str:
        """The name of the folder that the files of this commit are written to."""
        return f"{self.repository.replace('/', '+')}@{self.commit[:10]}"


@dataclass(frozen=True)
class Defect:
    """A labelled defect; `also` has the rules that tell of it as well, apart from those equivalent to its own."""

    line: int
    code: str
    name: str
    also: frozenset[str]
    changes_gradients: bool


@dataclass(frozen=True)
class Loop:
    """What someone read: the loop around `line`, or the whole file where `line` is None."""

    source: Source
    line: int | None
    defects: tuple[Defect, ...]
    holds: frozenset[str]
    debatable: frozenset[str]
    complete: bool


@dataclass(frozen=True)
class Sample:
    """Loops that were labelled together; `rules` are the only ones that it says something of, all where empty."""

    title: str
    split: str
    rules: frozenset[str]
    loops: tuple[Loop, ...]


def samples(folder: Path) -> list[Sample]:
    """The samples of the TOML files in `folder`, those first that accumlint was developed against."""
    files = sorted(folder.glob("*.toml"))
    if not files:
        raise InputError(f"{folder}: no labels here")
    return sorted(map(_sample, files), key=lambda sample: sample.split)


def toml(file: Path) -> dict[str, Any]:
    """The table that `file` holds."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{file}: {error}") from None


def _sample(file: Path) -> Sample:
    row = toml(file)
    try:
        if row["split"] not in SPLITS:
            raise InputError(f"{file}: split is {row['split']!r}, not one of {', '.join(SPLITS)}")
        loops: Sequence[Mapping[str, Any]] = row["loop"]
        return Sample(
            row["title"], row["split"], frozenset(row.get("rules", ())), tuple(map(_loop, loops))
        )
    except KeyError as error:
        raise InputError(f"{file}: a key is missing: {error.args[0]}") from None
    except ValueError as error:
        raise InputError(f"{file}: {error}") from None


def source(row: Mapping[str, Any]) -> Source:
    """The file that a row names; what names nothing in a repository is refused, as folders are made of it."""
    named = Source(row["repository"], row["commit"], row["path"])
    parts = PurePosixPath(named.path).parts
    if not (_REPOSITORY.fullmatch(named.repository) and _COMMIT.fullmatch(named.commit)):
        raise ValueError(f"{named.repository} {named.commit} is no owner/name with a commit")
    if not parts or not {"/", "..", ".git"}.isdisjoint(parts):
        raise ValueError(f"{named.path!r} is no path in a repository")
    return named


def _loop(row: Mapping[str, Any]) -> Loop:
    return Loop(
        source(row),
        row.get("line"),
        tuple(map(_defect, row.get("defect", ()))),
        frozenset(row.get("holds", ())),
        frozenset(row.get("debatable", ())),
        row.get("complete", False),
    )


def _defect(row: Mapping[str, Any]) -> Defect:
    # A defect that no rule of accumlint tells of has a name only.
    return Defect(
        row["line"],
        row.get("code", ""),
        row["name"],
        frozenset(row.get("also", ())),
        row["changes_gradients"],
    )
