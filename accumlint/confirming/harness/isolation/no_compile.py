"""Replaces torch's compiler, which is never used here and takes as long to import as torch itself.

Optimizers import `torch._dynamo` only for its decorators; an inert module suffices.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch


class _InertModule(types.ModuleType):
    """A module whose functions do nothing and whose flags are off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _INERT


class _NoInstances:
    """A class without instances."""


class _Inert:
    """A falsy value that can be called and read; attributes named like a class are one."""

    def __call__(self, *_: object, **__: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # Libraries check whether a module is compiled.
        return _NoInstances if name[0].isupper() else self

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[object]:
        return iter(())


_INERT = _Inert()


def _unchanged(function: Callable[..., Any] | None = None, *_: object, **__: object) -> Any:
    return function if function is not None else _unchanged


def install() -> None:
    """Installs the inert module, unless the compiler is imported already."""
    if "torch._dynamo" in sys.modules:
        return
    quiet = _InertModule("torch._dynamo")
    settings: dict[str, Any] = {
        "__path__": [],
        "disable": _unchanged,
        "allow_in_graph": _unchanged,
        "is_compiling": lambda: False,
        "config": _InertModule("torch._dynamo.config"),
        "utils": _InertModule("torch._dynamo.utils"),
    }
    quiet.__dict__.update(settings)
    for module in (quiet, settings["config"], settings["utils"]):
        sys.modules[module.__name__] = module
    torch._dynamo = quiet  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
