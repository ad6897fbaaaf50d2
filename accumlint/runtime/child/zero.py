"""Observes DeepSpeed's ZeRO optimizers, whose gradients are partitioned outside of `.grad`."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

from accumlint.runtime.child import steps
from accumlint.runtime.child.current import recorder as current
from accumlint.runtime.child.recorder import Recorder


def observe(module: Any) -> None:
    """Observes the ZeRO optimizers of a DeepSpeed module."""
    recorder = current()
    for name, kind in list(vars(module).items()):
        if recorder is not None and name.startswith("DeepSpeedZeroOptimizer"):
            _observe(recorder, kind)


def _observe(recorder: Recorder, kind: Any) -> None:
    building, stepping = kind.__init__, kind.step

    @functools.wraps(building)
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        # The constructor steps the wrapped optimizer to initialize its state.
        with recorder.paused():
            building(self, *args, **kwargs)
        if recorder.watches:
            recorder.samples[recorder.number(self.optimizer)].partitioned = True

    @functools.wraps(stepping)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not recorder.watches:
            return stepping(self, *args, **kwargs)
        sample = recorder.samples[recorder.number(self.optimizer)]
        whole = import_module("deepspeed.utils").safe_get_full_grad
        with recorder.paused():
            sample.full = sample.of([whole(p) for p in sample.parameters])
            event = steps.begun(recorder, self.optimizer)
            result = stepping(self, *args, **kwargs)
            sample.full = None
        steps.ended(recorder, event)
        return result

    recorder.patches.put(kind, "__init__", build)
    recorder.patches.put(kind, "step", step)
