"""Observes torch's losses: their target counts, and the weight with which they go backward."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from accumlint.runtime.child import graph
from accumlint.runtime.child.frames import user_location
from accumlint.runtime.child.recorder import Event, Recorder

_BY_CLASS = ("cross_entropy", "nll_loss")
_ELEMENTWISE = (
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "kl_div", "poisson_nll_loss", "gaussian_nll_loss",
)  # fmt: skip


def observe(recorder: Recorder) -> None:
    """Observes torch's losses."""
    for name in (*_BY_CLASS, *_ELEMENTWISE):
        original = getattr(functional, name, None)
        if original is not None:
            loss = _observed(recorder, name, original)
            recorder.patches.put(functional, name, loss, everywhere=True)


def _observed(recorder: Recorder, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def loss(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not recorder.watches or recorder.backward is not None:
            return original(*args, **kwargs)
        with recorder.paused():
            result = original(*args, **kwargs)
            node = getattr(result, "grad_fn", None)
            if node is not None and graph.MARK not in node.metadata:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                described = _described(name, bound.arguments, result)
                place = user_location()
                described.update(file=place.file, line=place.line, key=place.key)
                node.metadata[graph.MARK] = described
                _listen(recorder, node, described)
        return result

    return loss


def _described(name: str, arguments: dict[str, Any], result: torch.Tensor) -> Event:
    """The reduction and the target counts of a loss; `total` includes ignored targets."""
    reduction = arguments.get("reduction", "mean")
    # Two deprecated arguments.
    average, reduce = arguments.get("size_average"), arguments.get("reduce")
    if average is not None or reduce is not None:
        reduction = "none" if reduce is False else "sum" if average is False else "mean"
    target: torch.Tensor | None = arguments.get("target")
    described: Event = {"loss": name, "reduction": reduction}
    if name in _BY_CLASS and target is not None and not target.is_floating_point():
        valid = target != arguments["ignore_index"]
        rows = len(target) if target.dim() else 1
        described |= {"targets": valid.sum(), "total": target.numel(), "rows": rows}
        if arguments.get("weight") is not None:
            described["weighted"] = arguments["weight"][target[valid]].sum()
        return described
    value = arguments["input"]
    if name in _BY_CLASS:
        number = value.numel() // value.shape[1 if value.dim() > 1 else 0]
    elif target is not None:
        number = torch.broadcast_shapes(value.shape, target.shape).numel()
    else:
        number = value.numel()
    if reduction == "batchmean":
        number = value.shape[0]
    rows = value.shape[0] if value.dim() else 1
    return {**described, "targets": number, "total": number, "rows": rows}


def _listen(recorder: Recorder, node: Any, described: Event) -> None:
    """Records the derivative of the root with respect to a loss when the backward reaches it."""

    def arriving(gradients: tuple[torch.Tensor | None, ...]) -> None:
        event = recorder.backward
        if event is None or not gradients or gradients[0] is None:
            return
        arrived = gradients[0].detach()
        if described["loss"] == "sum":
            # A user's own loss may be negated.
            arrived = arrived.abs()
        arriving_loss = {**described, "coefficient": arrived.sum()}
        if arrived.numel() > 1:
            weights = arrived[arrived != 0]
            arriving_loss["targets"] = weights.numel()
            arriving_loss["total"] = described["total"] or arrived.numel()
            if weights.numel():
                arriving_loss |= {"least": weights.min(), "most": weights.max()}
        event["losses"].append(arriving_loss)

    node.register_prehook(arriving)


def prepare(recorder: Recorder, event: Event, roots: list[torch.Tensor]) -> list[Any]:
    """Records the factors of losses in graphs before a backward, and marks unknown means; returns all their nodes."""
    found: list[Any] = []
    for root in roots:
        marked, means = graph.losses(root)
        found += [path.node for path in (*marked, *means)]
        place = {"file": event["file"], "line": event["line"], "key": event["key"]}
        for path in (*marked, *means):
            if graph.MARK not in path.node.metadata:
                described = {**graph.described(path.node), **place}
                path.node.metadata[graph.MARK] = described
                _listen(recorder, path.node, described)
            path.node.metadata[graph.MARK]["factors"] = path.factors
    return found
