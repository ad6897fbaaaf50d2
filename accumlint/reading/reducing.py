"""Empties the definitions of a long file that have no say in training, so that libcst reads the rest only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from accumlint.source import tree

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


def reduced(text: str, lines: Sequence[str]) -> str:
    """The text with `pass` for each function that does not speak of training and that nothing kept names.

    Lines keep their numbers, and what is on them its columns.
    """
    module = tree(text)
    if module is None:
        return text
    held = {f: "\n".join(lines[_first(f) - 1 : f.end_lineno]) for f in _functions(module.body)}
    silent = {f for f in held if not f.name.startswith(_UNNAMED) and not _is_telling(held[f])}
    named = set(_WORD.findall("\n".join(_emptied(lines, silent))))
    while kept := {f for f in silent if f.name in named}:
        silent -= kept
        named.update(word for f in kept for word in _WORD.findall(held[f]))
    return "\n".join(_emptied(lines, silent))


def _is_telling(code: str) -> bool:
    code = code.lower()
    return any(word in code for word in _TELLING)


def _emptied(lines: Sequence[str], functions: Iterable[_Function]) -> list[str]:
    emptied = [*lines]
    for function in functions:
        first, last = _first(function), function.end_lineno or function.lineno
        # A class or a branch must not lose all that it holds.
        indent = lines[first - 1][: function.col_offset]
        emptied[first - 1 : last] = [f"{indent}pass" if indent else "", *[""] * (last - first)]
    return emptied


def _functions(body: Iterable[ast.stmt]) -> Iterator[_Function]:
    """The functions and methods of a file; what stands in them is a part of them."""
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield statement
            case ast.ClassDef(body=inner) | ast.With(body=inner):
                yield from _functions(inner)
            case ast.If(body=inner, orelse=orelse):
                yield from _functions([*inner, *orelse])
            case ast.Try(body=inner, handlers=handlers, orelse=orelse, finalbody=final):
                for part in (inner, *(handler.body for handler in handlers), orelse, final):
                    yield from _functions(part)
            case _:
                pass


def _first(function: _Function) -> int:
    """The line on which a function begins, with its decorators."""
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
