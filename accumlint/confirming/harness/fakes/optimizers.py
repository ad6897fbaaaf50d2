"""Fake optimizers, schedulers and GradScalers."""
# pyright: reportPrivateUsage=false, reportIncompatibleVariableOverride=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from accumlint.confirming.harness.fakes.loaders import unknown_attribute
from accumlint.confirming.harness.fakes.outputs import Output
from accumlint.confirming.harness.fakes.stub import UNKNOWN
from accumlint.confirming.harness.fakes.usual_settings import setting
from accumlint.confirming.harness.parameters import parameters_of


class _Group(dict[str, Any]):
    """A parameter group with the settings that the loop stores in it."""

    def __init__(self, group: dict[str, Any], unknown: Callable[[str], Any]) -> None:
        super().__init__(group)
        self._unknown = unknown

    def __missing__(self, name: str) -> Any:
        found = setting(name.lower())
        return self._unknown(f"group.{name}") if found is UNKNOWN else found


class Optimizer(torch.optim.SGD):
    """SGD, so that a step shows the unmodified gradient."""

    def __init__(self, params: Any, unknown: Callable[[str], Any]) -> None:
        self._unknown = unknown
        super().__init__(params, lr=0.05)
        self.param_groups = [_Group(group, unknown) for group in self.param_groups]

    def __getattr__(self, name: str) -> Any:
        return unknown_attribute(self, name, self._unknown)

    def __call__(self, *_: Any) -> Any:
        return self

    def step(self, closure: Any = None, scale: Any = 1.0, **_: Any) -> Any:
        """Steps; divides gradients by a `scale` argument, as Apex and FairScale do."""
        if isinstance(scale, int | float) and scale != 1.0:
            for p in parameters_of(self):
                if p.grad is not None:
                    p.grad.div_(scale)
        return super().step(closure)

    # Used as a list of optimizers, it contains itself.

    def __iter__(self) -> Iterator[Any]:
        return iter((self,))

    def __getitem__(self, _: int) -> Any:
        return self

    def __len__(self) -> int:
        return 1


class ScalingOptimizer(Optimizer):
    """Apex's `FP16_Optimizer`, which goes backward from a scaled loss and steps with unscaled gradients."""

    def backward(self, loss: Any, *_: Any, **__: Any) -> None:
        loss.backward()


class Scheduler(torch.optim.lr_scheduler.LambdaLR):
    """A schedule with a constant learning rate; called as a function of the step, it returns 1."""

    def __init__(self, optimizer: torch.optim.Optimizer, unknown: Callable[[str], Any]) -> None:
        self._unknown = unknown
        super().__init__(optimizer, lambda _: 1.0)

    def step(self, *_: Any, **__: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().step()

    step_update = step
    __iter__, __getitem__, __len__ = Optimizer.__iter__, Optimizer.__getitem__, Optimizer.__len__

    def __call__(self, _: Any = 0) -> float:
        return 1.0

    def __getattr__(self, name: str) -> Any:
        return unknown_attribute(self, name, self._unknown)


def scaler() -> torch.amp.GradScaler:
    """A GradScaler that can be called like timm's `NativeScaler`."""

    class Scaler(torch.amp.GradScaler):
        def __call__(
            self, loss: Any, optimizer: Any, clip_grad: Any = None, clip_mode: str = "norm", parameters: Any = None,
            create_graph: bool = False, need_update: bool = True, **more: Any,
        ) -> Any:  # fmt: skip
            loss = loss.loss if isinstance(loss, Output) else loss
            self.scale(loss).backward(create_graph=create_graph)
            # Swin Transformer's keyword.
            if not (need_update and more.get("update_grad", True)):
                return None
            norm = None
            if isinstance(clip_grad, int | float) and clip_grad:
                self.unscale_(optimizer)
                norm = torch.nn.utils.clip_grad_norm_(list(parameters), clip_grad)
            self.step(optimizer)
            self.update()
            return norm

    return Scaler("cuda")
