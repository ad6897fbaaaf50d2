"""Reads the comments by which a user silences findings.

    loss.backward()  # accumlint: ignore[ACC102] the criterion divides
    # accumlint: ignore[loss-not-divided, ACC201]      (own line: the statement below)
    # accumlint: ignore-file[ACC501]                   (own line, anywhere in the file)
    loss.backward()  # noqa: ACC102

Without a list, a comment silences every rule. Codes and names are understood alike.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from accumlint.source import lines

# An unclosed bracket still names what it names: it must not turn into an ignore of everything.
_IGNORE = re.compile(
    r"#\s*accumlint:\s*(ignore-file|ignore)(?![-\w])(?:\s*\[([^\]]*))?", re.IGNORECASE
)
_NOQA = re.compile(r"#\s*noqa\b(\s*:(?:[\s,]*[A-Z]+[0-9]+\b)*)?", re.IGNORECASE)
_WORD = re.compile(r"[\w-]+")
_LAYOUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


@dataclass(frozen=True)
class Ignore:
    """One request to silence `rules` (None: all of them) on a line or in the whole file; `reason` may be empty."""

    line: int
    rules: frozenset[str] | None
    own_line: bool
    whole_file: bool
    reason: str = ""

    def names(self, code: str, name: str) -> bool:
        return self.rules is None or not self.rules.isdisjoint((code.lower(), name.lower()))


@dataclass(frozen=True)
class Suppressions:
    """Every ignore of one file, its statements that spread over several lines, and the lines of comment alone."""

    ignores: tuple[Ignore, ...]
    statements: tuple[tuple[int, int], ...] = ()
    comments: frozenset[int] = frozenset()

    def ignore_for(self, code: str, name: str, line: int) -> Ignore | None:
        """The first ignore that covers a finding of this rule that starts on `line`."""
        covering = (i for i in self.ignores if i.names(code, name) and self._covers(i, line))
        return next(covering, None)

    def _covers(self, ignore: Ignore, line: int) -> bool:
        first, last = self._statement(line)
        if ignore.whole_file or first <= ignore.line <= last:
            return True
        # An ignore on its own line may be followed by more comment: other ignores, or the reason.
        between = range(ignore.line, first)
        return ignore.own_line and len(between) > 0 and self.comments.issuperset(between)

    def _statement(self, line: int) -> tuple[int, int]:
        for first, last in self.statements:
            if first <= line <= last:
                return first, last
        return line, line


def read(text: str) -> Suppressions:
    """The ignores that stand in the comments of a program."""
    if "noqa" not in text.lower() and "accumlint:" not in text.lower():
        return Suppressions(())
    normal = "\n".join(lines(text)) + "\n"
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(normal).readline))
    except (tokenize.TokenError, SyntaxError):
        # An older tokenizer may refuse a newer program; then a line that looks like an ignore is one.
        comments = _comment_lines(enumerate(lines(normal), 1))
        return Suppressions(tuple(_from_lines(normal)), comments=comments)
    comments = _comment_lines((t.start[0], t.line) for t in tokens if t.type == tokenize.COMMENT)
    return Suppressions(tuple(_from_tokens(tokens)), tuple(_statements(tokens)), comments)


def _comment_lines(rows: Iterable[tuple[int, str]]) -> frozenset[int]:
    return frozenset(row for row, line in rows if line.lstrip().startswith("#"))


def _from_tokens(tokens: list[tokenize.TokenInfo]) -> Iterator[Ignore]:
    for token in tokens:
        if token.type == tokenize.COMMENT:
            row, column = token.start
            yield from _ignores(token.string, row, not token.line[:column].strip())


def _from_lines(text: str) -> Iterator[Ignore]:
    for row, line in enumerate(lines(text), 1):
        yield from _ignores(line, row, line.lstrip().startswith("#"))


def _statements(tokens: list[tokenize.TokenInfo]) -> Iterator[tuple[int, int]]:
    """First and last line of each statement, or of a compound statement's head, that spreads over several lines."""
    first = 0
    for token in tokens:
        if token.type == tokenize.NEWLINE:
            if token.start[0] > first > 0:
                yield first, token.start[0]
            first = 0
        elif not first and token.type not in _LAYOUT:
            first = token.start[0]


def _ignores(comment: str, row: int, own_line: bool) -> Iterator[Ignore]:
    for match in _IGNORE.finditer(comment):
        whole_file = match[1].lower() == "ignore-file"
        # A trailing `ignore-file` would be read as silencing its line; it does nothing, so it is not one.
        if not whole_file or own_line:
            yield Ignore(row, _words(match[2]), own_line, whole_file, _reason(comment, match))
    for match in _NOQA.finditer(comment):
        # Other linters' word, which with them is never about the line below.
        reason = _reason(comment, match)
        yield Ignore(row, _words(match[1]), own_line=False, whole_file=False, reason=reason)


def _reason(comment: str, match: re.Match[str]) -> str:
    """What the comment says behind the list, up to the next hash."""
    return comment[match.end() :].split("#")[0].lstrip(" \t],:;-").rstrip()


def _words(listed: str | None) -> frozenset[str] | None:
    """The rules of a list in lower case, None where there is no list."""
    return None if listed is None else frozenset(word.lower() for word in _WORD.findall(listed))
