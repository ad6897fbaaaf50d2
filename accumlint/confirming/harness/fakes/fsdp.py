"""FSDP's contract on unsharded parameters: when gradients are reduced over ranks.

FSDP decides in the backward, unlike DDP, which decides in the forward; unreduced gradients join the next reduction.
"""
# pyright: reportPrivateUsage=false
# Private attributes of a stub stay out of the way of the user's names.

from __future__ import annotations

import types
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from accumlint.confirming.harness.fakes.networks import Wrapper
from accumlint.confirming.harness.fakes.stub import Stub
from accumlint.confirming.harness.process_group import world_size
from accumlint.confirming.harness.recording.recorder import Recorder

MODULES = ("torch.distributed.fsdp", "torch.distributed._composable.fsdp")


class Reducing:
    """Averages the gradients of a module's parameters over ranks while it is `on`; else accumulates them locally."""

    def __init__(self, module: nn.Module, recorder: Recorder) -> None:
        self.on = True
        self.recorder = recorder
        self.unreduced: dict[int, torch.Tensor] = {}
        if not any(p.requires_grad for p in module.parameters()):
            # The trainable parameters of an adapter are absent.
            module.requires_grad_(True)
        # Submodules that were sharded before have their own reduction.
        parameters = [
            p for p in module.parameters() if p.requires_grad and not hasattr(p, "reducing")
        ]
        for number, parameter in enumerate(parameters):
            # accumlint's mark on a parameter.
            parameter.reducing = self  # pyright: ignore[reportAttributeAccessIssue]
            parameter.register_hook(partial(self._arriving, number))

    def _arriving(self, number: int, grad: torch.Tensor) -> torch.Tensor | None:
        """The backward hook of a parameter."""
        if self.recorder.busy:
            return None
        grad = grad + self.unreduced.pop(number, 0.0)
        # Controls reduce in every backward, or in none.
        control = self.recorder.settings.sabotage
        if control == "mute" or (not self.on and control != "sync"):
            self.unreduced[number] = grad
            return torch.zeros_like(grad)
        if dist.is_initialized():
            if number == 0:
                self.recorder.note("reduce")
            dist.all_reduce(grad)
            grad = grad / world_size()
        return grad


def contract(recorder: Recorder) -> dict[str, Any]:
    """Fakes for `FullyShardedDataParallel` and `fully_shard`."""

    class FullyShardedDataParallel(Wrapper):
        # They save and load only.
        state_dict_type = optim_state_dict = staticmethod(lambda *_, **__: nullcontext())
        optim_state_dict_to_load = state_dict_type

        def __init__(self, module: nn.Module, *_: Any, **__: Any) -> None:
            super().__init__(module)
            self.reducing = Reducing(module, recorder)

        @contextmanager
        def no_sync(self) -> Generator[None, None, None]:
            before, self.reducing.on = self.reducing.on, False
            try:
                yield
            finally:
                self.reducing.on = before

        def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Any:
            return nn.utils.clip_grad_norm_(self.parameters(), max_norm, norm_type)

    def fully_shard(module: Any, *_: Any, **__: Any) -> Any:
        if not isinstance(module, nn.Module):
            return module
        reducing = Reducing(module, recorder)

        def switch(on: Any, **_: Any) -> None:
            if isinstance(on, Stub):
                recorder.notes.opaque_calls.append(on._text)
            reducing.on = bool(on)

        for name in ("set_requires_gradient_sync", "set_requires_all_reduce"):
            object.__setattr__(module, name, switch)
        for name in ("set_is_last_backward", "reshard", "unshard", "set_reshard_after_backward"):
            object.__setattr__(module, name, lambda *_, **__: None)
        return module

    return {"FullyShardedDataParallel": FullyShardedDataParallel, "fully_shard": fully_shard}


def module(path: str, names: dict[str, Any], other: Callable[[str], Any]) -> types.ModuleType:
    """A replacement for a module of torch; `other` resolves names that it does not define."""
    made = types.ModuleType(path)
    # Libraries query its file.
    made.__dict__.update(names, __getattr__=other, __path__=[], __file__="<fake>")
    return made
