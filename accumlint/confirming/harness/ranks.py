"""Patches for distributed code: existing process groups, DDP with counted all-reduces, no spawned processes."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed import algorithms
from torch.distributed.algorithms import join
from torch.nn.parallel import DistributedDataParallel as Wrapped
from torch.nn.parallel import distributed

from accumlint.confirming.harness.binding import Binding
from accumlint.confirming.harness.fakes.batches import plain
from accumlint.confirming.harness.fakes.networks import Wrapper
from accumlint.confirming.harness.recording.recorder import Recorder


def processes(patch: Callable[..., Any], binding: Binding) -> None:
    """Replaces the processes and groups that the source would start by the existing ranks."""
    patch(torch.nn, "DataParallel", _Parallel)
    _spawned(patch, binding.data.rank)
    # All ranks have the same number of micro-batches.
    patch(join, "Join", lambda *_, **__: nullcontext())
    patch(algorithms, "Join", lambda *_, **__: nullcontext())
    # Outputs of fake networks contain tensors.
    found = distributed._find_tensors
    patch(distributed, "_find_tensors", lambda outputs: found(plain(outputs)))
    counted = _counted(binding)
    patch(torch.nn.parallel, "DistributedDataParallel", counted)
    patch(distributed, "DistributedDataParallel", counted)
    if not dist.is_initialized():
        return
    on_cpu = binding.data.device.type == "cpu"
    if on_cpu:
        patch(dist, "all_reduce", _averaging(dist.all_reduce, binding.recorder))
        patch(dist, "all_gather", _same_size_only(dist.all_gather))
    patch(dist, "init_process_group", lambda *_, **__: None)
    patch(dist, "destroy_process_group", lambda *_, **__: None)
    patch(dist, "new_group", lambda *_, **__: dist.group.WORLD)
    patch(dist, "get_backend", lambda *_, **__: "gloo" if on_cpu else "nccl")


def _counted(binding: Binding) -> type:
    """A DDP class that counts all-reduces."""
    recorder = binding.recorder

    class Counted(Wrapped):
        """DDP over the existing ranks, with counted all-reduces."""

        def __init__(self, module: torch.nn.Module, *_: Any, **kwargs: Any) -> None:
            binding.data.thaw(module)
            recorder.wraps += 1
            if next(module.parameters(), None) is None:
                # Its submodules are absent.
                module = binding.model("model")
            if not any(p.requires_grad for p in module.parameters()):
                # The loop freezes by names that fakes do not have.
                module.requires_grad_(True)
            views = kwargs.get("gradient_as_bucket_view") is True
            unused = binding.config.unused
            super().__init__(module, find_unused_parameters=unused, gradient_as_bucket_view=views)
            self.comm_hook: list[Any] = [dist.group.WORLD, None]

            def counted(state: Any, bucket: Any) -> Any:
                from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

                recorder.note("reduce")
                hook_state, hook = self.comm_hook
                return (hook or default_hooks.allreduce_hook)(hook_state, bucket)

            # DDP inspects the annotations, which are strings here.
            counted.__annotations__ = {}
            super().register_comm_hook(None, counted)

        def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
            self.comm_hook[:] = [state, hook]

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            if (control := recorder.settings.sabotage) in ("sync", "mute"):
                # Controls reduce in every backward, or in none.
                self.require_backward_grad_sync = control == "sync"
            return super().forward(*args, **kwargs)

    return Counted


class _Parallel(Wrapper):
    """DataParallel in one process."""


def _averaging(reduce: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    """An all_reduce with an average for gloo, without the autograd-visible division of torch's fallback."""

    def all_reduce(tensor: Any, op: Any = dist.ReduceOp.SUM, *args: Any, **kwargs: Any) -> Any:
        sizes = [p.numel() for p in recorder.parameters()]
        recorder.reduces |= bool(sizes) and tensor.numel() >= min(sizes)
        if op != dist.ReduceOp.AVG:
            return reduce(tensor, op, *args, **kwargs)
        work = reduce(tensor, dist.ReduceOp.SUM, *args, **kwargs)
        if work is not None:
            work.wait()
        tensor.data /= dist.get_world_size()
        return work

    return all_reduce


def _same_size_only(gather: Callable[..., Any]) -> Callable[..., Any]:
    """An all_gather that raises on different sizes, where gloo would end the process."""

    def all_gather(tensors: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        sizes = [torch.zeros(1, dtype=torch.long) for _ in range(dist.get_world_size())]
        gather(sizes, torch.tensor([tensor.numel()]))
        if len(set(map(int, sizes))) > 1:
            raise RuntimeError("ranks gather tensors of different sizes")
        return gather(tensors, tensor, *args, **kwargs)

    return all_gather


def _spawned(patch: Callable[..., Any], rank: int) -> None:
    """Runs the target of a process for each rank in the rank itself."""

    def spawn(fn: Callable[..., Any], args: Any = (), *_: Any, **__: Any) -> None:
        fn(rank, *args)

    start = BaseProcess.start

    def started(self: Any) -> None:
        ranks = [a for a in (*self._args, *self._kwargs.values()) if type(a) is int]
        if not ranks:
            # Without a rank argument, the sandbox decides.
            start(self)
        elif ranks[0] == rank:
            self._target(*self._args, **self._kwargs)

    patch(torch.multiprocessing, "spawn", spawn)
    patch(BaseProcess, "start", started)
    patch(BaseProcess, "join", lambda *_, **__: None)
