"""Patches for the environment of a run: devices, process groups, command-line arguments and absent packages."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import argparse
import builtins
import os
import pickle
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any
from unittest import mock

import torch
from torch.utils.data import DataLoader

from accumlint.confirming.harness.absent_packages import Finder
from accumlint.confirming.harness.binding import Binding
from accumlint.confirming.harness.fakes import fsdp
from accumlint.confirming.harness.fakes.grad_scalers import Scaling, scalers
from accumlint.confirming.harness.fakes.loaders import feeding
from accumlint.confirming.harness.fakes.stub import UNKNOWN, Stub
from accumlint.confirming.harness.ranks import processes
from accumlint.confirming.harness.source_files import is_library, is_of_project
from accumlint.reading import names


@contextmanager
def surroundings(binding: Binding, scaling: Scaling) -> Generator[None, None, None]:
    """Installs the patches for hardware, processes and packages, and removes them at the end."""
    with ExitStack() as stack:

        def patch(owner: Any, name: str, new: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, new, create=True))

        device = binding.data.device
        if device.type != "cuda":
            without_cuda(patch, device)
            _modules(patch, device, binding.data.dtype)
        scalers(patch, device, scaling)
        processes(patch, binding)
        _arguments(patch, binding)
        patch(
            torch, "compile", lambda model=None, *_, **__: (lambda m: m) if model is None else model
        )
        patch(torch, "save", _saving(torch.save))
        # Some scripts read their source file.
        patch(sys, "argv", [binding.recorder.settings.file])
        patch(builtins, "__import__", _importing(binding, stack))
        stack.callback(forget, frozenset(sys.modules))
        patch(builtins, "open", _opening(builtins.open))
        patch(torch.utils.data, "DataLoader", _loading(binding))
        finder = Finder(binding, _sharding(patch, binding))
        sys.meta_path.insert(0, finder)
        sys.meta_path.append(finder.fallback)
        stack.callback(finder.remove)
        yield


def forget(before: frozenset[str]) -> None:
    """Removes modules of the project from `sys.modules`, so that each pass imports them anew."""
    for name in sys.modules.keys() - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if is_of_project(file):
            del sys.modules[name]


def _loading(binding: Binding) -> type:
    """A DataLoader class: instances that project code makes yield generated micro-batches."""

    class FakingMeta(type):
        def __instancecheck__(cls, made: object) -> bool:
            return isinstance(made, DataLoader)

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, DataLoader)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if is_library(sys._getframe(1)):
                return super().__call__(*args, **kwargs)
            if cls is FakedLoader:
                return binding.loader("DataLoader")
            made: Any = object.__new__(cls)
            made.is_of_user = True
            made.__init__(*args, **kwargs)
            return made

    class FakedLoader(DataLoader[Any], metaclass=FakingMeta):
        is_of_user = False

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            # A subclass of the project iterates in its manner over generated micro-batches.
            if self.is_of_user:
                args, kwargs = (), feeding(binding.data, binding.config.copies)
            super().__init__(*args, **kwargs)

    return FakedLoader


def _opening(open_: Callable[..., Any]) -> Callable[..., Any]:
    """An `open` that redirects writes to missing folders to the null device."""

    def opened(file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
        # A stub counts as an integer, which `open` takes for a file descriptor.
        file = str(file) if isinstance(file, Stub) else file
        try:
            return open_(file, mode, *args, **kwargs)
        except FileNotFoundError:
            if not isinstance(mode, str) or not set(mode) & set("wax"):
                raise
            return open_(os.devnull, mode.replace("x", "w"), *args, **kwargs)

    return opened


def without_cuda(patch: Callable[..., Any], device: torch.device) -> None:
    """Patches CUDA functions so that they work without a GPU."""
    for name in (
        "set_device", "synchronize", "empty_cache", "manual_seed", "manual_seed_all", "init",
        "reset_peak_memory_stats", "set_stream",
    ):  # fmt: skip
        patch(torch.cuda, name, lambda *_, **__: None)
    patch(torch.cuda, "is_available", lambda: False)
    patch(torch.cuda, "current_device", lambda: device)
    if hasattr(torch, "accelerator"):
        # Since torch 2.6, Adam queries the accelerator and its streams.
        patch(
            torch.accelerator, "current_accelerator", lambda check_available=False: None if check_available else device
        )  # fmt: skip
    patch(torch.cuda, "device_count", lambda: 1)
    patch(torch.cuda, "device", lambda *_: nullcontext())
    for name in ("memory_allocated", "memory_reserved"):
        for prefix in ("", "max_"):
            patch(torch.cuda, f"{prefix}{name}", lambda *_, **__: 0)
    patch(torch.cuda, "is_bf16_supported", lambda *_, **__: True)
    # Autocast leaves float64 unchanged; for an absent device it would only warn.
    patch(torch.cuda.amp, "autocast", lambda *_, **__: torch.autocast(device.type, enabled=False))
    autocast = torch.autocast

    class Autocast(autocast):
        def __init__(self, device_type: Any = "cpu", *_: Any, **__: Any) -> None:
            super().__init__(device.type, enabled=False)

    patch(torch, "autocast", Autocast)
    patch(torch.amp, "autocast", Autocast)


def _saving(save: Callable[..., Any]) -> Callable[..., Any]:
    """A `torch.save` that ignores missing folders and unpicklable objects: nothing reads the file."""

    def saved(*args: Any, **kwargs: Any) -> None:
        with suppress(RuntimeError, AttributeError, TypeError, pickle.PicklingError):
            save(*args, **kwargs)

    return saved


def _modules(patch: Callable[..., Any], device: torch.device, dtype: torch.dtype) -> None:
    """Keeps modules on the device and in the precision of the run."""
    to: Callable[..., Any] = torch.nn.Module.to

    def moved(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        wanted = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.dtype)]
        return to(self, device, dtype if wanted and wanted[0].is_floating_point else None)

    patch(torch.nn.Module, "to", moved)
    for name in ("cuda", "half", "bfloat16", "float"):
        patch(torch.nn.Module, name, lambda self, *_, **__: self)


def _importing(binding: Binding, stack: ExitStack) -> Callable[..., Any]:
    """An `__import__` that adds fakes for names which the installed version of a package lacks."""
    real = builtins.__import__

    def importing(*args: Any, **kwargs: Any) -> Any:
        found = real(*args, **kwargs)
        arguments = (
            dict(zip(("name", "globals", "locals", "fromlist"), args, strict=False)) | kwargs
        )
        file = (arguments.get("globals") or {}).get("__file__") or ""
        installed = "site-packages" in (getattr(found, "__file__", None) or "")
        if arguments.get("fromlist") and installed and is_of_project(file):
            for lacking in [n for n in arguments["fromlist"] if n != "*" and not hasattr(found, n)]:
                name = f"{found.__name__}.{lacking}"
                binding.note_fake(name, "a fake, since this version has none")
                setattr(found, lacking, binding.stub(name))
                stack.callback(delattr, found, lacking)
        return found

    return importing


def _sharding(patch: Callable[..., Any], binding: Binding) -> dict[str, Any]:
    """The names of FSDP's contract, patched into modules that are imported already."""
    made = fsdp.contract(binding.recorder)
    for module in fsdp.MODULES:
        if module in sys.modules:
            # A library has imported it.
            for name, value in made.items():
                patch(sys.modules[module], name, value)
    return made


