"""Tells which functions of a long file have no say in training, so that the rest only is read."""

from __future__ import annotations

import ast
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from accumlint.files.source import lines_with

# A shorter file is read whole: most of a training script matters, and the time to find out what does not is lost.
LONG = 3_000
_WORD = re.compile(r"\w+")
_Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"
# What training is spoken of with. Rules ask for such words anywhere in a file, as evidence for or against.
_TELLING = (
    "grad", "loss", "optim", "backward", "step", "epoch", "train", "accum", "scal", "sched", "sync", "reduc", "gather",
    "distrib", "ddp", "fsdp", "rank", "world", "loader", "batch", "pad", "-100", "ignore_index",
)  # fmt: skip
# Methods that are called without being named.
_UNNAMED = ("__", "forward", "on_", "setup", "configure")


def silent(module: ast.Module, lines: Sequence[str]) -> frozenset[ast.AST]:
    """The functions of a file that do not speak of training and that nothing else names."""
    telling = lines_with(_TELLING, "\n".join(lines).lower())
    found = {
        f
        for f in functions(module.body)
        if not f.name.startswith(_UNNAMED)
        and bisect_left(telling, first_line(f)) == bisect_right(telling, f.end_lineno or f.lineno)
    }
    held = {f: "\n".join(lines[first_line(f) - 1 : f.end_lineno]) for f in found}
    named = set(_WORD.findall("\n".join(_without(found, lines))))
    while kept := {f for f in found if f.name in named}:
        found -= kept
        named.update(word for f in kept for word in _WORD.findall(held[f]))
    return frozenset(found)


def _without(left_out: Iterable[_Function], lines: Sequence[str]) -> Iterator[str]:
    """The lines in which none of the functions stands."""
    left = 0
    for function in sorted(left_out, key=first_line):
        yield from lines[left : first_line(function) - 1]
        left = function.end_lineno or function.lineno
    yield from lines[left:]


def functions(body: Iterable[ast.stmt]) -> Iterator[_Function]:
    """The functions and methods of a file; what stands in them is a part of them."""
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield statement
            case ast.ClassDef(body=inner) | ast.With(body=inner):
                yield from functions(inner)
            case ast.If(body=inner, orelse=orelse):
                yield from functions([*inner, *orelse])
            case ast.Try(body=inner, handlers=handlers, orelse=orelse, finalbody=final):
                for part in (inner, *(handler.body for handler in handlers), orelse, final):
                    yield from functions(part)
            case _:
                pass


def first_line(statement: ast.stmt) -> int:
    """The line on which a statement begins, with its decorators."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])
