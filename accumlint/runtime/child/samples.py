"""Some elements of some parameters of an optimizer: what flows into them, and what lies in their `.grad`."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# torch's own annotations are partial.

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch


class Sample:
    """The elements of one optimizer's parameters that are noted."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: int, elements: int) -> None:
        self._most = parameters
        self._elements = elements
        self.parameters: list[torch.Tensor] = []
        self._flows: list[torch.Tensor | None] = []
        self._handles: list[Any] = []
        self._sizes: list[int] = []
        self.sharded = False
        # Kept elsewhere than in `.grad`, and known in the moment of a step only.
        self.apart = False
        self.full: torch.Tensor | None = None
        self.settle(optimizer)

    def settle(self, optimizer: torch.optim.Optimizer) -> None:
        """Chooses the parameters, anew where those chosen are no longer the optimizer's."""
        if self.apart:
            return
        held = [p for group in optimizer.param_groups for p in group["params"]]
        known = {id(p) for p in held}
        if self.parameters and all(id(p) in known for p in self.parameters):
            for at, p in enumerate(self.parameters):
                self._hook(at, p)
            return
        trained = [p for p in held if p.requires_grad and _number(p)]
        count = min(self._most, len(trained))
        chosen = [trained[i * (len(trained) - 1) // max(count - 1, 1)] for i in range(count)]
        for handle in filter(None, self._handles):
            handle.remove()
        self.parameters = chosen
        self._sizes = [self._size(p) for p in chosen]
        self._flows = [None] * count
        self._handles = [None] * count
        self.sharded = any(hasattr(p, "device_mesh") for p in chosen)
        for at, p in enumerate(chosen):
            self._hook(at, p)

    def release(self) -> None:
        """Notes nothing any more."""
        for handle in filter(None, self._handles):
            handle.remove()

    def _hook(self, at: int, parameter: torch.Tensor) -> None:
        """Has what flows into a parameter noted, as soon as it takes part in training."""
        if self._handles[at] is not None or not parameter.requires_grad or self.sharded:
            return
        # A parameter outlives no sample by its hook.
        mine = weakref.ref(self)

        def flowing(gradient: torch.Tensor) -> None:
            sample = mine()
            if sample is not None and not gradient.is_sparse and not capturing():
                taken = sample.take(gradient)
                before = sample._flows[at]
                sample._flows[at] = taken if before is None else before + taken

        # A saved model says nothing about it.
        flowing.__torch_unserializable__ = True  # pyright: ignore[reportFunctionMemberAccess]
        self._handles[at] = parameter.register_hook(flowing)

    def take(self, gradient: torch.Tensor) -> torch.Tensor:
        """The elements of a gradient that are noted, as a copy."""
        local: torch.Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient  # pyright: ignore[reportAttributeAccessIssue]
        flat = local.detach().reshape(-1)
        step = max(flat.numel() // self._elements, 1)
        kept = flat[::step][: self._elements]
        return kept.to(torch.float64 if kept.dtype == torch.float64 else torch.float32, copy=True)

    def flowed(self) -> torch.Tensor | None:
        """What has flowed in since this was last asked, None where nothing has."""
        flows = self._flows
        self._flows = [None for _ in flows]
        return self._joined(flows)

    def lying(self) -> torch.Tensor | None:
        """What lies in `.grad`, None where nothing does."""
        return self.full if self.apart else self.of(p.grad for p in self.parameters)

    def weights(self) -> torch.Tensor | None:
        """What the parameters themselves hold, None where they are in parts."""
        return None if self.apart or self.sharded else self.of(self.parameters)

    def of(self, gradients: Iterable[torch.Tensor | None]) -> torch.Tensor | None:
        """What is noted of the gradients of all parameters, None where there are none."""
        return self._joined([None if g is None or g.is_sparse else self.take(g) for g in gradients])

    def _joined(self, parts: list[torch.Tensor | None]) -> torch.Tensor | None:
        held = [part for part in parts if part is not None]
        if not held:
            return None
        devices = {part.device for part in held}
        # The CPU waits for no GPU here: what stays there is copied when the events are written.
        device = held[0].device if len(devices) == 1 and held[0].is_cuda else torch.device("cpu")
        filled = [
            torch.zeros(size, device=device) if part is None else part.to(device)
            for part, size in zip(parts, self._sizes, strict=True)
        ]
        return torch.cat(filled).double()

    def _size(self, parameter: torch.Tensor) -> int:
        local: torch.Tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter  # pyright: ignore[reportAttributeAccessIssue]
        number = _number(local)
        return len(range(0, number, max(number // self._elements, 1))[: self._elements])

    @property
    def precise(self) -> bool:
        """Whether the gradients hold as many digits as float32 does."""
        return all(p.dtype in (torch.float32, torch.float64) for p in self.parameters)

    @property
    def storages(self) -> set[int]:
        """Where the gradients lie that are noted."""
        grads = [p.grad for p in self.parameters]
        return {
            g.untyped_storage().data_ptr()
            for g in grads
            if g is not None and not g.is_sparse and not hasattr(g, "to_local")
        }


def capturing() -> bool:
    """Whether what runs now is recorded as a CUDA graph, where nothing can be copied to the CPU."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _number(parameter: torch.Tensor) -> int:
    """The elements of a parameter; ZeRO 3 leaves none in it, and says how many there were."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))
