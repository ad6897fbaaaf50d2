"""Inspects the graph of a root: the losses that it contains, and their factors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

# The metadata key of a marked node.
MARK = "accumlint"
_SCALES = {"MulBackward0": "*", "DivBackward0": "/"}
_THROUGH = (
    "Add", "Sub", "Neg", "ToCopy", "View", "Alias", "Squeeze", "Unsqueeze", "Clone", "Sum", "Mul", "Div", "Reshape",
    "UnsafeView", "Stack", "Cat", "Select", "Where", "Index", "Mean", "MaskedFill", "Slice", "Expand", "Masked",
)  # fmt: skip
_MOST = 300


class Path(NamedTuple):
    """A path from a root to a node; `factors` are pairs of "*" or "/" and a number or tensor."""

    node: Any
    factors: tuple[tuple[str, Any], ...]


# Losses of torch that may have been called past the observers.
_LOSSES = ("NllLoss", "MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy", "KlDiv")


def losses(root: torch.Tensor) -> tuple[list[Path], list[Path]]:
    """The paths to the losses of a graph, marked or of torch; without any, to its outermost means or summands."""
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
        if name.startswith(_LOSSES):
            marked.append(Path(node, factors))
            continue
        if name.startswith("Mean") and not below:
            means.append(Path(node, factors))
            below = True
        if not name.startswith(_THROUGH):
            continue
        here = (*factors, *_factor(node, name))
        waiting += ((Path(child, here), below) for child, _ in node.next_functions)
    return marked, [] if marked else means or [*_summed(root.grad_fn)]


# Elementwise operations.
_ELEMENTWISE = (
    "Neg", "ToCopy", "View", "UnsafeView", "Reshape", "Squeeze", "Unsqueeze", "Clone", "Alias",
)  # fmt: skip


def _summed(node: Any) -> Iterator[Path]:
    """The path to the elements of a loss that is only their sum, scaled or masked."""
    factors: tuple[tuple[str, Any], ...] = ()
    sums, name = False, ""
    while node is not None:
        name = node.name()
        if name.startswith("Sum"):
            sums = True
        elif name in _SCALES:
            [(op, value)] = _factor(node, name)
            if value is None and not _is_mask(_saved(node, "other", None)):
                return
            factors = (*factors, (op, 1.0 if value is None else value))
        elif not name.startswith((*_ELEMENTWISE, "MaskedFill")):
            break
        below = [child for child, _ in node.next_functions if child is not None]
        if len(below) != 1:
            return
        [node] = below
    if sums and node is not None and not name.startswith((*_THROUGH, "AccumulateGrad")):
        yield Path(node, factors)


def _is_mask(other: Any) -> bool:
    return isinstance(other, torch.Tensor) and bool(((other == 0) | (other == 1)).all())


def _factor(node: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The factor of a node: a number, None for a tensor with several elements."""
    if name not in _SCALES:
        return
    other = _saved(node, "other", None)
    if isinstance(other, torch.Tensor):
        yield _SCALES[name], other.detach() if other.numel() == 1 else None
    elif isinstance(other, int | float):
        yield _SCALES[name], float(other)


_REDUCTIONS = ("none", "mean", "sum")


def described(node: Any) -> dict[str, Any]:
    """The reduction and target counts of a loss, as far as its node has them."""
    name = node.name()
    if not name.startswith((*_LOSSES, "Mean")):
        return {"loss": "sum", "reduction": "none", "targets": 0, "total": 0, "rows": 0}
    if name.startswith("Mean"):
        number = _saved(node, "self_sym_numel", 0)
        return {"loss": "mean", "reduction": "mean", "targets": number, "total": number, "rows": 0}
    reduction = _REDUCTIONS[int(_saved(node, "reduction", 1))]
    target = _saved(node, "target", None)
    found = {"loss": name.partition("Backward")[0], "reduction": reduction, "rows": 0}
    if not isinstance(target, torch.Tensor):
        return {**found, "targets": 0, "total": 0}
    if not name.startswith("NllLoss"):
        number = max(target.numel(), _saved(node, "self", target).numel())
        return {**found, "targets": number, "total": number}
    ignored = int(_saved(node, "ignore_index", 2**64 - 100))
    # The saved value is unsigned.
    valid = target != (ignored - 2**64 if ignored >= 2**63 else ignored)
    found |= {"targets": valid.sum(), "total": target.numel()}
    weight = _saved(node, "weight", None)
    return found if weight is None else {**found, "weighted": weight[target[valid]].sum()}


def _saved(node: Any, name: str, usual: Any) -> Any:
    """A value that a node saved for its backward, `usual` where it is missing or freed."""
    try:
        return getattr(node, f"_saved_{name}")
    except (RuntimeError, AttributeError):
        return usual
