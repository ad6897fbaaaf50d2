"""Matches paths against patterns in the language of .gitignore."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from accumlint.common.frozen import frozen
from accumlint.files.regular import SETTINGS, contents

if TYPE_CHECKING:
    # Imported where a pattern is met: most runs have few, some have none.
    from pathspec import GitIgnoreSpec

# What a star becomes. Several of them in one name may try each length of each: hours for one file.
_STAR = "[^/]*"
_PIECE = re.compile(r"\[\^/\]\*|\[\^?\]?[^\]]*\]|\\.|.", re.DOTALL)
# What `**/` becomes at the beginning, and within. Several of them may try each folder for each.
_DEEP = re.compile(r"(?<=^\^)\(\?:\.\+/\)\?|\(\?:/\.\+\)\?/")
# A path is no longer, and nobody writes as many patterns for it; each is asked about each path.
_LONGEST, MOST = 4096, 2_000

_BRACKETS = re.compile(r"\\.|\[([!^]?\]?(?:\[:\w+:\]|\\.|[^\]\\])*\])")
_CLASS = re.compile(r"\[:(\w+):\]")
_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": " \t",
    "cntrl": "\x01-\x1f\x7f",
    "digit": "0-9",
    "graph": '"-~!',
    "lower": "a-z",
    "print": " -~",
    "punct": ":-@[-`{-~!-.",
    "space": " \t-\r",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}


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
    """Patterns ready to match; like git, it passes over those that mean nothing, and what is past all reason."""
    kept = tuple(_without_classes(p) for p in patterns[:MOST] if len(p) <= _LONGEST)
    return Patterns(folder, _spec(kept))


def within(outer: Sequence[Patterns], inner: Sequence[Patterns]) -> tuple[Patterns, ...]:
    """The patterns of a folder and of those above it, without the inner ones that would make too many of them."""
    count = sum(len(found.spec.patterns) for found in outer)
    fitting = (found for found in inner if count + len(found.spec.patterns) <= MOST)
    return (*outer, *fitting)


@cache
def _spec(patterns: tuple[str, ...]) -> GitIgnoreSpec:
    """What patterns match, worked out once for all folders that have the same ones."""
    from pathspec import GitIgnoreSpec

    with warnings.catch_warnings():
        # What a bracket in somebody's pattern may mean in a later Python is no news of ours.
        warnings.simplefilter("ignore")
        try:
            spec = GitIgnoreSpec.from_lines(patterns)
        except (ValueError, re.error):
            spec = GitIgnoreSpec.from_lines([p for p in patterns if _means_something(p)])
        # The library leaves the type of its expressions open.
        regexes = [cast("re.Pattern[str] | None", p.regex) for p in spec.patterns]  # pyright: ignore[reportUnknownMemberType]
        expressions = [regex.pattern if regex else "" for regex in regexes]
        quick = [_quick(expression) for expression in expressions]
        if quick != expressions:
            pairs = zip(spec.patterns, quick, strict=True)
            spec = GitIgnoreSpec([type(p)(re.compile(q), p.include) if q else p for p, q in pairs])
    return spec


def _quick(expression: str) -> str:
    """The same expression, which tries nothing twice: the first fit is as good as any for all but the last."""
    if expression.count(_STAR) > 2:
        expression = _with_quick_stars(expression)
    deep = _DEEP.findall(expression)
    if len(deep) < 2:
        return expression
    head, *chunks = _DEEP.split(expression)
    parts = [head]
    for number, (mark, chunk) in enumerate(zip(deep, chunks, strict=True)):
        if number == len(chunks) - 1:
            parts.append(f"{mark}{chunk}")
        else:
            slash = "/" if mark.endswith("/") else ""
            parts.append(f"(?=(?P<deep{number}>{slash}(?:[^/]+/)*?{chunk}(?=/)))(?P=deep{number})")
    return "".join(parts)


def _with_quick_stars(expression: str) -> str:
    """The same expression with stars that keep what they took."""
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


def _without_classes(pattern: str) -> str:
    """A pattern with `[[:digit:]]` written as `[0-9]`, which is what the library knows."""
    if "[:" not in pattern:
        return pattern

    def written_out(found: re.Match[str]) -> str:
        return _CLASS.sub(lambda named: _CLASSES.get(named[1], named[0]), found[1])

    return _BRACKETS.sub(lambda found: f"[{written_out(found)}" if found[1] else found[0], pattern)


@cache
def of_gitignore(folder: str) -> tuple[Patterns, ...]:
    """The patterns of a folder's .gitignore, empty where there is none to read; git does not follow a link there."""
    try:
        data = contents(os.path.join(folder, ".gitignore"), SETTINGS, follow=False)
    except OSError:
        return ()
    return (compiled(folder, data.decode(errors="replace").splitlines()),)


def from_above(folder: str) -> tuple[Patterns, ...]:
    """The patterns that hold in a folder by the .gitignore files above it in its repository, outermost first."""
    homes = [Path(folder), *Path(folder).parents]
    depth = next((depth for depth, home in enumerate(homes) if (home / ".git").exists()), 0)
    found: tuple[Patterns, ...] = ()
    for home in reversed(homes[1 : depth + 1]):
        found = within(found, of_gitignore(str(home)))
    return found


def _means_something(pattern: str) -> bool:
    from pathspec import GitIgnoreSpec

    try:
        GitIgnoreSpec.from_lines([pattern])
    except (ValueError, re.error):
        return False
    return True
