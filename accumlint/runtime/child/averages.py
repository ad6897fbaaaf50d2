"""Observes running averages of weights: torch's own and those of known packages."""

from __future__ import annotations

import functools
from typing import Any

from torch.optim import swa_utils

from accumlint.runtime.child.current import recorder as current
from accumlint.runtime.child.recorder import Recorder

# The averages of other packages: by module, the classes with the method that updates them.
_AVERAGES = {
    "diffusers.training_utils": {"EMAModel": "step"},
    "timm.utils.model_ema": {"ModelEma": "update", "ModelEmaV2": "update", "ModelEmaV3": "update"},
    "ema_pytorch.ema_pytorch": {"EMA": "update"},
    "torch_ema.ema": {"ExponentialMovingAverage": "update"},
}


def observe(recorder: Recorder) -> None:
    """Observes the updates of torch's averaged models."""
    _noted(recorder, swa_utils.AveragedModel, "update_parameters")


def observe_package(module: Any) -> None:
    """Observes the averages of another package."""
    recorder = current()
    for name, method in _AVERAGES[module.__name__].items():
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
