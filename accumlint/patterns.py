"""Matches paths against patterns in the language of .gitignore."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from accumlint.frozen import frozen

if TYPE_CHECKING:
    # Imported where a pattern is met: most runs have few, some have none.
    from pathspec import GitIgnoreSpec

# What a star becomes. Several of them in one name may try each length of each: hours for one file.
_STAR = "[^/]*"
_PIECE = re.compile(r"\[\^/\]\*|\[\^?\]?[^\]]*\]|\\.|.", re.DOTALL)
_DEEP = 3


@frozen
class Patterns:
    """Patterns relative to a folder."""

    folder: str
    spec: GitIgnoreSpec

    def verdict(self, path: str) -> bool | None:
        """True where the last pattern that matches says so, False where it takes back, None where none matches.

        The path is absolute; a folder's ends in a slash.
        """
        folder = self.folder.rstrip(os.sep) + os.sep
        inside = path[len(folder) :] if path.startswith(folder) else path.lstrip(os.sep)
        return self.spec.check_file(inside.replace(os.sep, "/")).include


def compiled(folder: str, patterns: Sequence[str]) -> Patterns:
    """Patterns ready to match; like git, it passes over those that mean nothing.

    So it does with those that hold `**` more often than anyone needs, for which paths would be gone through for ever.
    """
    from pathspec import GitIgnoreSpec

    patterns = [p for p in patterns if p.count("**/") <= _DEEP]
    try:
        spec = GitIgnoreSpec.from_lines(patterns)
    except ValueError:
        spec = GitIgnoreSpec.from_lines([p for p in patterns if _means_something(p)])
    # The library leaves the type of its expressions open.
    regexes = [cast("re.Pattern[str] | None", p.regex) for p in spec.patterns]  # pyright: ignore[reportUnknownMemberType]
    expressions = [regex.pattern if regex else "" for regex in regexes]
    if any(expression.count(_STAR) > 2 for expression in expressions):
        pairs = zip(spec.patterns, expressions, strict=True)
        spec = GitIgnoreSpec(
            [type(p)(re.compile(_quick(e)), p.include) if e else p for p, e in pairs]
        )
    return Patterns(folder, spec)


def _quick(expression: str) -> str:
    """The same expression with stars that keep what they took: the first fit is as good as any for all but the last."""
    parts: list[str] = []
    # Of the part of a path in hand: where its last star stands among the parts.
    star = 0
    for piece in _PIECE.findall(expression):
        if piece == "/":
            star = 0
        elif piece == _STAR:
            if star:
                chunk = "".join(parts[star:])
                parts[star - 1 :] = [f"(?=(?P<star{star}>{_STAR}?{chunk}))(?P=star{star})"]
            star = len(parts) + 1
        parts.append(piece)
    return "".join(parts)


@cache
def of_gitignore(folder: str) -> tuple[Patterns, ...]:
    """The patterns of a folder's .gitignore, empty where there is none to read."""
    try:
        with open(os.path.join(folder, ".gitignore"), encoding="utf-8", errors="replace") as file:
            return (compiled(folder, file.read().splitlines()),)
    except OSError:
        return ()


def from_above(folder: str) -> tuple[Patterns, ...]:
    """The patterns that hold in a folder by the .gitignore files above it in its repository, outermost first."""
    homes = [Path(folder), *Path(folder).parents]
    depth = next((depth for depth, home in enumerate(homes) if (home / ".git").exists()), 0)
    return tuple(
        found for home in reversed(homes[1 : depth + 1]) for found in of_gitignore(str(home))
    )


def _means_something(pattern: str) -> bool:
    from pathspec import GitIgnoreSpec

    try:
        GitIgnoreSpec.from_lines([pattern])
    except ValueError:
        return False
    return True
