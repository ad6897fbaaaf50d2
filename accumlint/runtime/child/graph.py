"""Looks at the graph of what goes backward: which losses it comes from, and what was multiplied on the way."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# torch's own annotations are partial.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

# What a node's own dictionary holds for us.
MARK = "accumlint"
_SCALES = {"MulBackward0": "*", "DivBackward0": "/"}
_THROUGH = (
    "Add", "Sub", "Neg", "ToCopy", "View", "Alias", "Squeeze", "Unsqueeze", "Clone", "Sum", "Mul", "Div", "Reshape",
    "UnsafeView", "Stack", "Cat", "Select", "Where", "Index", "Mean", "MaskedFill", "Slice", "Expand", "Masked",
)  # fmt: skip
_MOST = 300


class Path(NamedTuple):
    """A way from what goes backward to a node; `factors` are ("*" or "/", the number or tensor) on it."""

    node: Any
    factors: tuple[tuple[str, Any], ...]


def losses(root: torch.Tensor) -> tuple[list[Path], list[Path]]:
    """The ways to the marked losses of a graph; and to its outermost means, where no marked loss lies below them."""
    if root.grad_fn is None:
        return [], []
    marked: list[Path] = []
    means: list[Path] = []
    visited = 0
    waiting = [(Path(root.grad_fn, ()), False)]
    seen: set[Any] = set()
    while waiting and visited < _MOST:
        (node, factors), below = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        visited += 1
        if MARK in node.metadata:
            marked.append(Path(node, factors))
            continue
        name = node.name()
        if name.startswith("Mean") and not below:
            means.append(Path(node, factors))
            below = True
        if not name.startswith(_THROUGH):
            continue
        here = (*factors, *_factor(node, name))
        waiting += ((Path(child, here), below) for child, _ in node.next_functions)
    return marked, [] if marked else means


def _factor(node: Any, name: str) -> Iterator[tuple[str, Any]]:
    """What a node multiplies by: a number, None for what has several elements."""
    if name not in _SCALES:
        return
    try:
        other = node._saved_other
    except (RuntimeError, AttributeError):
        return
    if isinstance(other, torch.Tensor):
        yield _SCALES[name], other.detach() if other.numel() == 1 else None
    elif isinstance(other, int | float):
        yield _SCALES[name], float(other)
