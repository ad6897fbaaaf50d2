"""Before a file is read in earnest: may it hold a training loop, or speak to accumlint?

First its bytes are asked, then Python's own syntax tree, each a tenth as dear as what comes next.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

from accumlint.files.source import lines_with, nodes, tree

if TYPE_CHECKING:
    import ast

# One `in` test per token is several times quicker than any alternation in a regular expression. Most files are told by
# the first few, in each of which some of the others stand.
_BRIEF = (b"backward", b"zero_grad", b"compute_loss", b"training_step", b"caler")
_TOKENS = (
    b"backward(",
    b".backward",
    b"compute_loss",
    b"def training_step",
    b".zero_grad(",
    b"loss_scaler",
    b"NativeScaler",
)
# What stands in the code of every file that trains, if only around a backward that is elsewhere …
_IN_LOOPS = (
    "backward", "manual_backward", "backward_step", "train_batch", "zero_grad", "optimizer_zero_grad", "unscale_",
    "no_sync", "accumulate", "clip_grad_norm_",
)  # fmt: skip
# … or what tells a trainer how.
_OF_TRAINERS = ("compute_loss", "compute_loss_func", "training_step")
_TOLD = (
    rf"(?<!\w)(?:(?<!def )(?:{'|'.join(_IN_LOOPS)})|{'|'.join(_OF_TRAINERS)})(?!\w)"
    "|loss_scaler|NativeScaler"
)
_WORD = re.compile(_TOLD.encode())
_NAME = re.compile(rf"{_TOLD}|(?<!\w)step(?!\w)")
# A trainer that is made and not derived from, and what tells that it accumulates.
_STOCK = re.compile(rb"Trainer\w*\(|\([\w.]*Trainer[,)]")
_ACCUMULATING = (b"gradient_accumulation_steps", b"HfArgumentParser")
# How JSON may write letters of ASCII, and those that Python takes for them.
_ESCAPED = re.compile(
    rb"\\u(?:00[4-7aAbB]|017[fF]|02|1[dD]|20[79]|21|2[cC]7|[dD]835|[fF][bB]0|[fF]{2}[2-5])"
)

# Calls of the same names mean something else where one of these is imported, and torch is not.
_OTHERS = (b"paddle", b"mindspore", b"mxnet", b"oneflow", b"jittor")
_IMPORT = rb"(?m)^[ \t]*(?:import|from)[ \t]+(?:%s)\b"
_OTHER = re.compile(_IMPORT % b"|".join(_OTHERS))
_TORCH = re.compile(_IMPORT % rb"\w*torch|accelerate|lightning|deepspeed|transformers")


def may_train(data: bytes) -> bool:
    """False when nothing in `data` can be a backward pass or a trainer's loss."""
    if makes_a_trainer(data):
        return True
    if not (_has_any(_BRIEF, data) and _has_any(_TOKENS, data)):
        return False
    if _WORD.search(data) is None:
        return False
    other = any(name in data for name in _OTHERS) and _OTHER.search(data)
    return not other or _TORCH.search(data) is not None


def makes_a_trainer(data: bytes) -> bool:
    """False when nothing in `data` can make a trainer of transformers that accumulates, or a pipeline of DeepSpeed."""
    return (b"deepspeed" in data and b".train_batch(" in data) or (
        b"Trainer" in data
        and (b"transformers" in data or b"trl" in data)
        and _has_any(_ACCUMULATING, data)
        and _STOCK.search(data) is not None
    )


def _has_any(tokens: tuple[bytes, ...], data: bytes) -> bool:
    for token in tokens:  # noqa: SIM110 (a generator for `any` would take longer than the tests)
        if token in data:
            return True
    return False


def may_hide(data: bytes) -> bool:
    """True where bytes may hold those words without showing them."""
    if b"\\u" in data and _ESCAPED.search(data):
        return True
    return not data.isascii() and disguised(data.decode(errors="replace")) is not None


def disguised(text: str) -> tuple[str, int] | None:
    """The first word, and its line, that is spelt with characters which Python reads as other ones."""
    if text.isascii() or unicodedata.is_normalized("NFKC", text):
        return None
    for number, line in enumerate(text.split("\n"), 1):
        words = _NAME.findall(unicodedata.normalize("NFKC", line))
        if len(words) > len(_NAME.findall(line)):
            return next(word for word in words if words.count(word) > line.count(word)), number
    return None


def may_ignore(data: bytes) -> bool:
    """False when no comment in `data` can silence a rule by our own word."""
    return b"accumlint:" in data


def may_loop(text: str) -> bool:
    """False when nothing in `text` is a word of a loop: no more than a part of some trainer stands there."""
    return "loss_scaler" in text or any(word in text for word in _IN_LOOPS)


def trains(text: str) -> bool:
    """False when those words stand in comments and texts only, or name what is no part of a loop.

    True for what Python cannot read: libcst may know better, or say what is wrong.
    """
    from accumlint.files.nesting import LONGEST

    if len(text) > LONGEST or makes_a_trainer(text.encode("utf-8", "surrogatepass")):
        return True
    if _is_silent(text):
        return False
    module = tree(text)
    return module is None or any(map(_trains, _speaking(module, text)))


def _is_silent(text: str) -> bool:
    """True when the words stand in comments and literals only, which is told without Python's own parser."""
    from accumlint.files.nesting import TEXT

    if re.search(_TOLD, TEXT.sub(" ", text)):
        return False
    # A literal without an end is told as what it is.
    return all(found.lastindex is None for found in TEXT.finditer(text))


def _speaking(module: ast.Module, text: str) -> Iterator[ast.stmt]:
    """The statements of a file in which any of the words stands; in a long file they are few."""
    lines = lines_with((*_IN_LOOPS, *_OF_TRAINERS, "loss_scaler"), text)
    end = 1
    for statement in module.body:
        # Decorators stand before what they decorate, and several statements may share a line.
        begin, end = end, statement.end_lineno or statement.lineno
        if bisect_left(lines, begin) < bisect_right(lines, end):
            yield statement


def _trains(statement: ast.stmt) -> bool:
    import ast

    for node in nodes(statement):
        match node:
            case ast.Attribute(value=owner, attr="backward") if _is_class(owner):
                # An autograd function's own.
                continue
            case ast.Name(id="accumulate"):
                # How a sum is written, not where gradients are summed.
                continue
            case ast.Name(id=word) | ast.Attribute(attr=word):
                if word in _IN_LOOPS or "loss_scaler" in word:
                    return True
            case (
                ast.FunctionDef(name=word) | ast.AsyncFunctionDef(name=word) | ast.keyword(arg=word)
            ):
                if word in _OF_TRAINERS:
                    return True
            case _:
                pass
    return False


def _is_class(owner: ast.expr) -> bool:
    """Whether an expression is named like a class, which has no gradient."""
    import ast

    word = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    return word.endswith("cls") or word[:1].isupper()
