"""Finds the names that a failure is about: those on its line that are fakes or None."""

from __future__ import annotations

import ast
from argparse import Namespace
from collections.abc import Iterator, Mapping
from functools import lru_cache
from traceback import extract_tb, walk_tb
from types import FrameType

from accumlint.confirming.harness.fakes.loaders import Loader
from accumlint.confirming.harness.fakes.networks import Member
from accumlint.confirming.harness.fakes.outputs import Output
from accumlint.confirming.harness.fakes.stub import Stub


def missing_names(
    error: BaseException, file: str, text: str, fakes: Mapping[str, str]
) -> list[tuple[str, int]]:
    """The names that a set-up file could provide to prevent an exception, each with its line."""
    summaries = extract_tb(error.__traceback__)
    for (frame, line), summary in reversed(
        [*zip(walk_tb(error.__traceback__), summaries, strict=True)]
    ):
        if frame.f_code.co_filename == file:
            if isinstance(error, AttributeError) and f"class {type(error.obj).__name__}" in text:
                # `self` attributes are shared by all instances of the file's classes.
                return [(f"self.{error.name}", line)]
            lines = range(line, (getattr(summary, "end_lineno", None) or line) + 1)
            if found := dict(_fake_reads(frame, lines, text, fakes)):
                # The object whose attribute is missing is at fault.
                at_fault = [n for n, v in found.items() if v is getattr(error, "obj", ...)]
                return [(name, line) for name in at_fault or found]
    return []


def _fake_reads(
    frame: FrameType, lines: range, text: str, fakes: Mapping[str, str]
) -> Iterator[tuple[str, object]]:
    """The names read on some lines that are None, fakes or outputs of fake networks."""
    covered: set[ast.expr] = set()
    for node in ast.walk(_parsed(text)):
        if not isinstance(node, ast.Name | ast.Attribute) or node.lineno not in lines:
            continue
        if node in covered or not isinstance(node.ctx, ast.Load):
            continue
        name, value = ast.unparse(node), _value(node, frame)
        owner = _value(node.value, frame) if isinstance(node, ast.Attribute) else None
        if isinstance(node, ast.Attribute) and isinstance(owner, Stub | Namespace):
            # A single setting is missing.
            covered.add(node.value)
            yield (_text(owner) or ast.unparse(node.value)) + f".{node.attr}", value
        elif isinstance(value, Output | Member):
            # Outputs differ for each micro-batch, so the network itself is reported.
            yield value.network or name, value
        elif isinstance(value, Stub):
            yield _text(value) or name, value
        elif value is None or name in fakes or isinstance(value, Loader):
            yield name, value


def _text(value: object) -> str:
    """The dotted name of a stub, "" for none."""
    # Private attributes of a stub stay out of the way of the user's names.
    text = value._text if isinstance(value, Stub) else ""  # pyright: ignore[reportPrivateUsage]
    return text if all(part.isidentifier() for part in text.split(".")) else ""


@lru_cache(maxsize=4)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _value(node: ast.expr, frame: FrameType) -> object:
    """The value of a name or an attribute of one; `...` where that requires running code."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id, ...))
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        owner = _value(node.value, frame)
        if isinstance(owner, Stub | Namespace):
            return getattr(owner, node.attr, ...)
        return getattr(owner, "__dict__", {}).get(node.attr, ...)
    return ...
