"""Hints from the text of a source about the use of its names."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

_STEPS = re.compile(r"\.accumulate\(|accumulation|accum_|sync_gradients")
# An Accelerator that drives the loop.
_DRIVES = re.compile(r"accelerator\.(backward|accumulate)\(")


@dataclass(frozen=True)
class Source:
    """How a source uses its names.

    `called` and `read` are attribute names; a called one is not a setting. `subscripted` are names that are indexed by
    words. `prepares`: the source calls Accelerate's `prepare`; `accelerated`: another file does, and passes the
    Accelerator; `mentions_steps`: the source mentions accumulation steps. `from_one` are names from which one is
    subtracted, such as an epoch that counts from one.
    """

    called: frozenset[str]
    read: frozenset[str]
    subscripted: frozenset[str]
    prepares: bool
    accelerated: bool
    mentions_steps: bool
    from_one: frozenset[str]


def look(text: str) -> Source:
    """The hints of a source.

    Raises:
        SyntaxError: where `text` is not valid Python.
    """
    nodes = list(ast.walk(ast.parse(text)))
    called = (n.func for n in nodes if isinstance(n, ast.Call))
    prepares = ".prepare(" in text
    return Source(
        called=frozenset(f.attr for f in called if isinstance(f, ast.Attribute)),
        read=frozenset(n.attr for n in nodes if isinstance(n, ast.Attribute)),
        subscripted=frozenset(filter(None, map(_subscripted, nodes))),
        prepares=prepares,
        accelerated=not prepares and bool(_DRIVES.search(text)),
        mentions_steps=bool(_STEPS.search(text)),
        from_one=frozenset(filter(None, map(_reduced, nodes))),
    )


def _reduced(node: ast.AST) -> str:
    """The name from which an expression subtracts one, "" for none."""
    match node:
        case ast.BinOp(ast.Name(name), ast.Sub(), ast.Constant(1)):
            return name
        case _:
            return ""


def _subscripted(node: ast.AST) -> str:
    """The name that an expression indexes by a word, "" for none."""
    match node:
        case ast.Subscript(value=ast.Name(name), slice=ast.Constant(str())):
            return name
        case _:
            return ""