def _arguments(patch: Callable[..., Any], binding: Binding) -> None:
    parse = argparse.ArgumentParser.parse_known_args

    def parsed(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> Any:
        for action in self._actions:
            action.required = False
            if not action.option_strings and action.nargs not in ("?", "*"):
                action.nargs = "?"
        found, rest = parse(self, [], namespace)
        for name, value in list(vars(found).items()):
            setattr(found, name, _setting(binding, name, value))
        return found, rest

    def unset(_: argparse.Namespace, name: str) -> Any:
        # A parser queries which of its settings are unset.
        if name.startswith("__") or sys._getframe(1).f_globals["__name__"] == "argparse":
            raise AttributeError(name)
        return binding.known(f"args.{name}")

    patch(argparse.ArgumentParser, "parse_known_args", parsed)
    # A namespace that is built from others has all their settings.
    patch(argparse.Namespace, "__getattr__", unset)


def _setting(binding: Binding, name: str, default: Any) -> Any:
    """The value of a command-line argument: provided, decided on the path, meant by its name, or the default."""

    for text in binding.provided:
        owner, _, last = text.rpartition(".")
        if last == name and names.is_configuration(f"{owner}."):
            return binding.take(text)
    for text, choice in binding.choices.items():
        if text.rpartition(".")[2] == name and choice in ("true", "false"):
            return choice == "true"
    if names.is_steps(name) and not isinstance(default, bool | str):
        if default is None or isinstance(default, int):
            return binding.counted(f"args.{name}", default or 0)
        return binding.steps_
    if default is False and binding.requests_scaler(name):
        return True
    found = binding.value(f"args.{name}")
    if isinstance(default, bool) or (default is not None and not isinstance(default, int | float)):
        return default
    if found is not UNKNOWN and isinstance(found, int | float):
        return found
    return default if default is not None else binding.stub(f"args.{name}")
