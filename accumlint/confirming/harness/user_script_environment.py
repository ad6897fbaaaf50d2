"""The world around a script that runs as it is: only what is not here, or would not be seen, is replaced."""
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false
# pyright: reportMissingParameterType=false, reportPrivateImportUsage=false
# torch's own annotations are partial.

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from accumlint.confirming.harness import environment
from accumlint.confirming.harness.fakes.grad_scalers import Scaling, scalers
from accumlint.confirming.harness.recording.user_script_recorder import OwnRecorder

# Packages that only report what happens, or put it somewhere else: a script runs without them.
_REPORTING = {
    "wandb", "tensorboardX", "mlflow", "comet_ml", "neptune", "clearml", "swanlab", "aim", "tqdm", "rich",
    "matplotlib", "seaborn", "torchinfo", "torchsummary", "termcolor", "colorama", "prettytable", "boto3", "botocore",
}  # fmt: skip
_TENSORBOARD = "torch.utils.tensorboard"
_SCALE = 1024.0
Patch = Callable[[Any, str, Any], None]


def settle(
    recorder: OwnRecorder,
    device: torch.device,
    store: dist.Store,
    told: dict[str, str],
    patch: Patch,
    unscaled: bool,
) -> None:
    """Puts in place what a script needs here; `told` hears of each thing that is replaced, and by what.

    Ranks that meet by their environment meet at `store`, which is this pass's own.
    """
    recorder.feed.watch(patch)
    if device.type != "cuda":
        # Accelerate joins other processes on the CPU only when it is told to.
        os.environ["ACCELERATE_USE_CPU"] = "true"
        environment.without_cuda(patch, device)
        _load_here(patch)
        recorder.moved = lambda: told.setdefault("cuda", "the CPU")
    if device.type != "cuda" or unscaled:
        scaling = Scaling(0.0 if unscaled else _SCALE, 2000)
        scalers(patch, device, scaling)
    patch(torch, "compile", lambda model=None, *_, **__: _uncompiled(model, told))
    _watch_scaler(recorder, patch)
    _watch_processes(recorder, device, patch)
    _meet(device, store, told, patch)
    _quieten(told)


def _uncompiled(model: Any, told: dict[str, str]) -> Any:
    told["torch.compile"] = "left out"
    return model if model is not None else (lambda m: m)


def _load_here(patch: Patch) -> None:
    load = torch.load

    def loading(*args: Any, **kwargs: Any) -> Any:
        return load(*args[:1], **{**kwargs, "map_location": "cpu"})

    patch(torch, "load", loading)


def _watch_scaler(recorder: OwnRecorder, patch: Patch) -> None:
    """Notes the steps that a GradScaler leaves out."""
    step = torch.amp.GradScaler.step

    def stepping(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = recorder.steps_seen
        result = step(self, optimizer, *args, **kwargs)
        if recorder.steps_seen == before:
            recorder.skip(optimizer)
        return result

    patch(torch.amp.GradScaler, "step", stepping)


def _watch_processes(recorder: OwnRecorder, device: torch.device, patch: Patch) -> None:
    """DDP's all-reduces are counted."""
    build, hook = DistributedDataParallel.__init__, DistributedDataParallel.register_comm_hook
    forward = DistributedDataParallel.forward

    def building(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        if device.type != "cuda":
            args = (None, None, *args[2:])[: len(args)]
            kwargs = {**kwargs, **{k: None for k in ("device_ids", "output_device") if k in kwargs}}
        build(self, module, *args, **kwargs)
        own: list[Any] = [self.process_group, default_hooks.allreduce_hook]
        self.__dict__["_accumlint_hook"] = own

        def counted(state: Any, bucket: Any) -> Any:
            recorder.note("reduce")
            return own[1](own[0], bucket)

        # DDP reads the annotations, which here would be text.
        counted.__annotations__ = {}
        hook(self, None, counted)

    def registering(self: Any, state: object, given: Callable[..., Any]) -> None:
        self.__dict__["_accumlint_hook"][:] = [state, given]

    def forwarding(self: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.settings.sabotage in ("sync", "mute"):
            # The controls: every backward reduces, or none.
            self.require_backward_grad_sync = recorder.settings.sabotage == "sync"
        return forward(self, *args, **kwargs)

    patch(DistributedDataParallel, "__init__", building)
    patch(DistributedDataParallel, "register_comm_hook", registering)
    patch(DistributedDataParallel, "forward", forwarding)


def _meet(device: torch.device, store: dist.Store, told: dict[str, str], patch: Patch) -> None:
    """Without a GPU, ranks meet over gloo."""
    begin = dist.init_process_group

    def beginning(backend: Any = None, init_method: Any = None, *args: Any, **kwargs: Any) -> Any:
        if device.type != "cuda":
            if backend is not None and "nccl" in str(backend):
                told["nccl"] = "gloo, since there is no GPU"
            backend = "gloo"
            kwargs.pop("device_id", None)
        if not args and kwargs.get("store") is None and init_method in (None, "env://"):
            given = {name: kwargs.pop(name, -1) for name in ("rank", "world_size")}
            rank = given["rank"] if given["rank"] >= 0 else int(os.environ["RANK"])
            world = (
                given["world_size"] if given["world_size"] > 0 else int(os.environ["WORLD_SIZE"])
            )
            init_method, kwargs = (
                None,
                {**kwargs, "store": store, "rank": rank, "world_size": world},
            )
        return begin(backend, init_method, *args, **kwargs)

    patch(dist, "init_process_group", beginning)
    patch(distributed_c10d, "init_process_group", beginning)


class _Quiet(types.ModuleType):
    """A module or thing that takes whatever is done with it, and does nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("tqdm", "trange", "track"):
            return _progress
        return _Quiet(f"{self.__name__}.{name}")

    def __call__(self, *_: object, **__: object) -> Any:
        return _Quiet(self.__name__)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def _progress(items: Any = None, *_: Any, **__: Any) -> Any:
    return environment.Progress(range(items) if isinstance(items, int) else items)


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Asked when nobody else has a package."""

    def __init__(self, told: dict[str, str]) -> None:
        self.told = told

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        top = fullname.split(".")[0]
        if fullname != _TENSORBOARD and top not in _REPORTING:
            return None
        parent = sys.modules.get(top)
        if "." in fullname and fullname != _TENSORBOARD and not isinstance(parent, _Quiet):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        name = spec.name if spec.name == _TENSORBOARD else spec.name.split(".")[0]
        self.told[name] = "not installed; a package that does nothing"
        return _Quiet(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _quieten(told: dict[str, str]) -> None:
    absent = _Absent(told)
    sys.meta_path.append(absent)
    if importlib.util.find_spec("tensorboard") is None:
        spec = importlib.machinery.ModuleSpec(_TENSORBOARD, absent, is_package=True)
        sys.modules[_TENSORBOARD] = importlib.util.module_from_spec(spec)
        told.pop(_TENSORBOARD)
