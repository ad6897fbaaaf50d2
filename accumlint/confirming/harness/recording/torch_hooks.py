"""Patches torch so that a recorder sees clears, clipping, schedules and the GradScaler."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from accumlint.confirming.harness.fakes.grad_scalers import Scaled
from accumlint.confirming.harness.fakes.stub import Stub
from accumlint.confirming.harness.parameters import parameters_of
from accumlint.confirming.harness.recording.recorder import Recorder
from accumlint.confirming.harness.recording.retained_graphs import unsaved

# Control "double": one in so many backwards; no micro-batch has that many losses.
_DOUBLED = 5
# Replaces an attribute while the recorder watches.
Patch = Callable[[Any, str, Any], None]


@contextmanager
def watching(recorder: Recorder) -> Generator[Recorder, None, None]:
    """Records the code that runs inside."""
    backward = torch.autograd.backward

    def recorded(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if recorder.busy:
            return backward(tensors, *args, **kwargs)
        starts = args[0] if args else kwargs.get("grad_tensors")
        tensors = recorder.rooted(tensors, starts)
        doubles = recorder.settings.sabotage == "double" and recorder.backwards % _DOUBLED == 1
        if doubles:
            # Control "double".
            tensors = tensors * 2 if isinstance(tensors, torch.Tensor) else [t * 2 for t in tensors]
        if recorder.settings.sabotage == "even":
            tensors = recorder.evened(tensors)
        recorder.before_backward(tensors)
        for part in recorder.notes.events[-1].get("contributions", ()) if doubles else ():
            part["doubled"] = True
        if recorder.settings.sabotage in ("free", "retain"):
            args = (*args[:1], recorder.settings.sabotage == "retain", *args[2:])
            recorder.retained.append(tensors if recorder.settings.sabotage == "retain" else None)
        result = backward(tensors, *args, **kwargs)
        recorder.spent()
        recorder.after_backward()
        return result

    with ExitStack() as stack:

        def patch(owner: Any, name: str, new: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, new))

        patch(torch.autograd, "backward", recorded)
        _watch(recorder, patch)
        if recorder.settings.graphs:
            stack.enter_context(saved_tensors_hooks(recorder.graphs.save, unsaved))
        handles: list[RemovableHandle] = [
            register_optimizer_step_pre_hook(recorder.before_step),
            register_optimizer_step_post_hook(recorder.after_step),
        ]
        stack.callback(lambda: [h.remove() for h in handles])
        stack.enter_context(recorder)
        yield recorder


def _watch(recorder: Recorder, patch: Patch) -> None:
    """Patches the torch functions that change gradients."""
    # Imported modules of the user may hold the functions by name.
    owners = sys.modules.values() if recorder.settings.as_is else (nn.utils, nn.utils.clip_grad)
    clips = {id(clip): clip for clip in _CLIPS.values()}
    attributes = ((o, n, id(v)) for o in owners for n, v in getattr(o, "__dict__", {}).items())
    for owner, name, value in [one for one in attributes if one[2] in clips]:
        patch(owner, name, _clipping(recorder, clips[value]))
    _watch_clears(recorder, patch)
    _watch_optimizers(recorder, patch)
    _watch_scheduler(recorder, patch)
    _watch_scaler(recorder, patch)


def _clipping(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    by_value = "value" in original.__name__
    # Clipping by value is measured as clipping by norm: only time and parameters matter.
    norm_clip = _CLIPS["clip_grad_norm_"]

    def clip(parameters: Any, limit: Any = 1.0, *args: Any, **kwargs: Any) -> Any:
        if limit is None:
            # The run clips where the guard of an unset threshold does not.
            limit = 1.0
        if math.isinf(float(limit)) and not recorder.settings.as_is:
            # Only the norm is requested.
            return original(parameters, limit, *args, **kwargs)
        params = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        with_gradient = {id(p) for p in recorder.parameters() if p.grad is not None}
        clipped = recorder.positions(params)
        with recorder.quiet():
            if recorder.settings.as_is:
                limit = kwargs.pop("max_norm", kwargs.pop("clip_value", limit))
                usual = kwargs.get("norm_type", args[0] if args else 2.0) == 2
                comparable = usual and not by_value and {id(p) for p in params} >= with_gradient
                recorder.note(
                    "clip", parameters=clipped, threshold=float(limit), comparable=comparable
                )
                return original(params, limit, *args, **kwargs)
            pressure = recorder.settings.pressure
            recorder.note("clip", parameters=clipped, threshold=pressure or 0.0)
            threshold = pressure * _times(limit) if pressure is not None else float("inf")
            kept = {k: v for k, v in kwargs.items() if k == "norm_type"}
            return norm_clip(params, threshold, **kept)

    return clip


def _times(limit: Any) -> float:
    """The scale by which a threshold was multiplied to fit scaled gradients."""
    return limit.scale if isinstance(limit, Scaled) else 1.0


# A gradient of such elements is above any threshold.
_LARGE = 2.0**60


def replaced(recorder: Recorder, clip: Callable[[], Any]) -> tuple[Any, bool]:
    """Calls a project-defined clipping function with huge gradients, then clips the reduced ones by torch's function.

    Returns its result, with the norm replaced, and whether it clips at all.
    """
    params = [p for p in recorder.parameters() if p.grad is not None]
    grads = recorder.gradients()
    kept = [grad.clone() for grad in grads]
    for grad in grads:
        grad.fill_(_LARGE)
    smaller: list[torch.Tensor] = []
    try:
        result = clip()
        smaller = [p for p in params if p.grad is not None and float(p.grad.abs().max()) < _LARGE]
    finally:
        for p, grad, before in zip(params, grads, kept, strict=True):
            p.grad = grad.copy_(before)
    if smaller:
        norm = nn.utils.clip_grad_norm_(smaller, 1.0)
        result = norm if isinstance(result, float | torch.Tensor) else result
    return result, bool(smaller)


def _watch_clears(recorder: Recorder, patch: Patch) -> None:
    def watched(clear: Callable[..., Any]) -> Callable[..., Any]:
        # Accelerate inspects the signature.
        @functools.wraps(clear)
        def clearing(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = clear(self, *args, **kwargs)
            if not recorder.busy:
                recorder.note("clear", parameters=recorder.positions(parameters_of(self)))
                recorder.has_gradients = recorder.any_gradient()
            return result

        return clearing

    for owner in (torch.optim.Optimizer, nn.Module):
        patch(owner, "zero_grad", watched(owner.zero_grad))


def _watch_optimizers(recorder: Recorder, patch: Patch) -> None:
    start = torch.optim.Optimizer.__init__

    def building(self: Any, params: Any, *args: Any, **kwargs: Any) -> None:
        start(
            self, params if recorder.settings.as_is else _trained(recorder, params), *args, **kwargs
        )
        recorder.optimizers.append(self)

    patch(torch.optim.Optimizer, "__init__", building)


def _trained(recorder: Recorder, parameters: Any) -> Any:
    """The parameters of an optimizer, each once; all free ones where the source selects by unknown names."""
    groups: list[Any] = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    taken: set[int] = set()
    for group in groups:
        if isinstance(group, dict):
            members: Any = group["params"]
            members = [members] if isinstance(members, torch.Tensor) else list(members)
            group["params"] = [p for p in members if id(p) not in taken]
            taken |= set(map(id, members))
    if any(not isinstance(group, dict) or group["params"] for group in groups):
        return groups
    others = {id(p) for one in recorder.optimizers for p in parameters_of(one)}
    free = [p for p in recorder.parameters() if id(p) not in others]
    return [{**(groups[0] if groups else {}), "params": free}, *groups[1:]] if free else groups


def _watch_scheduler(recorder: Recorder, patch: Patch) -> None:
    scheduler = torch.optim.lr_scheduler.LRScheduler
    start, step = scheduler.__init__, scheduler.step

    def building(self: Any, *args: Any, **kwargs: Any) -> None:
        recorder.building += 1
        try:
            start(self, *args, **kwargs)
        finally:
            recorder.building -= 1
        recorder.schedulers.append(self)

    def stepping(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not recorder.building:
            recorder.note("schedule")
        return step(self, *args, **kwargs)

    patch(scheduler, "__init__", building)
    patch(scheduler, "step", stepping)


def _watch_scaler(recorder: Recorder, patch: Patch) -> None:
    scaler = torch.amp.GradScaler
    scale, update, unscale = scaler.scale, scaler.update, scaler.unscale_
    get_scale = scaler.get_scale

    def scaled(self: Any, outputs: Any) -> Any:
        if isinstance(outputs, Stub):
            # GradScaler would iterate over the stub.
            return outputs
        result = scale(self, outputs)
        recorder.scale = float(self.get_scale()) if self.is_enabled() else 1.0
        recorder.notes.initial_scale = recorder.notes.initial_scale or recorder.scale
        return result

    def updated(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.note("update")
        if recorder.settings.sabotage == "keep":
            return None
        result = update(self, *args, **kwargs)
        if self.is_enabled():
            recorder.notes.scales.append(float(self.get_scale()))
        return result

    def scale_read(self: Any) -> float:
        return Scaled(get_scale(self))

    def unscaled(self: Any, optimizer: Any) -> Any:
        recorder.note("unscale")
        return unscale(self, optimizer)

    patch(scaler, "get_scale", scale_read)
    patch(scaler, "scale", scaled)
    patch(scaler, "update", updated)
    patch(scaler, "unscale_", unscaled)


_CLIPS: dict[str, Callable[..., Any]] = {
    name: getattr(nn.utils, name)
    for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")
    if hasattr(nn.utils, name)
}
