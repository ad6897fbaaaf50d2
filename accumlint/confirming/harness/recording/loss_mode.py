"""A torch function mode that evaluates losses elementwise and maps devices and shapes to those of the run."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from accumlint.confirming.harness.fakes import loss_functions
from accumlint.confirming.harness.fakes.batches import plain
from accumlint.confirming.harness.recording.loss_divisors import hinged
from accumlint.confirming.harness.recording.notes import Feed, Notes, Settings

_FLOATING = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_TORCH = re.compile(r"[/\\\\]torch[/\\\\]")
_NORMS = {torch.norm, torch.linalg.norm, torch.linalg.vector_norm}
_CASTS = {torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16, torch.Tensor.double}


@functools.cache
def _is_torch(file: str) -> bool:
    return bool(_TORCH.search(file))


class LossMode(TorchFunctionMode):
    """Intercepts torch functions and records those that compute a loss."""

    def __init__(self, data: Feed, settings: Settings) -> None:
        super().__init__()
        self.data = data
        self.settings = settings
        self.notes = Notes()
        self.losses: list[loss_functions.Loss] = []
        self.busy = False

    @contextmanager
    def quiet(self) -> Generator[None, None, None]:
        """Suspends recording for computations of the harness."""
        self.busy = True
        try:
            yield
        finally:
            self.busy = False

    def is_user_frame(self, frame: FrameType) -> bool:
        """True for a frame of the user's file."""
        return frame.f_code.co_filename == self.settings.file

    def line(self) -> int:
        """The innermost line of the user's file that is executing, 0 for none."""
        frame = sys._getframe(1)
        while frame is not None:
            if self.is_user_frame(frame):
                return frame.f_lineno
            frame = frame.f_back
        return 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # pytest hides this frame: the failure is in the user's code.
        __tracebackhide__ = True
        kwargs = kwargs or {}
        if self.busy:
            return func(*args, **kwargs)
        # Calls from inside torch stay unchanged.
        as_is = self.settings.as_is
        # `torch.norm` passes the requested precision on from inside torch.
        by_user = func in _NORMS or not _is_torch(sys._getframe(1).f_code.co_filename)
        if not as_is and by_user:
            kwargs = self._placed(kwargs) if kwargs else kwargs
            if func is torch.Tensor.to:
                args = (args[0], *(_moved(a, self.settings) for a in args[1:]))
            if func in _CASTS and args[0].dtype in _FLOATING:
                return args[0]
        if func is torch.Tensor.cuda and not as_is and self.settings.device.type != "cuda":
            return args[0]
        if func in loss_functions.ELEMENTWISE:
            return self._loss(func, args, kwargs)
        if func is torch.Tensor.__getitem__ and not as_is:
            args = (args[0], loss_functions.indexed(*args))
        if func in loss_functions.VIEWS and not as_is and not kwargs and len(args) > 1:
            args = (args[0], *loss_functions.viewed(args[0], args[1:]))
        if func in loss_functions.REDUCTIONS and args and not as_is:
            args, kwargs = loss_functions.flattened(args, kwargs)
        result = func(*args, **kwargs)
        if func in loss_functions.REDUCTIONS:
            self._reduced(func, args, kwargs, result)
        return result

    def _placed(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Keywords with the device and the precision of the run."""
        if "device" in kwargs and kwargs["device"] is not None:
            kwargs = {**kwargs, "device": self.settings.device}
        if kwargs.get("dtype") in _FLOATING:
            kwargs = {**kwargs, "dtype": self.settings.dtype}
        return kwargs

    def _loss(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        __tracebackhide__ = True
        if not self.settings.as_is:
            args = loss_functions.fitted(func, args)
        with self.quiet():
            result, elements, counted = loss_functions.evaluated(func, args, kwargs)
        self.notes.summed |= kwargs.get("reduction") == "sum"
        if elements.requires_grad:
            self.remember(
                loss_functions.Loss(
                    self.data.current, elements, counted, self.line(), False, result=result
                )
            )
        return result

    def _reduced(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Records a mean or sum as a loss where the micro-batch has no torch loss."""
        value = plain(args[0]) if args else None
        if not isinstance(value, torch.Tensor) or not isinstance(result, torch.Tensor):
            return
        if not value.requires_grad or value.numel() < 2 or result.dim():
            return
        if any(x.microbatch == self.data.current and not x.by_hand for x in self.losses):
            return
        # Masked elements are no targets; zero elements behind a hinge are.
        counted = (value.detach() != 0) | hinged(value.grad_fn, value)
        self.remember(loss_functions.Loss(self.data.current, value, counted, self.line(), True))

    def remember(self, loss: loss_functions.Loss) -> None:
        self.losses.append(loss)
        self.notes.losses += 1
        loss.number = self.notes.losses


def _moved(value: Any, settings: Settings) -> Any:
    if isinstance(value, str | torch.device | int) and not isinstance(value, bool):
        return settings.device
    if isinstance(value, torch.dtype) and value in _FLOATING:
        return settings.dtype
    return value
