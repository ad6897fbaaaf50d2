"""Classifies values of a user's source: training objects, micro-batches, misuse of torch."""
# pyright: reportPrivateUsage=false
# Private attributes of a stub stay out of the way of the user's names.

from __future__ import annotations

import inspect
import re
import sys
import traceback
import types
from typing import Any

import torch
from torch import nn

from accumlint.confirming.harness.fakes.batches import Batch
from accumlint.confirming.harness.fakes.loaders import Loader
from accumlint.confirming.harness.fakes.stub import Absent, AbsentModule, Stub
from accumlint.confirming.harness.source_files import is_of_project
from accumlint.reading import names

# The modules in which torch raises on calls in the wrong order.
_MACHINERY = re.compile(r"torch/(amp|optim|autograd|nn/parallel)/")


def is_settings(text: str) -> bool:
    """True for the name of a settings object."""
    return names.is_configuration(f"{text}.")


def make_module(cls: type) -> None:
    """Makes a class with a forward and an absent base a module."""
    if "forward" in vars(cls) and issubclass(cls, Absent) and not issubclass(cls, nn.Module):
        cls.__bases__ = tuple(
            type("Absent", (AbsentModule,), {"_answers": b._answers, "_text": b._text})
            if issubclass(b, Absent)
            else b
            for b in cls.__bases__
        )


def has_project_base(cls: type) -> bool:
    """Whether a base of a class is defined in another file of the project."""
    modules = {base.__module__ for base in cls.__mro__} - {cls.__module__}
    files = (getattr(sys.modules.get(name), "__file__", None) for name in modules)
    return any(file and is_of_project(file) for file in files)


def contains_batch(item: Any) -> bool:
    """True for a micro-batch, possibly in a tuple from `enumerate` or `zip`."""
    return isinstance(item, Batch) or (isinstance(item, tuple) and any(map(contains_batch, item)))


def is_misuse(failure: Exception) -> bool:
    """True where torch raises because of how the loop uses its scaler, optimizer, graph or wrapper."""
    if not isinstance(failure, RuntimeError | AssertionError):
        # A fake lacks what torch needs.
        return False
    frames = traceback.extract_tb(failure.__traceback__)
    return bool(frames) and bool(_MACHINERY.search(frames[-1].filename))


# Names of what an optimizer does besides stepping: it distinguishes ranks, or counts micro-batches.
_REDUCING = re.compile(
    r"reduce|gather|broadcast|dist$|distributed|process_group|rank|world|sync|accum(?!lint)|micro"
)


def may_change_gradients(cls: type) -> bool:
    """Whether a project-defined optimizer may change gradients before it steps, by the names it uses."""
    classes = (c for c in cls.__mro__ if not c.__module__.startswith(("torch", "builtins")))
    functions = [f for c in classes for f in vars(c).values() if isinstance(f, types.FunctionType)]
    seen = set[types.CodeType]()
    while functions:
        # torch wraps `step`.
        function = inspect.unwrap(functions.pop())
        codes = [function.__code__]
        while codes:
            code = codes.pop()
            if code in seen or "site-packages" in code.co_filename:
                continue
            seen.add(code)
            if any(_REDUCING.search(name.lower()) for name in (*code.co_names, *code.co_varnames)):
                return True
            codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
            # Functions of its file that it calls.
            known = (function.__globals__.get(name) for name in code.co_names)
            functions += [f for f in known if isinstance(f, types.FunctionType)]
    return False


def look_up(frame: Any, name: str) -> Any:
    """The value of a dotted name in a user's frame, None for none."""
    first, *rest = name.split(".")
    if not first.isidentifier():
        return None
    value = frame.f_locals.get(first, frame.f_globals.get(first))
    for part in rest:
        if value is None or isinstance(value, Stub):
            return None
        value = getattr(value, part, None) if part.isidentifier() else None
    return value


def is_training_object(value: Any) -> bool:
    if isinstance(value, Absent):
        return False
    return isinstance(value, nn.Module | Loader | Batch | torch.optim.Optimizer) or (
        type(value).__name__ in ("Accelerator", "Fabric", "DataLoaderShard", "DataLoaderDispatcher")
    )
