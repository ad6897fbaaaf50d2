"""Anonymises a Python source: replaces the words of names and strings that are not in common use, drops comments."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

# Letters that belong together: those of `HTTPServer_v2` are HTTP, Server and v.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_LETTERS = re.compile(r"[^\W\d_]+")
_COMMON = Path(__file__).with_name("common_words.txt")
# Placeholders are one of these with a number; a source that has such names itself gets the next.
_PLACEHOLDERS = ("word", "term", "part", "item")
# A text that long is data or prose.
_LONGEST = 80


class UnreadableText(Exception):
    """A text is no Python that can be parsed."""


def anonymised(source: str) -> str:
    """The source without comments and docstrings, each word of its names and strings common or a placeholder.

    A word has the same placeholder wherever it stands, so that names which share one still do. Numbers stay.

    Raises:
        UnreadableText: when it cannot be parsed.
    """
    tree = _parsed(source)
    renaming = _Renaming(source)
    for node in ast.walk(tree):
        _without_comments(node)
        for field, value in ast.iter_fields(node):
            setattr(node, field, renaming.field(node, value))
    try:
        return ast.unparse(tree) + "\n"
    except ValueError:
        # Python before 3.12 cannot nest every quote in an f-string.
        return ast.unparse(_WithoutFStrings().visit(tree)) + "\n"


def _parsed(source: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as problem:
        raise UnreadableText(str(problem)) from None


@cache
def common_words() -> frozenset[str]:
    """The words, in lower case, that many public training scripts use in their names."""
    return frozenset(_COMMON.read_text(encoding="utf-8").split())


def _split(letters: str) -> list[str]:
    """The words of a run of letters; one with letters beyond ASCII is a word."""
    return _WORD.findall(letters) if letters.isascii() else [letters]


class _Renaming:
    """The placeholders of one source."""

    def __init__(self, source: str) -> None:
        free = (p for p in _PLACEHOLDERS if not re.search(rf"{p}\d", source, re.IGNORECASE))
        self.placeholder = next(free, "placeholder")
        self.numbers: dict[str, int] = {}

    def field(self, node: ast.AST, value: Any) -> Any:
        """What stands in a field of a node, renamed where that is a name or a text."""
        if isinstance(node, ast.Constant):
            return self.constant(value)
        if isinstance(value, list):
            held = cast("list[Any]", value)
            return [self.name(x) if isinstance(x, str) else x for x in held]
        return self.name(value) if isinstance(value, str) else value

    def constant(self, value: Any) -> Any:
        """Bytes are data; other texts keep what they are made of beside words."""
        if isinstance(value, bytes):
            return b""
        return self.text(value)[:_LONGEST] if isinstance(value, str) else value

    def name(self, name: str) -> str:
        """An identifier, or several with dots in between."""
        return ".".join(self._identifier(part) for part in name.split("."))

    def _identifier(self, name: str) -> str:
        dunder = name.startswith("__") and name.endswith("__")
        kept = dunder or keyword.iskeyword(name) or hasattr(builtins, name)
        return name if kept else self.text(name)

    def text(self, text: str) -> str:
        """A text, each of its words common or a placeholder in the same letter case."""
        return _LETTERS.sub(lambda match: "".join(map(self._word, _split(match[0]))), text)

    def _word(self, word: str) -> str:
        lower = word.lower()
        if (len(word) == 1 and word.isascii()) or lower in common_words():
            return word
        number = self.numbers.setdefault(lower, len(self.numbers) + 1)
        placeholder = self.placeholder
        if word.isupper():
            placeholder = placeholder.upper()
        elif word[0].isupper():
            placeholder = placeholder.capitalize()
        return f"{placeholder}{number}"


class _WithoutFStrings(ast.NodeTransformer):
    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.Constant:
        return ast.copy_location(ast.Constant(""), node)


def _without_comments(node: ast.AST) -> None:
    """Leaves out the strings that stand as statements: docstrings, and what is written as comments."""
    for name in ("body", "orelse", "finalbody"):
        held: Any = getattr(node, name, None)
        # The body of a `lambda` is an expression.
        if held and isinstance(held, list):
            kept = [s for s in cast("list[ast.stmt]", held) if not _is_text(s)]
            setattr(node, name, kept or [ast.Pass()])


def _is_text(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(ast.Constant(str())):
            return True
        case _:
            return False


def words(source: str) -> Iterator[str]:
    """The words, in lower case, of the names that a source uses.

    Raises:
        UnreadableText: when it cannot be parsed.
    """
    for node in ast.walk(_parsed(source)):
        if isinstance(node, ast.Constant):
            continue
        for _, value in ast.iter_fields(node):
            held = cast("list[Any]", value) if isinstance(value, list) else [value]
            names = " ".join(name for name in held if isinstance(name, str))
            for letters in _LETTERS.findall(names):
                yield from (word.lower() for word in _split(letters))
