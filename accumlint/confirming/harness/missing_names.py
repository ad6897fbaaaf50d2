"""Which names of the user's a failure is about: those on the line that raised it, for which a stand-in was made."""

from __future__ import annotations

import ast
import linecache
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping
from functools import lru_cache
from traceback import extract_tb, walk_tb
from types import FrameType
from typing import TypeAlias

from torch import nn

from accumlint.confirming.harness.fakes.batches import Loader
from accumlint.confirming.harness.fakes.networks import Criterion, Member
from accumlint.confirming.harness.fakes.outputs import Output
from accumlint.confirming.harness.fakes.stub import Stub
from accumlint.confirming.harness.pass_outcome import is_project
from accumlint.confirming.harness.setup_objects import Fed

# How Python names the type of what could not be done something with.
_KIND = re.compile(r"'(\w+)' object (is not|has no|does not)|object of type '(\w+)'")
_Found: TypeAlias = "Iterator[tuple[str, object]]"


def missing_names(
    error: BaseException, file: str, text: str, told: Mapping[str, str]
) -> list[tuple[str, int]]:
    """The names that a set-up file could give to get past an exception, each with its line; `told` have stand-ins."""
    walked = [*walk_tb(error.__traceback__)]
    told_of = extract_tb(error.__traceback__)
    steps = [
        (frame, range(line, (getattr(summary, "end_lineno", None) or line) + 1))
        for (frame, line), summary in zip(walked, told_of, strict=True)
        if frame.f_code.co_filename == file
    ]
    # What is None and was to be something else is asked for first where it is what failed.
    looks = [_made_up, _nothing]
    if isinstance(error, UnboundLocalError):
        looks.insert(0, _unbound)
    if "NoneType" in str(error):
        looks.reverse()
    said = _KIND.search(str(error))
    kind = said and (said[1] or said[3])
    for look in (*looks, _argument):
        for frame, lines in reversed(steps):
            found = dict(look(frame, lines, text, told))
            # What an exception speaks of is of the type that it names.
            named = [n for n, value in found.items() if type(value).__name__ == kind]
            if not named and frame is not walked[-1][0]:
                # What is called went wrong with something that it was given.
                read = _read_elsewhere(walked, file)
                named = [n for n, value in found.items() if id(value) in read]
                named = named or [n for n, value in found.items() if _is_thing(value)]
            if found:
                return [(name, lines.start) for name in named or found]
    return []


def _read_elsewhere(walked: list[tuple[FrameType, int]], file: str) -> set[int]:
    """What the statement reads at which another file of the project failed."""
    for frame, line in reversed(walked):
        other = frame.f_code.co_filename
        if other == file:
            return set()
        if is_project(other):
            text = "".join(linecache.getlines(other))
            return {id(_value(node, frame)) for node in _read(range(line, line + 1), text)}
    return set()


def _is_thing(value: object) -> bool:
    return isinstance(value, nn.Module | Loader | Fed) and not isinstance(value, Criterion)


def _unbound(frame: FrameType, lines: range, text: str, told: Mapping[str, str]) -> _Found:
    """What the statement around a line reads that its function has not bound."""
    around = [
        n
        for n in ast.walk(_parsed(text))
        if isinstance(n, ast.stmt) and n.lineno <= lines.start <= (n.end_lineno or n.lineno)
    ]
    innermost = min(around, key=lambda n: (n.end_lineno or n.lineno) - n.lineno)
    for node in ast.walk(innermost):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            if node.id in frame.f_code.co_varnames and node.id not in frame.f_locals:
                yield node.id, None


def _nothing(frame: FrameType, lines: range, text: str, told: Mapping[str, str]) -> _Found:
    """What the statement at a line reads that is None: of what a function has given, that function."""
    for node in _read(lines, text):
        if _value(node, frame) is None:
            yield _giver(ast.unparse(node), frame, text), None


def _giver(name: str, frame: FrameType, text: str) -> str:
    """The function or method that gave a function's own name its value, else the name."""
    around = (
        n
        for n in ast.walk(_parsed(text))
        if isinstance(n, ast.FunctionDef) and n.name == frame.f_code.co_name
    )
    for statement in (s for function in around for s in ast.walk(function)):
        match statement:
            case ast.Assign(targets=[ast.Name(id=given)], value=ast.Call(func=called)):
                if given == name and isinstance(called, ast.Name | ast.Attribute):
                    found = ast.unparse(called)
                    if found.startswith("self.") and found.count(".") == 1:
                        return found
            case _:
                pass
    return name


def _made_up(frame: FrameType, lines: range, text: str, told: Mapping[str, str]) -> _Found:
    """What the statement at a line reads that is a stand-in, or has come of a network that is one."""
    networks = [n for n, what in told.items() if "a network of" in what]
    spoken_for: set[ast.expr] = set()
    for node in _read(lines, text):
        name = ast.unparse(node)
        value = _value(node, frame)
        owner = _value(node.value, frame) if isinstance(node, ast.Attribute) else None
        if node in spoken_for:
            continue
        if isinstance(value, Output):
            # What a network gives is another one in each micro-batch: the network itself is asked for.
            givers = [value.network] if value.network else networks or [name]
            yield from ((giver, value) for giver in givers)
        elif isinstance(owner, Stub | Namespace) and isinstance(node, ast.Attribute):
            # Of settings it is one that is missing.
            spoken_for.add(node.value)
            yield (_text(owner) or ast.unparse(node.value)) + f".{node.attr}", value
        elif isinstance(value, Member):
            yield value.network or name, value
        elif isinstance(value, Stub):
            yield _text(value) or name, value
        elif name in told or isinstance(value, Loader):
            yield name, value


def _text(value: object) -> str:
    """The dotted name that a stand-in is known by, "" where it has none."""
    # What a stand-in has of its own begins with an underscore, out of the way of the names that a script asks it for.
    text = value._text if isinstance(value, Stub) else ""  # pyright: ignore[reportPrivateUsage]
    return text if all(part.isidentifier() for part in text.split(".")) else ""


def _argument(frame: FrameType, lines: range, text: str, told: Mapping[str, str]) -> _Found:
    """What the statement at a line reads that its function was called with."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    for node in _read(lines, text):
        if isinstance(node, ast.Name) and node.id in names and node.id != "self":
            yield node.id, _value(node, frame)


@lru_cache(maxsize=4)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _read(lines: range, text: str) -> Iterator[ast.Name | ast.Attribute]:
    """The names and chains of attributes that are read at some lines, what is read of one before that one."""
    for node in ast.walk(_parsed(text)):
        if isinstance(node, ast.Name | ast.Attribute) and node.lineno in lines:
            if isinstance(node.ctx, ast.Load) and ast.unparse(node) not in ("torch", "nn", "F"):
                yield node


def _value(node: ast.expr, frame: FrameType) -> object:
    """What a name or an attribute of one stands for; `...` where that cannot be told without running anything."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id, ...))
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        owner = _value(node.value, frame)
        if isinstance(owner, Stub | Namespace):
            return getattr(owner, node.attr, ...)
        return getattr(owner, "__dict__", {}).get(node.attr, ...)
    return ...
