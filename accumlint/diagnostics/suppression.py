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
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import islice

from accumlint.common.frozen import frozen
from accumlint.common.place import Place
from accumlint.files.source import lines

# An unclosed bracket still names what it names: it must not turn into an ignore of everything.
_IGNORE = re.compile(
    r"#\s*(?P<word>accumlint:\s*(?P<kind>ignore-file|ignore)(?![-\w])(?:\s*\[(?P<list>[^\]]*)\]?)?)"
    r"(?P<reason>[^#]*)",
    re.IGNORECASE,
)
_NOQA = re.compile(
    r"#\s*(?P<word>noqa\b(?P<list>\s*:(?:[\s,]*[A-Z]+[0-9]+\b)*)?)(?P<reason>[^#]*)", re.IGNORECASE
)
_WORD = re.compile(r"[\w-]+")
# What stands in no list.
_UNNAMED = ""
_LAYOUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


@frozen
class Word:
    """What stands in an ignore's list, as written, and where."""

    text: str
    place: Place


@frozen(eq=False)
class Ignore:
    """One request to silence rules: those of its list, or all of them (`words` is None).

    `text` is the request as written, without its list. It holds for a statement or for the `whole_file`; `noqa` is
    shared with other linters. One that is `misplaced` does nothing. `span` reaches from the comment sign to the end of
    the reason.
    """

    text: str
    place: Place
    span: Place
    words: tuple[Word, ...] | None
    own_line: bool = False
    whole_file: bool = False
    noqa: bool = False
    misplaced: bool = False
    reason: str = ""

    def removal(self, word: Word | None, row: str, is_last: bool) -> Place:
        """What to take out of the text for a word of the list to be gone, or the ignore where it says nothing else.

        `row` is the line of the text that holds it; the last one has no end to take out.
        """
        line, start, end = self.place.line, self.span.column, self.span.end_column
        if word and self.words and len(self.words) > 1:
            at = bisect_left(self.words, word.place.column, key=lambda w: w.place.column)
            if at == 0:
                return Place(line, word.place.column, line, self.words[1].place.column)
            return Place(line, self.words[at - 1].place.end_column, line, word.place.end_column)
        before, behind = row[: start - 1], row[end - 1 :]
        if behind.strip():
            return Place(line, start, line, end)
        if before.strip() or is_last:
            return Place(line, len(before.rstrip()) + 1, line, len(row) + 1)
        return Place(line, 1, line + 1, 1)


@frozen
class Match:
    """An ignore that silences a finding, by a word of its list or by having none."""

    ignore: Ignore
    word: Word | None


@frozen
class Suppressions:
    """Every ignore of one file, its statements that spread over several lines, and the lines of comment alone.

    A file may hold thousands of each, so nothing here goes through all of them for one finding.
    """

    ignores: tuple[Ignore, ...] = ()
    statements: tuple[tuple[int, int], ...] = ()
    comments: frozenset[int] = frozenset()

    def silencing(self, code: str, name: str, line: int) -> list[Match]:
        """The ignores that cover a finding of this rule that starts on `line`, those without a list last."""
        return [*self._naming(code, name, line), *self._matches(_UNNAMED, line)]

    def naming(self, code: str, name: str, line: int) -> list[Match]:
        """An ignore that covers such a finding and names its rule, if there is any."""
        return [*islice(self._naming(code, name, line), 1)]

    def statement(self, line: int) -> tuple[int, int]:
        """First and last line of the statement, or of a compound statement's head, that a line belongs to."""
        at = bisect_right(self.statements, line, key=lambda held: held[0])
        if at and line <= self.statements[at - 1][1]:
            return self.statements[at - 1]
        return line, line

    def _naming(self, code: str, name: str, line: int) -> Iterator[Match]:
        yield from self._matches(code.lower(), line)
        yield from self._matches(name.lower(), line)

    def _matches(self, word: str, line: int) -> Iterator[Match]:
        """The ignores that hold a word and cover a finding on a line."""
        yield from self._of_file.get(word, ())
        matches = self._of_lines.get(word, [])
        first, last = self.statement(line)
        # An ignore on its own line may be followed by more comment: other ignores, or the reason.
        top = self._tops.get(first - 1, first)
        at = bisect_left(matches, top, key=lambda match: match.ignore.place.line)
        for match in islice(matches, at, None):
            own = match.ignore.place.line
            if own > last:
                return
            if own >= first or match.ignore.own_line:
                yield match

    @cached_property
    def _of_file(self) -> dict[str, list[Match]]:
        return _by_word(ignore for ignore in self.ignores if ignore.whole_file)

    @cached_property
    def _of_lines(self) -> dict[str, list[Match]]:
        held = (ignore for ignore in self.ignores if not ignore.whole_file)
        return _by_word(sorted(held, key=lambda ignore: ignore.place.line))

    @cached_property
    def _tops(self) -> dict[int, int]:
        """For each line of comment, the line on which that comment begins."""
        tops: dict[int, int] = {}
        for line in sorted(self.comments):
            tops[line] = tops.get(line - 1, line)
        return tops


def _by_word(ignores: Iterable[Ignore]) -> dict[str, list[Match]]:
    """The ignores that do something by each word of their lists, in lower case; those without a list by `_UNNAMED`."""
    found: dict[str, list[Match]] = {}
    for ignore in ignores:
        if ignore.misplaced:
            continue
        if ignore.words is None:
            found.setdefault(_UNNAMED, []).append(Match(ignore, None))
        for word in ignore.words or ():
            found.setdefault(word.text.lower(), []).append(Match(ignore, word))
    return found


def read(text: str) -> Suppressions:
    """The ignores that stand in the comments of a program."""
    if "noqa" not in text.lower() and "accumlint:" not in text.lower():
        return Suppressions()
    return layout(text)


def layout(text: str) -> Suppressions:
    """The ignores of a program with its statements of several lines, whether or not it has any ignore."""
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
            yield from _ignores(token.string, row, column, not token.line[:column].strip())


def _from_lines(text: str) -> Iterator[Ignore]:
    for row, line in enumerate(lines(text), 1):
        yield from _ignores(line, row, 0, line.lstrip().startswith("#"))


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


def _ignores(comment: str, row: int, column: int, own_line: bool) -> Iterator[Ignore]:
    def place(start: int, end: int) -> Place:
        return Place(row, column + start + 1, row, column + end + 1)

    def read(match: re.Match[str], *, noqa: bool) -> Ignore:
        whole_file = not noqa and match["kind"].lower() == "ignore-file"
        words = None
        if match["list"] is not None:
            found = _WORD.finditer(comment, *match.span("list"))
            words = tuple(Word(word[0], place(*word.span())) for word in found)
        return Ignore(
            text="noqa" if noqa else f"accumlint: {match['kind']}",
            place=place(*match.span("word")),
            span=place(*match.span()),
            words=words,
            # Other linters' word is never about the line below.
            own_line=own_line and not noqa,
            whole_file=whole_file,
            noqa=noqa,
            # Behind a statement it would be read as silencing its line, which it does not.
            misplaced=whole_file and not own_line,
            reason=match["reason"].lstrip(" \t,:;-").rstrip(),
        )

    for match in _IGNORE.finditer(comment):
        yield read(match, noqa=False)
    for match in _NOQA.finditer(comment):
        yield read(match, noqa=True)
