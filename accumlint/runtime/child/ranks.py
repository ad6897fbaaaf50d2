"""Observes communication between ranks: DDP, FSDP2, manual all-reduces."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from accumlint.runtime.child.current import recorder as current
from accumlint.runtime.child.frames import user_location
from accumlint.runtime.child.recorder import Recorder


def observe(recorder: Recorder) -> None:
    """Observes DDP and all-reduces."""
    if not distributed.is_available():
        return
    _observe_ddp(recorder)
    reduce = _reducing(recorder, distributed.all_reduce)
    recorder.patches.put(distributed, "all_reduce", reduce, everywhere=True)


def _observe_ddp(recorder: Recorder) -> None:
    wrapper = DistributedDataParallel
    building, forward, no_sync = wrapper.__init__, wrapper.forward, wrapper.no_sync

    @functools.wraps(building)
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        building(self, *args, **kwargs)
        recorder.ranks["ddp"] = recorder.ranks.get("ddp", 0) + 1
        recorder.ranks["static"] = bool(getattr(self, "static_graph", False))

    @functools.wraps(forward)
    def forwarding(self: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.watches and torch.is_grad_enabled():
            recorder.forwards.append(bool(self.require_backward_grad_sync))
        return forward(self, *args, **kwargs)

    @functools.wraps(no_sync)
    @contextmanager
    def without(self: Any) -> Any:
        place = user_location()
        recorder.ranks["no_sync"] = {"file": place.file, "line": place.line}
        before, recorder.ranks["inside"] = recorder.ranks.get("inside", False), True
        try:
            with no_sync(self):
                yield
        finally:
            recorder.ranks["inside"] = before

    for name, observed in (("__init__", build), ("forward", forwarding), ("no_sync", without)):
        recorder.patches.put(wrapper, name, observed)


def _reducing(recorder: Recorder, original: Any) -> Any:
    @functools.wraps(original)
    def all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.watches and isinstance(tensor, torch.Tensor):
            if tensor.requires_grad and tensor.grad_fn is not None:
                recorder.note("reduce", what="loss")
            elif not hasattr(tensor, "to_local"):
                with recorder.paused():
                    storage = tensor.untyped_storage().data_ptr()
                    reduced = [n for n, s in recorder.sampled() if storage in s.storages]
                for number in reduced:
                    recorder.note("reduce", what="gradient", optimizer=number)
        return original(tensor, *args, **kwargs)

    return all_reduce


def observe_fsdp(module: Any) -> None:
    """Observes the synchronization switches of FSDP2."""
    recorder = current()
    kind = getattr(module, "FSDPModule", None)
    if recorder is None or kind is None:
        return
    original = kind.set_requires_gradient_sync

    @functools.wraps(original)
    def switch(self: Any, requires_gradient_sync: bool, *args: Any, **kwargs: Any) -> Any:
        place = user_location()
        recorder.ranks["fsdp_sync"] = bool(requires_gradient_sync)
        recorder.ranks["fsdp_switch"] = {"file": place.file, "line": place.line}
        return original(self, requires_gradient_sync, *args, **kwargs)

    recorder.patches.put(kind, "set_requires_gradient_sync", switch)
