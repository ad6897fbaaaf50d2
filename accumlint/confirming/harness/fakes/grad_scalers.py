"""GradScalers that work without a GPU, and what is multiplied by the scale that they have."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# torch's own annotations are partial.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from accumlint.common.frozen import frozen
from accumlint.confirming.harness.fakes.stub import Stub


class Scaled(float):
    """The loss scale, or a number that was multiplied by it: a bound on gradients that still are, too."""

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
    """How GradScalers are set: the first scale, 0 to switch them off, and the updates after which it grows.

    `told` hears of one that the source switches off where the finding is about one that is on; without, it stays off.
    """

    scale: float
    interval: int
    told: Callable[[str, str], None] | None = None


def scalers(patch: Callable[..., Any], device: torch.device, scaling: Scaling) -> None:
    """GradScalers work without a GPU too, and as they are set."""
    real = torch.amp.GradScaler

    class Scaler(real):
        """A scaler that works without CUDA: the real one switches itself off there and hides every defect."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            enabled = kwargs.get("enabled", True)
            enabled = isinstance(enabled, Stub) or enabled
            for value in args:
                enabled = value if isinstance(value, bool) else enabled
            if not enabled and scaling.told is not None:
                scaling.told("GradScaler", "switched on, as the finding takes it to be")
                enabled = True
            growth = {k: v for k, v in kwargs.items() if k in ("growth_factor", "backoff_factor")}
            growth = {k: v for k, v in growth.items() if isinstance(v, float)}
            super().__init__(
                device.type, init_scale=scaling.scale or 1.0, growth_interval=scaling.interval,
                enabled=bool(enabled) and scaling.scale > 0, **growth,
            )  # fmt: skip

    patch(torch.amp, "GradScaler", Scaler)
    patch(torch.cuda.amp, "GradScaler", Scaler)
