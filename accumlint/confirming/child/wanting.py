"""Which names of the user's a failure is about: those on the line that raised it, for which a stand-in was made."""

from __future__ import annotations

import ast
import traceback
from collections.abc import Collection, Iterator
from types import FrameType

from accumlint.confirming.child.networks import Output
from accumlint.confirming.child.stub import Stub


def missing_names(
    error: BaseException, file: str, text: str, told: Collection[str]
) -> list[tuple[str, int]]:
    """The names that a set-up file could give to get past an exception, each with its line; `told` have stand-ins."""
    steps = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == file
    ]
    for frame, line in reversed(steps):
        found = list(dict.fromkeys(_made_up(frame, line, text, told)))
        if found:
            return [(name, line) for name in found]
    for frame, line in reversed(steps):
        # What is None and was to be something else.
        found = list(dict.fromkeys(_nothing(frame, line, text)))
        if found:
            return [(name, line) for name in found]
    return []


def _nothing(frame: FrameType, line: int, text: str) -> Iterator[str]:
    """The names that the statement at a line reads and that are None."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and node.lineno == line and node.id in frame.f_locals:
            if frame.f_locals[node.id] is None:
                yield node.id


def _made_up(frame: FrameType, line: int, text: str, told: Collection[str]) -> Iterator[str]:
    """What the statement at a line reads that is a stand-in."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name | ast.Attribute) and node.lineno == line:
            value = _value(node, frame)
            name = ast.unparse(node)
            if isinstance(value, Stub | Output) or name in told:
                yield name


def _value(node: ast.expr, frame: FrameType) -> object:
    """What a name or a chain of attributes stands for; None where that cannot be told without running anything."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        owner = _value(node.value, frame)
        return getattr(owner, "__dict__", {}).get(node.attr)
    return None
