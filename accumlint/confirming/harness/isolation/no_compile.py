"""Keeps torch's compiler out: nothing is compiled here, and its import takes as long as torch's own.

Optimizers import `torch._dynamo` only to be left alone by it; a module that leaves everything alone serves them.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch


class _Quiet(types.ModuleType):
    """A module in which every function does nothing and every flag is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _NOTHING


class _Nobody:
    """A class that nothing is of."""


class _Nothing:
    """False, and nothing when called or asked for a part; a part that is named like a class is one."""

    def __call__(self, *_: object, **__: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # Libraries ask whether a module is a compiled one.
        return _Nobody if name[0].isupper() else self

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[object]:
        return iter(())


_NOTHING = _Nothing()


def _left_alone(function: Callable[..., Any] | None = None, *_: object, **__: object) -> Any:
    return function if function is not None else _left_alone


def keep_out() -> None:
    """Puts the quiet module in the compiler's place, unless the compiler is here already."""
    if "torch._dynamo" in sys.modules:
        return
    quiet = _Quiet("torch._dynamo")
    settings: dict[str, Any] = {
        "__path__": [],
        "disable": _left_alone,
        "allow_in_graph": _left_alone,
        "is_compiling": lambda: False,
        "config": _Quiet("torch._dynamo.config"),
        "utils": _Quiet("torch._dynamo.utils"),
    }
    quiet.__dict__.update(settings)
    for module in (quiet, settings["config"], settings["utils"]):
        sys.modules[module.__name__] = module
    torch._dynamo = quiet  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
