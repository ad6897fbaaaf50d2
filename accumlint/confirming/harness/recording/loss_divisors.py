"""The constants by which a loss is multiplied before its backward, and whether the graph uses it as a plain sum.

Gradient accumulation divides a loss by a constant. A composed loss (a focal loss, a root, weights from another network)
depends on the graph; the large batch is no mean over its elements.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import torch

# Operations that leave a constant factor unchanged.
_LINEAR = re.compile(
    r"(Sum|Mean|Neg|View|UnsafeView|ReshapeAlias|Squeeze|Unsqueeze|ToCopy|Clone|Stack|Cat|Index|Select|Slice|Expand"
    r"|Transpose|Permute|T|Alias|Where|Add|Sub|MaskedFill|MaskedSelect|Gather)Backward\d*$"
)
_SEVERAL = re.compile(r"(Add|Sub)Backward\d*$")
_DEEPEST = 60
_MOST = 20_000


def paths(root: torch.Tensor, of: Sequence[torch.Tensor]) -> list[list[float]]:
    """For each term of a root that contains one of some tensors (or all), the constants it is multiplied by."""
    targets = {x.grad_fn for x in of}
    return [found for found in _terms(root.grad_fn, targets, 0) if found is not None]


def _terms(node: Any, targets: Collection[Any], depth: int) -> list[list[float] | None]:
    """The constants of each term below a node, None for a term without a target."""
    if node is None or node in targets or depth > _DEEPEST:
        return [[]]
    name = node.name()
    into = [following for following, _ in node.next_functions if following is not None]
    if _SEVERAL.match(name) and len(into) > 1:
        reaching = [one for one in into if _reaches(one, targets)]
        return [found for one in reaching for found in _terms(one, targets, depth + 1)] or [None]
    if name.startswith("MulBackward"):
        return _product(node, into, targets, depth)
    if name.startswith("DivBackward"):
        by = 1.0 if len(into) > 1 else 1 / (_constant(node, "_saved_other") or 1.0)
        return _with(by, _terms(into[0], targets, depth + 1))
    if _LINEAR.match(name) and into:
        found = [
            x for one in into if _reaches(one, targets) for x in _terms(one, targets, depth + 1)
        ]
        return found or [None]
    return [[]]


def _product(
    node: Any, into: list[Any], targets: Collection[Any], depth: int
) -> list[list[float] | None]:
    if len(into) > 1:
        # A constant in either factor is one of the product.
        first, second = (_terms(one, targets, depth + 1) for one in into[:2])
        both = [[*(a or ()), *(b or ())] for a in first for b in second]
        return [*both]
    of_first = node.next_functions[0][0] is not None
    by = _constant(node, "_saved_other" if of_first else "_saved_self")
    return _with(by or 1.0, _terms(into[0], targets, depth + 1)) if into else [[]]


def _with(by: float, terms: list[list[float] | None]) -> list[list[float] | None]:
    return [None if term is None else [*term, by] for term in terms]


def _constant(node: Any, name: str) -> float:
    """The scalar by which a node multiplies or divides, 0 for a tensor with several elements or none."""
    value = _saved(node, name)
    if value is None or value.numel() != 1:
        return 0.0
    return abs(float(value.detach()))


def _saved(node: Any, name: str) -> torch.Tensor | None:
    """A tensor that a node saved for its backward."""
    try:
        value = getattr(node, name, None)
    except RuntimeError:
        # The graph has been freed.
        return None
    return value if isinstance(value, torch.Tensor) else None


def _reaches(node: Any, targets: Collection[Any]) -> bool:
    if not targets:
        return True
    seen: set[Any] = set()
    open_ = [node]
    while open_ and len(seen) < _MOST:
        one = open_.pop()
        if one in targets:
            return True
        if one not in seen:
            seen.add(one)
            open_.extend(f for f, _ in one.next_functions if f is not None)
    return False


# Elementwise operations.
_IN_PLACE = re.compile(r"(Neg|Pow|Div|ToCopy|Clone|Alias)Backward\d*$")
_HINGE = re.compile(r"(Clamp|ClampMin|ClampMax|Relu|Threshold|Maximum|Minimum)Backward\d*$")


def hinged(node: Any, like: torch.Tensor, depth: int = 0) -> torch.Tensor:
    """Which elements of a loss may be 0 because of a hinge in the graph."""
    nothing = torch.zeros_like(like, dtype=torch.bool)
    if node is None or depth > _DEEPEST:
        return nothing
    name = node.name()
    if _HINGE.match(name):
        return ~nothing
    into = [(place, one) for place, (one, _) in enumerate(node.next_functions) if one is not None]
    if name.startswith("MulBackward") and len(into) == 1:
        # The other factor may be a mask.
        factor = _saved(node, "_saved_self" if into[0][0] else "_saved_other")
        try:
            kept = nothing if factor is None else (factor != 0).expand(like.shape)
        except RuntimeError:
            # An operation in between changed the shape.
            return nothing
        return kept & hinged(into[0][1], like, depth + 1)
    found = nothing
    if _IN_PLACE.match(name) or _SEVERAL.match(name) or name.startswith("MulBackward"):
        for _, one in into:
            found = found | hinged(one, like, depth + 1)
    return found


def is_shaped(
    root: torch.Tensor, elements: torch.Tensor, counted: torch.Tensor, weights: torch.Tensor
) -> bool:
    """Whether a root is no plain sum of a loss's elements: weights differ, or depend on the graph."""
    chosen = weights[counted].detach()
    size = float(chosen.abs().max()) if chosen.numel() else 0.0
    rounding = 1e4 * torch.finfo(weights.dtype).eps * size
    if chosen.numel() and float(chosen.max() - chosen.min()) > rounding:
        return True
    start = None if root.numel() == 1 else torch.ones_like(root)
    try:
        (again,) = torch.autograd.grad(
            root, [elements], start, retain_graph=True, create_graph=True
        )
    except RuntimeError:
        # If the weights cannot be differentiated, they have a graph.
        return True
    # Weights with a graph of their own belong to a composed loss.
    return again.requires_grad
