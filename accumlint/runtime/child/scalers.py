"""Observes the GradScaler."""

from __future__ import annotations

import functools
from typing import Any

import torch

from accumlint.runtime.child.recorder import Event, Recorder


def observe(recorder: Recorder) -> None:
    """Observes the GradScaler, including the exceptions that it raises."""
    scaler = torch.amp.GradScaler

    def observed(name: str, original: Any) -> Any:
        @functools.wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not recorder.watches or not self.is_enabled():
                return original(self, *args, **kwargs)
            optimizer = args[0] if args and isinstance(args[0], torch.optim.Optimizer) else None
            event = recorder.note(f"scaler {name}", scale=self.get_scale())
            if optimizer is not None:
                event["optimizer"] = recorder.number(optimizer)
                _note_gradients(recorder, event, "before")
            before = sum(recorder.updates.values())
            try:
                result = original(self, *args, **kwargs)
            except (RuntimeError, AssertionError, ValueError) as error:
                event["raised"] = f"{type(error).__name__}: {error}".split("\n")[0][:300]
                raise
            if optimizer is not None:
                _note_gradients(recorder, event, "after")
            if name == "step":
                event["stepped"] = sum(recorder.updates.values()) > before
                # A skipped step ends a window as well.
                recorder.note(
                    "scaler stepped", optimizer=event.get("optimizer"), stepped=event["stepped"]
                )
            if name == "update":
                event["then"] = self.get_scale()
            return result

        return call

    for name, attribute in (("unscale", "unscale_"), ("step", "step"), ("update", "update")):
        recorder.patches.put(scaler, attribute, observed(name, getattr(scaler, attribute)))
    original = scaler.scale

    @functools.wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        if recorder.watches and self.is_enabled():
            recorder.ranks["scaled"] = self.get_scale()
        return original(self, outputs)

    recorder.patches.put(scaler, "scale", scale)


def _note_gradients(recorder: Recorder, event: Event, when: str) -> None:
    with recorder.paused():
        if sample := recorder.sample(event):
            event[when] = {str(event["optimizer"]): sample.gradients()}
