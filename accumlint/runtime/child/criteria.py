"""Torch's losses, observed: how many targets they take, and with which weight they go backward."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# torch's own annotations are partial.

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from accumlint.runtime.child import graph
from accumlint.runtime.child.frames import where
from accumlint.runtime.child.recorder import Event, Recorder

_BY_CLASS = ("cross_entropy", "nll_loss")
_OTHERS = (
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "kl_div", "poisson_nll_loss", "gaussian_nll_loss",
)  # fmt: skip


def observe(recorder: Recorder) -> None:
    """Has torch's losses observed."""
    for name in (*_BY_CLASS, *_OTHERS):
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
        with recorder.aside():
            result = original(*args, **kwargs)
            node = getattr(result, "grad_fn", None)
            if node is not None and graph.MARK not in node.metadata:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                told = _told(name, bound.arguments, result)
                place = where()
                told.update(file=place.file, line=place.line, key=place.key)
                node.metadata[graph.MARK] = told
                _listen(recorder, node, told)
        return result

    return loss


def _told(name: str, given: dict[str, Any], result: torch.Tensor) -> Event:
    """The reduction of a loss and the numbers of its targets; `total` counts those that are ignored, too."""
    reduction = given.get("reduction", "mean")
    if given.get("size_average") is not None or given.get("reduce") is not None:
        reduction = _legacy(given.get("size_average"), given.get("reduce"))
    target: torch.Tensor | None = given.get("target")
    told: Event = {"loss": name, "reduction": reduction}
    if name in _BY_CLASS and target is not None and not target.is_floating_point():
        valid = target != given["ignore_index"]
        told |= {
            "targets": valid.sum(),
            "total": target.numel(),
            "rows": len(target) if target.dim() else 1,
        }
        if given.get("weight") is not None:
            told["weighted"] = given["weight"][target[valid]].sum()
        return told
    value = given["input"]
    if name in _BY_CLASS:
        number = value.numel() // value.shape[1 if value.dim() > 1 else 0]
    elif target is not None:
        number = torch.broadcast_shapes(value.shape, target.shape).numel()
    else:
        number = value.numel()
    if reduction == "batchmean":
        number = value.shape[0]
    return {
        **told,
        "targets": number,
        "total": number,
        "rows": value.shape[0] if value.dim() else 1,
    }


def _legacy(size_average: bool | None, reduce: bool | None) -> str:
    """The reduction that two arguments of old stand for."""
    if reduce is False:
        return "none"
    return "sum" if size_average is False else "mean"


def _listen(recorder: Recorder, node: Any, told: Event) -> None:
    """Notes the derivative of what goes backward by a loss, when it arrives there."""

    def arriving(gradients: tuple[torch.Tensor | None, ...]) -> None:
        event = recorder.backward
        if event is None or not gradients or gradients[0] is None:
            return
        arrived = gradients[0].detach()
        if told["loss"] == "sum":
            # Of somebody's own, which may be the negative of one.
            arrived = arrived.abs()
        coming = {**told, "coefficient": arrived.sum()}
        if arrived.numel() > 1:
            weights = arrived[arrived != 0]
            coming["targets"] = weights.numel()
            coming["total"] = told["total"] or arrived.numel()
            if weights.numel():
                coming |= {"least": weights.min(), "most": weights.max()}
        event["losses"].append(coming)

    node.register_prehook(arriving)


def prepare(recorder: Recorder, event: Event, roots: list[torch.Tensor]) -> list[Any]:
    """Looks at graphs before they go backward: what divides the losses, and the means of losses unknown to us.

    Gives the nodes of all of them.
    """
    found: list[Any] = []
    for root in roots:
        marked, means = graph.losses(root)
        found += [path.node for path in (*marked, *means)]
        place = {"file": event["file"], "line": event["line"], "key": event["key"]}
        for path in (*marked, *means):
            if graph.MARK not in path.node.metadata:
                told = {**graph.told(path.node), **place}
                path.node.metadata[graph.MARK] = told
                _listen(recorder, path.node, told)
            path.node.metadata[graph.MARK]["factors"] = path.factors
    return found
