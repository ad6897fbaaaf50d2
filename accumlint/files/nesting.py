"""Tells code that is nested too deeply or too long to be parsed, without parsing it.

Parsers call themselves for what is nested, and a process that runs out of stack is gone without a word.
"""

from __future__ import annotations

import re
from itertools import islice

# Python itself reads no more brackets than these within each other.
BRACKETS = 200
# So much may stand between two commas, texts aside: `a.b.c` and `1 + 1 + 1` are deep, too.
CHARACTERS = 4_000
ELIFS = 1_000
# So much of a file is looked at, and so many words and signs of code are parsed: each takes microseconds, and half a
# kilobyte of memory.
LONGEST = 8 * 1024 * 1024
TOKENS = 640_000
# libcst takes several times as long.
TOKENS_OF_LIBCST = 80_000

# Texts that are not closed end with the line or with the file, so that no search begins twice; a group tells them.
_TEXTS = r"""
    '''[^'\\]*(?:(?:\\.?|'(?!''))[^'\\]*)*(?:'''|(\Z))
    | \"""[^"\\]*(?:(?:\\.?|"(?!""))[^"\\]*)*(?:\"""|(\Z))
    | '[^'\\\n]*(?:\\.?[^'\\\n]*)*(?:'|(?=(\n|\Z)))
    | "[^"\\\n]*(?:\\.?[^"\\\n]*)*(?:"|(?=(\n|\Z)))
    | \\\n?
    | \#[^\n]*
    """
# What Python does not run: literals and comments.
TEXT = re.compile(_TEXTS, re.DOTALL | re.VERBOSE)
_PIECE = re.compile(
    r"""
    [^'"\#\\\n,;()\[\]{}]+
    | \n(?:[ \t]*(?P<afresh>def|class|import|return)\b)?
    | [,;()\[\]{}]
    |"""
    + _TEXTS,
    re.DOTALL | re.VERBOSE,
)
_ELIF = re.compile(r"\belif\b")
_TOKEN = re.compile(r"\w+|[^\w\s]")


def too_long(text: str, most: int = TOKENS) -> bool:
    """True for more code than is parsed; texts and comments are not counted up to a length."""
    if len(text) <= most or len(text) > LONGEST:
        return len(text) > LONGEST
    tokens = _TOKEN.finditer(TEXT.sub(" ", text))
    return next(islice(tokens, most, None), None) is not None


def tokens(text: str) -> int:
    """How many words and signs of code a text holds."""
    return len(_TOKEN.findall(TEXT.sub(" ", text)))


def too_deep(text: str) -> int:
    """The line on which code becomes too deep, 0 where none does."""
    elifs = list(_ELIF.finditer(text)) if text.count("elif") > ELIFS else []
    if len(elifs) > ELIFS:
        return _line(text, elifs[ELIFS].start())
    if _is_flat(text):
        return 0
    # Of each open bracket: how much stands behind the last comma, and the most that is nested there.
    lengths, nested = [0], [0]
    for match in _PIECE.finditer(text):
        piece = match[0]
        match piece[0]:
            case "\n":
                # No expression goes on with such a word, whatever brackets seem to be open.
                if match["afresh"]:
                    lengths, nested = [0], [0]
                elif len(lengths) == 1:
                    lengths[0] = nested[0] = 0
            case "," | ";":
                lengths[-1] = nested[-1] = 0
            case "(" | "[" | "{":
                lengths.append(0)
                nested.append(0)
            case ")" | "]" | "}":
                if len(lengths) > 1:
                    inner = lengths.pop() + nested.pop()
                    lengths[-1] += 1
                    nested[-1] = max(nested[-1], inner)
            case "#":
                pass
            case "'" | '"':
                # One text behind another is deep as well.
                lengths[-1] += 4
            case _:
                lengths[-1] += len(piece.strip())
        if len(lengths) > BRACKETS or lengths[-1] + nested[-1] > CHARACTERS:
            return _line(text, match.start())
    return 0


def _is_flat(text: str) -> bool:
    """True where no line, with those that its brackets hold open, is long enough to be too deep."""
    depth = brackets = characters = 0
    for line in TEXT.sub("text", text).split("\n"):
        opened = line.count("(") + line.count("[") + line.count("{")
        if opened or depth:
            depth += opened - line.count(")") - line.count("]") - line.count("}")
        brackets += opened
        characters += len(line)
        if brackets > BRACKETS or characters > CHARACTERS:
            return False
        if depth <= 0:
            depth = brackets = characters = 0
    return True


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1
