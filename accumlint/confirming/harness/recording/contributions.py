"""The contribution of a backward to the parameters' gradients, separated by loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from accumlint.confirming.harness.fakes.loss_functions import Loss, grads_of
from accumlint.confirming.harness.recording.loss_divisors import is_shaped, paths


def contributions(
    root: torch.Tensor, losses: Sequence[Loss], parameters: Sequence[torch.Tensor], number: int
) -> Iterator[dict[str, Any]]:
    """The contribution of each loss to the parameters when a root goes backward; `number` identifies the root.

    For a loss it is the number of targets, the weight of one in the root, and the gradient of their sum. For a root
    that is no plain sum of them, it is its gradient as a whole.
    """
    weighed = list(zip(losses, grads_of(root, [x.elements for x in losses]), strict=True))
    by_hand = not any(not x.by_hand and weights is not None for x, weights in weighed)
    if shaped := shaped_by(root, weighed):
        yield _whole(root, shaped, parameters, number)
        return
    params = [p for p in parameters if p.requires_grad]
    known: list[tuple[Loss, torch.Tensor]] = []
    share, line, microbatches, size = 0.0, 0, set[int](), 0.0
    for loss, weights in weighed:
        if loss.by_hand != by_hand:
            continue
        if weights is None or not bool(weights.abs().sum() > 0):
            continue
        # Elements without weight, as behind a mask, are no targets.
        counted = loss.counted & (weights != 0)
        count = int(counted.sum())
        try:
            grads = torch.autograd.grad(
                (loss.elements * counted).sum(), params, retain_graph=True, allow_unused=True
            )
        except RuntimeError:
            # The user's own backward will raise the same.
            continue
        mean = float(weights[counted].double().mean()) if count else 0.0
        brought = _brought(dict(zip(map(id, params), grads, strict=True)), parameters)
        known.append((loss, weights))
        size = max(size, abs(mean) * max(map(abs, brought["gradient"]), default=0.0))
        line = line or loss.line
        if loss.line == line:
            share += mean * count
            microbatches.add(loss.microbatch)
        yield {
            "microbatch": loss.microbatch, "loss": loss.line, "number": loss.number, "count": count,
            "elements": loss.elements.numel(), "weight": mean, "factors": paths(root, loss.made()), "shaped": False,
            **brought,
        }  # fmt: skip
    if not share:
        return
    # The rest of a root beside its losses, such as weight regularization, is a term with one element for each
    # micro-batch; its size relative to the first loss is the user's choice.
    rest = root.sum() - sum((loss.elements * weights).sum() for loss, weights in known)
    count = len(microbatches)
    brought = _brought(_grads(rest, params), parameters, count / share)
    rounding = 1e4 * torch.finfo(root.dtype).eps * size * count / abs(share)
    if max(map(abs, brought["gradient"]), default=0.0) > rounding:
        yield {
            # Unique for each root.
            "microbatch": min(microbatches), "loss": 0, "number": -1 - number, "count": count, "elements": count,
            "weight": share / count**2, "factors": [], "shaped": False, **brought,
        }  # fmt: skip


def _grads(root: torch.Tensor, params: list[torch.Tensor]) -> dict[int, torch.Tensor | None]:
    return dict(zip(map(id, params), grads_of(root, params), strict=True))


def _brought(
    grads: Mapping[int, torch.Tensor | None], parameters: Sequence[torch.Tensor], times: float = 1.0
) -> dict[str, Any]:
    """A gradient as numbers, and the parameters in its graph, those with a zero gradient included."""
    vector = [x for p in parameters for x in flat(grads.get(id(p)), p)]
    return {
        "gradient": vector if times == 1.0 else [x * times for x in vector],
        "reached": [i for i, p in enumerate(parameters) if grads.get(id(p)) is not None],
    }


def shaped_by(
    root: torch.Tensor, weighed: Sequence[tuple[Loss, torch.Tensor | None]]
) -> list[Loss]:
    """The losses of a root that is no plain sum of the elements of each; empty where it is."""
    by_hand = all(x.by_hand for x, weights in weighed if weights is not None)
    used = [
        (loss, weights, loss.counted & (weights != 0))
        for loss, weights in weighed
        if weights is not None and loss.by_hand == by_hand and bool(weights.any())
    ]
    if any(is_shaped(root, loss.elements, counted, w) for loss, w, counted in used):
        return [loss for loss, *_ in used]
    return []


def _whole(
    root: torch.Tensor, losses: Sequence[Loss], parameters: Sequence[torch.Tensor], number: int
) -> dict[str, Any]:
    """The contribution of a root as a whole: one term of its micro-batch."""
    params = [p for p in parameters if p.requires_grad]
    # Targets are counted in the loss with most elements.
    largest = max(losses, key=lambda loss: loss.elements.numel())
    count = max(1, int(largest.counted.sum()))
    # With several micro-batches in one root, the divisor of each is unknown.
    several = len({loss.microbatch for loss in losses}) > 1
    made = [made for loss in losses for made in loss.made()]
    first = losses[0]
    return {
        "microbatch": first.microbatch, "loss": first.line, "number": first.number, "count": count,
        "elements": largest.elements.numel(), "weight": 1 / count, "factors": [] if several else paths(root, made),
        "shaped": True, **_brought(_grads(root, params), parameters, count),
    }  # fmt: skip


def flat(grad: torch.Tensor | None, like: torch.Tensor) -> list[float]:
    """A gradient as numbers, zeros for None."""
    if grad is None:
        return [0.0] * like.numel()
    return grad.detach().double().cpu().flatten().tolist()
