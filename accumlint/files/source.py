"""Turns the bytes of a Python file into its text."""

from __future__ import annotations

import codecs
import io
import re
import sys
import tokenize
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, cast

# No program text starts like this in UTF-8.
_WIDE = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

if TYPE_CHECKING:
    import ast

# In the first line, or in the second below a comment or nothing.
_COOKIE = re.compile(
    rb"(?:[ \t\f]*(?:#[^\r\n]*)?(?:\r\n|\r|\n))?[ \t\f]*#[^\r\n]*?coding[:=][ \t]*([-\w.]+)"
)
# Each character of ASCII, and what some encodings would take for another one.
_ASCII = bytes(range(128)) + rb"\x62 \u0062 +AGI- .xn--tda"
_LINE_END = re.compile("\r\n|\r|\n")
# Fields of syntax nodes below which there is nothing to read.
_LEAVES = {"id", "attr", "ctx", "op", "ops", "kind", "type_comment"}


class UnreadableSource(Exception):
    """The source is no Python that can be read; `line` is where (0 when unknown)."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


class TooMuch(UnreadableSource):
    """No parser may be asked about the source: it could end the process."""


class UndecodableSource(Exception):
    """The bytes are not the text of a Python program."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


def decode(data: bytes) -> str:
    """The text of a Python file, without its byte order mark, line ends as they are."""
    if data.startswith(_WIDE):
        raise UndecodableSource("is UTF-16 or UTF-32 text; Python reads neither, save it as UTF-8")
    if b"\0" in data:
        raise UndecodableSource(
            "holds NUL bytes; this is not Python source", _line(data, data.index(b"\0"))
        )
    # Asked first: from 3.14 on, `detect_encoding` decodes the line, and fails on what is no encoding of text.
    if is_opaque(data):
        raise UndecodableSource(f"is written in {_cookie(data)}; save it as UTF-8")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError as problem:
        raise UndecodableSource(f"cannot be decoded: {problem.msg}") from None
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as problem:
        byte = data[problem.start]
        message = (
            f"cannot be decoded as {encoding}: byte 0x{byte:02x}; is a `# coding:` line missing?"
        )
        raise UndecodableSource(message, _line(data, problem.start)) from None
    except UnicodeError as problem:
        raise UndecodableSource(f"cannot be decoded as {encoding}: {problem}") from None


def is_opaque(data: bytes) -> bool:
    """True for text whose bytes do not show its words; `decode` refuses it."""
    if data.startswith(_WIDE):
        return True
    return not _shows_ascii(_cookie(data) or "utf-8")


def _cookie(data: bytes) -> str | None:
    """The encoding that a text names in its first two lines."""
    found = _COOKIE.match(data)
    return found[1].decode() if found else None


@cache
def _shows_ascii(encoding: str) -> bool:
    """False for encodings of no text, and those in which ASCII may stand for something else."""
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _ASCII.decode(encoding) == _ASCII.decode("ascii")
    except LookupError as problem:
        # What is not known at all is told by who decodes it.
        return "unknown encoding" in str(problem)
    except UnicodeError:
        return False


def encode(text: str, like: bytes) -> bytes:
    """The bytes of a changed text in the encoding of the file it was decoded from, with its byte order mark.

    Raises:
        UnicodeEncodeError: when the encoding lacks a character.
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(like).readline)
    return text.encode(encoding)


@lru_cache(maxsize=1)
def parsed(text: str) -> ast.Module:
    """Python's own syntax tree of a program. Whoever asks next for the same text is given the same tree.

    Raises:
        TooMuch: for a text that is too long, or nested too deeply, for any parser.
        UnreadableSource: for a text that this Python cannot read.
    """
    import ast
    import warnings

    from accumlint.files.nesting import too_deep, too_long

    if too_long(text):
        raise TooMuch("too long to be read", 0)
    if line := too_deep(text):
        raise TooMuch("nested too deeply to be read", line)

    try:
        with warnings.catch_warnings():
            # What Python thinks of a backslash in somebody's string is no news of ours.
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as problem:
        version = ".".join(map(str, sys.version_info[:2]))
        message = f"syntax error: {problem.msg} (read by Python {version})"
        raise UnreadableSource(message, problem.lineno or 0) from None
    except (ValueError, RecursionError, MemoryError) as problem:
        message = "nested too deeply to be read"
        raise UnreadableSource(message, 0) from problem


def tree(text: str) -> ast.Module | None:
    """The same; None for a program that Python cannot read."""
    try:
        return parsed(text)
    except UnreadableSource:
        return None


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """A syntax tree's nodes in no order, operators and contexts left out; quicker than `ast.walk`."""
    import ast

    inner: dict[type[ast.AST], tuple[str, ...]] = {ast.Constant: ()}
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        kind = type(node)
        if kind not in inner:
            inner[kind] = tuple(name for name in kind._fields if name not in _LEAVES)
        for name in inner[kind]:
            value = getattr(node, name, None)
            if isinstance(value, list):
                waiting.extend([v for v in cast("list[object]", value) if isinstance(v, ast.AST)])
            elif isinstance(value, ast.AST):
                waiting.append(value)


def lines(text: str) -> list[str]:
    """The lines of a program without their ends, as Python counts them.

    `str.splitlines` would also split at form feeds and at characters that Python allows inside a line.
    """
    return _LINE_END.split(text)


def line_starts(text: str) -> list[int]:
    """The offset of the first character of each of the `lines`."""
    if "\r" in text:
        return [0, *(end.end() for end in _LINE_END.finditer(text))]
    # Most files end their lines in one way, and adding up their lengths is several times quicker.
    return [0, *accumulate(len(line) + 1 for line in text.split("\n")[:-1])]


def line_ends(text: str) -> str:
    """The ends of a text's lines, and nothing else of it."""
    return "".join(_LINE_END.findall(text))


def lines_with(words: Iterable[str], text: str) -> list[int]:
    """The lines on which any of the words stands, in order; a line stands there once for each."""
    starts = line_starts(text)
    return sorted(bisect_right(starts, place) for word in words for place in _places(word, text))


def _places(word: str, text: str) -> Iterator[int]:
    # One search per word is several times quicker than any alternation in a regular expression.
    place = text.find(word)
    while place >= 0:
        yield place
        place = text.find(word, place + 1)


def _line(data: bytes, offset: int) -> int:
    return data.count(b"\n", 0, offset) + 1
