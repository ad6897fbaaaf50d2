"""GradScalers that work without a GPU, and numbers that carry the loss scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from accumlint.common.frozen import frozen
from accumlint.confirming.harness.fakes.stub import Stub


class Scaled(float):
    """The loss scale or a multiple of it, such as a clipping threshold for gradients that are still scaled."""

    scale: float

    def __new__(cls, value: float, scale: float = 0.0) -> Scaled:
        made = super().__new__(cls, value)
        made.scale = scale or value
        return made

    def __mul__(self, other: Any) -> Any:
        found = float(self) * other
        return Scaled(found, self.scale) if type(found) is float else found

    __rmul__ = __mul__


@frozen
class Scaling:
    """The initial scale (0 for none), the growth interval, and `note_fake` where a disabled scaler is to be enabled."""

    scale: float
    interval: int
    note_fake: Callable[[str, str], None] | None = None


def scalers(patch: Callable[..., Any], device: torch.device, scaling: Scaling) -> None:
    """Patches GradScaler to work without a GPU, with the scale of the pass."""
    real = torch.amp.GradScaler

    class Scaler(real):
        """A GradScaler for any device: the original disables itself without CUDA and hides every defect."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            enabled = kwargs.get("enabled", True)
            enabled = isinstance(enabled, Stub) or enabled
            for value in args:
                enabled = value if isinstance(value, bool) else enabled
            if not enabled and scaling.note_fake is not None:
                scaling.note_fake("GradScaler", "switched on, as the finding takes it to be")
                enabled = True
            growth = {k: v for k, v in kwargs.items() if k in ("growth_factor", "backoff_factor")}
            growth = {k: v for k, v in growth.items() if isinstance(v, float)}
            super().__init__(
                device.type, init_scale=scaling.scale or 1.0, growth_interval=scaling.interval,
                enabled=bool(enabled) and scaling.scale > 0, **growth,
            )  # fmt: skip

    patch(torch.amp, "GradScaler", Scaler)
    patch(torch.cuda.amp, "GradScaler", Scaler)
