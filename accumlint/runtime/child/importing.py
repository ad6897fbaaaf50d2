"""Import hooks that install observers after the observed modules have been imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

# The module and function of each observer.
_OBSERVERS = {
    "torch": ("installation", "observe"),
    "torch.distributed.fsdp": ("ranks", "observe_fsdp"),
    "deepspeed.runtime.zero.stage_1_and_2": ("zero", "observe"),
    "deepspeed.runtime.zero.stage3": ("zero", "observe"),
    "diffusers.training_utils": ("averages", "observe_package"),
    "timm.utils.model_ema": ("averages", "observe_package"),
    "ema_pytorch.ema_pytorch": ("averages", "observe_package"),
    "torch_ema.ema": ("averages", "observe_package"),
}


def watch(*, torch: bool = True) -> None:
    """Installs the observers: now for imported modules, later for the rest; torch's own is optional."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    if torch and "torch" in sys.modules:
        # This comes back for the other modules.
        _call("torch")
        return
    for name in _OBSERVERS:
        if name in sys.modules and name != "torch":
            _call(name)


def forget() -> None:
    """Stops waiting for modules."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]


def _call(name: str) -> None:
    module, function = _OBSERVERS[name]
    observe: Callable[[Any], None] = getattr(
        import_module(f"accumlint.runtime.child.{module}"), function
    )
    observe(sys.modules[name])


class _Finder(importlib.abc.MetaPathFinder):
    """A meta-path finder that wraps the loaders of observed modules."""

    def __init__(self) -> None:
        self._finding: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _OBSERVERS or fullname in self._finding:
            return None
        self._finding.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._finding.discard(fullname)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """A loader that installs the observer after the module."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _call(module.__name__)
