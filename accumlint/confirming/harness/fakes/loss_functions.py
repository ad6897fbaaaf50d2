"""Losses, evaluated elementwise and reduced as requested."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

ELEMENTWISE = {
    F.cross_entropy, F.nll_loss, F.binary_cross_entropy, F.binary_cross_entropy_with_logits, F.mse_loss, F.l1_loss,
    F.smooth_l1_loss, F.huber_loss, F.kl_div, F.gaussian_nll_loss, F.poisson_nll_loss, F.hinge_embedding_loss,
    F.soft_margin_loss, F.multi_margin_loss, F.multilabel_soft_margin_loss, F.margin_ranking_loss,
    F.triplet_margin_loss, F.cosine_embedding_loss,
}  # fmt: skip
VIEWS = {torch.Tensor.view, torch.Tensor.reshape, torch.reshape}
REDUCTIONS = {torch.mean, torch.sum, torch.Tensor.mean, torch.Tensor.sum}


@dataclass
class Loss:
    """An evaluated loss: its elements with their graph, which of them are targets, and its line."""

    microbatch: int
    elements: torch.Tensor
    counted: torch.Tensor
    line: int
    by_hand: bool
    number: int = 0
    # The result of a torch function, which divides by the number of elements itself.
    result: torch.Tensor | None = None

    def made(self) -> list[torch.Tensor]:
        """The end of the loss, after which the loop's own computation begins, where known."""
        return [] if self.result is None else [self.result]


def evaluated(
    func: Any, args: Any, kwargs: dict[str, Any]
) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """A loss as requested, its elements with their graph, and the mask of its targets."""
    __tracebackhide__ = True
    reduction = kwargs.get("reduction", "mean")
    plain = {k: v for k, v in kwargs.items() if k not in ("reduction", "reduce", "size_average")}
    elements = func(*args, **plain, reduction="none")
    if reduction == "batchmean" and elements.dim() > 1:
        # Each target is a distribution: its terms are not targets.
        elements = elements.flatten(1).sum(1)
    counted = torch.ones_like(elements, dtype=torch.bool)
    of_classes = func in (F.cross_entropy, F.nll_loss)
    if of_classes and len(args) > 1:
        target = args[1]
        if target.shape == elements.shape and not target.is_floating_point():
            counted = target != plain.get("ignore_index", -100)
    if reduction == "none":
        result = elements
    elif reduction == "sum":
        result = elements.sum()
    elif reduction == "mean" and of_classes:
        weight: Any = plain.get("weight")
        whole = counted
        if weight is not None and not args[1].is_floating_point():
            # Class weights make it a weighted mean.
            whole = weight[args[1].clamp(min=0)] * counted
        result = elements.sum() / whole.sum()
    elif reduction == "batchmean":
        result = elements.sum() / elements.shape[0]
    else:
        result = elements.mean()
    return result, elements, counted


def flattened(args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments of a reduction over several dimensions, limited to those of the faked rows."""
    tensor, *rest = args
    wanted = kwargs.get("dim", rest[0] if rest else None)
    if not isinstance(tensor, torch.Tensor) or not isinstance(wanted, list | tuple):
        return args, kwargs
    there = [d for d in wanted if isinstance(d, int) and -tensor.dim() <= d < tensor.dim()]
    if len(there) == len(wanted) or not there:
        return args, kwargs
    if "dim" in kwargs:
        return args, {**kwargs, "dim": there}
    return (tensor, there, *rest[1:]), kwargs


def viewed(tensor: torch.Tensor, shape: Any) -> Any:
    """A requested shape, adapted where it contains widths of the user's network that the fake does not have."""
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape
    if not sizes or not all(type(size) is int for size in sizes) or not tensor.dim():
        return shape
    free = sizes.count(-1)
    known = math.prod(size for size in sizes if size != -1)
    if free > 1 or (
        known > 0 and tensor.numel() % known == 0 and (free or known == tensor.numel())
    ):
        return shape
    if len(sizes) == 1:
        return (-1,)
    if len(sizes) == 2:
        return (-1, tensor.shape[-1])
    return tuple(tensor.shape) if len(sizes) == tensor.dim() else shape


def indexed(tensor: torch.Tensor, key: Any) -> Any:
    """An index with more dimensions than the fake has: the integer ones are dropped."""
    if not isinstance(key, tuple) or any(k is None or k is ... for k in key):
        return key
    extra = len(key) - tensor.dim()
    if extra <= 0 or not all(type(k) is int or isinstance(k, slice) for k in key):
        return key
    numbers = [i for i, k in enumerate(key) if type(k) is int][-extra:]
    return tuple(k for i, k in enumerate(key) if i not in numbers)


def fitted(func: Any, args: Any) -> Any:
    """Targets in the layout of the loss: class indices as columns, or the last of a row for a single output."""
    if len(args) < 2:
        return args
    output, target, *rest = args
    if func is F.binary_cross_entropy and isinstance(output, torch.Tensor):
        if bool((output < 0).any()) or bool((output > 1).any()):
            # Fake networks return logits where the user's returns probabilities.
            return fitted(func, (output.sigmoid(), target, *rest))
    if func in (F.cross_entropy, F.nll_loss):
        if isinstance(target, torch.Tensor) and output.dim() == target.dim() == 2:
            if not target.is_floating_point() and len(output) == len(target):
                return (output, target[:, -1], *rest)
        if isinstance(target, torch.Tensor) and output.dim() == target.dim() + 1 > 2:
            if output.shape[:-1] == target.shape != (len(output), *output.shape[2:]):
                # torch expects the classes second; fake networks return them last.
                return (output.movedim(-1, 1), target, *rest)
        return args
    if isinstance(target, torch.Tensor) and target.dim() == output.dim() - 1:
        classes = target.long().clamp(min=0) % output.shape[-1]
        return (output, F.one_hot(classes, output.shape[-1]).to(output.dtype), *rest)
    return args


def grads_of(root: torch.Tensor, of: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """The gradients of a root with respect to several tensors, None for those that it does not depend on."""
    # torch checks shapes with its symbolic module, whose import takes as long as a job; a scalar needs no check.
    start = None if root.numel() == 1 else torch.ones_like(root)
    try:
        return list(
            torch.autograd.grad(root, of, start, retain_graph=True, allow_unused=True) if of else ()
        )
    except RuntimeError:
        if len(of) == 1:
            # An earlier backward has freed its graph; the user's own backward will show it.
            return [None]
        return [found for one in of for found in grads_of(root, [one])]
