"""Samples elements of an optimizer's parameters: incoming gradients, and the contents of `.grad`."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch


class Sample:
    """The sampled elements of one optimizer's parameters."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: int, elements: int) -> None:
        self._most = parameters
        self._elements = elements
        self.parameters: list[torch.Tensor] = []
        self._flows: list[torch.Tensor | None] = []
        self._handles: list[Any] = []
        self._sizes: list[int] = []
        self.sharded = False
        # Gradients are outside of `.grad`, and known only during a step.
        self.partitioned = False
        self.full: torch.Tensor | None = None
        self.settle(optimizer)

    def settle(self, optimizer: torch.optim.Optimizer) -> None:
        """Selects parameters, again when the optimizer's parameters have changed."""
        if self.partitioned:
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        known = {id(p) for p in parameters}
        if self.parameters and all(id(p) in known for p in self.parameters):
            for at, p in enumerate(self.parameters):
                self._hook(at, p)
            return
        trained = [p for p in parameters if p.requires_grad and _number(p)]
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
        """Removes the hooks; `settle` sets them again."""
        for handle in filter(None, self._handles):
            handle.remove()
        self._handles = [None] * len(self._handles)
        self.incoming()

    def _hook(self, at: int, parameter: torch.Tensor) -> None:
        """Hooks the gradient of a parameter, once it is trainable."""
        if self._handles[at] is not None or not parameter.requires_grad or self.sharded:
            return
        # The hook must not keep the sample alive.
        reference = weakref.ref(self)

        def flowing(gradient: torch.Tensor) -> None:
            sample = reference()
            if sample is not None and not gradient.is_sparse and not capturing():
                taken = sample.take(gradient)
                before = sample._flows[at]
                sample._flows[at] = taken if before is None else before + taken

        # Saved models must not include the hook.
        flowing.__torch_unserializable__ = True  # pyright: ignore[reportFunctionMemberAccess]
        self._handles[at] = parameter.register_hook(flowing)

    def take(self, gradient: torch.Tensor) -> torch.Tensor:
        """A copy of the sampled elements of a gradient."""
        local: torch.Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient  # pyright: ignore[reportAttributeAccessIssue]
        flat = local.detach().reshape(-1)
        step = max(flat.numel() // self._elements, 1)
        kept = flat[::step][: self._elements]
        return kept.to(torch.float64 if kept.dtype == torch.float64 else torch.float32, copy=True)

    def incoming(self) -> torch.Tensor | None:
        """The gradient that has arrived since the last call, None for none."""
        flows = self._flows
        self._flows = [None for _ in flows]
        return self._joined(flows)

    def gradients(self) -> torch.Tensor | None:
        """The contents of `.grad`, None for none."""
        return self.full if self.partitioned else self.of(p.grad for p in self.parameters)

    def weights(self) -> torch.Tensor | None:
        """The values of the parameters, None where they are partitioned."""
        return None if self.partitioned or self.sharded else self.of(self.parameters)

    def of(self, gradients: Iterable[torch.Tensor | None]) -> torch.Tensor | None:
        """The sampled elements of all gradients, None for none."""
        return self._joined([None if g is None or g.is_sparse else self.take(g) for g in gradients])

    def _joined(self, parts: list[torch.Tensor | None]) -> torch.Tensor | None:
        present = [part for part in parts if part is not None]
        if not present:
            return None
        devices = {part.device for part in present}
        # Avoids a synchronization with the GPU: the values are copied when the events are written.
        device = (
            present[0].device if len(devices) == 1 and present[0].is_cuda else torch.device("cpu")
        )
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
        """Whether the gradients have the precision of float32."""
        return all(p.dtype in (torch.float32, torch.float64) for p in self.parameters)

    @property
    def storages(self) -> set[int]:
        """The storages of the sampled gradients."""
        grads = [p.grad for p in self.parameters]
        return {
            g.untyped_storage().data_ptr()
            for g in grads
            if g is not None and not g.is_sparse and not hasattr(g, "to_local")
        }


def capturing() -> bool:
    """Whether a CUDA graph is being captured, in which nothing can be copied to the CPU."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _number(parameter: torch.Tensor) -> int:
    """The number of elements of a parameter; ZeRO 3 empties it and stores the number."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))
