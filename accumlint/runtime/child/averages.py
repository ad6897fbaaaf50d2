"""Observes running averages of weights: torch's own and those of known packages."""

from __future__ import annotations

import functools
from typing import Any

from torch.optim import swa_utils

from accumlint.runtime.child.current import recorder as current
from accumlint.runtime.child.recorder import Recorder


def observe(recorder: Recorder) -> None:
    """Observes the updates of torch's averaged models."""
    _noted(recorder, swa_utils.AveragedModel, "update_parameters")


def observe_diffusers(module: Any) -> None:
    """Observes the average of diffusers."""
    _of(module, {"EMAModel": "step"})


def observe_timm(module: Any) -> None:
    """Observes the averages of timm."""
    _of(module, {"ModelEma": "update", "ModelEmaV2": "update", "ModelEmaV3": "update"})


def observe_ema_pytorch(module: Any) -> None:
    """Observes the average of ema_pytorch."""
    _of(module, {"EMA": "update"})


def observe_torch_ema(module: Any) -> None:
    """Observes the average of torch_ema."""
    _of(module, {"ExponentialMovingAverage": "update"})


def _of(module: Any, methods: dict[str, str]) -> None:
    recorder = current()
    for name, method in methods.items():
        kind = getattr(module, name, None)
        if recorder is not None and kind is not None:
            _noted(recorder, kind, method)


def _noted(recorder: Recorder, kind: Any, method: str) -> None:
    original = getattr(kind, method)

    @functools.wraps(original)
    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.watches:
            recorder.note("average", owner=id(self), name=type(self).__name__)
        with recorder.paused():
            return original(self, *args, **kwargs)

    recorder.patches.put(kind, method, update)
