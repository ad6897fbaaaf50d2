"""Observes optimizers: steps, clears, clipping, schedules."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from accumlint.runtime.child import totals
from accumlint.runtime.child.backwards import GRAPHS
from accumlint.runtime.child.recorder import Event, Recorder


def observe(recorder: Recorder) -> None:
    """Observes optimizers, schedulers and clipping."""
    _observe_building(recorder)
    _observe_steps(recorder)
    _observe_clears(recorder)
    _observe_schedules(recorder)
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        clip = _clipping(recorder, getattr(nn.utils, name))
        recorder.patches.put(nn.utils, name, clip, everywhere=True)


def _observe_building(recorder: Recorder) -> None:
    original = Optimizer.__init__

    @functools.wraps(original)
    def building(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if recorder.watches:
            recorder.number(self)

    recorder.patches.put(Optimizer, "__init__", building)


def _observe_steps(recorder: Recorder) -> None:
    if recorder.step_hooks:
        return
    open_: list[Event] = []

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if recorder.watches:
            open_.append(begun(recorder, optimizer))

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if recorder.rested is not None and not recorder.active:
            recorder.rested(optimizer)
        elif open_ and recorder.watches:
            ended(recorder, open_.pop())

    recorder.step_hooks += (
        register_optimizer_step_pre_hook(before).remove,
        register_optimizer_step_post_hook(after).remove,
    )


def begun(recorder: Recorder, optimizer: Any) -> Event:
    """Records a step that is about to run, with the gradients that it applies."""
    number = recorder.number(optimizer)
    event = recorder.note("step", optimizer=number, backwards=recorder.backwards)
    _applied(recorder, event)
    scale = getattr(optimizer, "grad_scale", None)
    event["scale"] = scale if isinstance(scale, torch.Tensor) else None
    event |= {"source": recorder.trained, "fetched": recorder.fetched.get(recorder.trained, 0)}
    event["rate"] = float(optimizer.param_groups[0].get("lr", 0.0))
    return event


def ended(recorder: Recorder, event: Event) -> None:
    """Completes the event of a step, with the number of live graphs."""
    if recorder.backwards > event["backwards"]:
        # The step ran a closure with a backward: its gradients are only known now.
        _after_closure(recorder.events, event)
        _applied(recorder, event)
    event["held"] = GRAPHS.count()
    if event["held"] > 1:
        event["totals"] = totals.found()
    recorder.stepped(event["optimizer"])


def _applied(recorder: Recorder, event: Event) -> None:
    with recorder.paused():
        if sample := recorder.sample(event):
            event |= {"applied": sample.gradients(), "weights": sample.weights()}


def _after_closure(events: list[Event], step: Event) -> None:
    """Moves a step behind the last run of its closure; earlier runs were not applied."""
    at = next((at for at, event in enumerate(events) if event is step), None)
    if at is None:
        # Already written.
        return
    within = events[at + 1 :]
    last = max((at for at, event in enumerate(within) if event["kind"] == "clear"), default=0)
    events[at:] = [*within[last:], step]


def _observe_clears(recorder: Recorder) -> None:
    def observed(original: Any) -> Any:
        @functools.wraps(original)
        def clear(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not recorder.watches or recorder.backward is not None:
                return original(self, *args, **kwargs)
            with recorder.paused():
                result = original(self, *args, **kwargs)
            recorder.note("clear", gradients=_gradients(recorder, self))
            return result

        return clear

    for owner in (Optimizer, nn.Module):
        recorder.patches.put(owner, "zero_grad", observed(owner.zero_grad))


def _gradients(recorder: Recorder, owner: Any) -> dict[str, Any]:
    """The sampled gradients of a model or an optimizer."""
    groups = (
        [{"params": owner.parameters()}] if isinstance(owner, nn.Module) else owner.param_groups
    )
    with recorder.paused():
        ids = {id(p) for group in groups for p in group["params"]}
        return {str(number): sample.gradients() for number, sample in recorder.touching(ids)}


def _clipping(recorder: Recorder, original: Any) -> Any:
    by_value = "value" in original.__name__

    @functools.wraps(original)
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if not recorder.watches:
            return original(parameters, *args, **kwargs)
        params = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        with recorder.paused():
            touched = [*recorder.touching({id(p) for p in params})]
            before = {str(number): sample.gradients() for number, sample in touched}
            norm = original(params, *args, **kwargs)
            after = {str(number): sample.gradients() for number, sample in touched}
        limit = kwargs.get("clip_value" if by_value else "max_norm", args[0] if args else math.inf)
        recorder.note(
            "clip", by_value=by_value, limit=float(limit), before=before, after=after,
            norm=None if by_value or not isinstance(norm, torch.Tensor) or hasattr(norm, "to_local") else norm.detach(),
        )  # fmt: skip
        return norm

    return clip


# Attributes with a schedule's length.
_LENGTHS = ("total_steps", "T_max", "total_iters")


def _observe_schedules(recorder: Recorder) -> None:
    scheduler = lr_scheduler.LRScheduler
    building = scheduler.__init__
    depth = [0]

    @functools.wraps(building)
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        depth[0] += 1
        try:
            building(self, *args, **kwargs)
        finally:
            depth[0] -= 1

    def observed(original: Any) -> Any:
        @functools.wraps(original)
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if depth[0] == 0 and recorder.watches:
                optimizer = getattr(self, "optimizer", None)
                known = [
                    at for at, known_ in enumerate(recorder.optimizers) if known_() is optimizer
                ]
                lengths = [getattr(self, name, None) for name in _LENGTHS]
                recorder.note(
                    "schedule", optimizer=known[0] if known else None, name=type(self).__name__,
                    length=next((int(n) for n in lengths if isinstance(n, int)), 0),
                )  # fmt: skip
            depth[0] += 1
            try:
                return original(self, *args, **kwargs)
            finally:
                depth[0] -= 1

        return step

    recorder.patches.put(scheduler, "__init__", build)
    kinds = [kind for kind in vars(lr_scheduler).values() if isinstance(kind, type)]
    for kind in kinds:
        if (
            issubclass(kind, scheduler)
            and "step" in vars(kind)
            and kind is not lr_scheduler.ReduceLROnPlateau
        ):
            recorder.patches.put(kind, "step", observed(kind.step))
