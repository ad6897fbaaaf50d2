"""Loads a set-up file, and adapts the objects that it provides."""

from __future__ import annotations

import itertools
import runpy
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import nn

from accumlint.confirming.harness.fakes.batches import Data
from accumlint.reading import names


class SetupError(Exception):
    """An unusable set-up file; the message is a sentence."""


class CountedBatches:
    """Provided micro-batches that are counted when the loop takes them."""

    def __init__(self, batches: Any, data: Data) -> None:
        self._batches = batches
        self._data = data
        self._endless: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            self._data.begin()
            yield batch

    def __next__(self) -> Any:
        """The next one; restarts at the end, like a cycled loader."""
        self._endless = self._endless or itertools.cycle(self._batches)
        self._data.begin()
        return next(self._endless)

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


class PartialNamespace(SimpleNamespace):
    """Provided settings; missing ones are chosen by name."""

    def __init__(self, known: Mapping[str, Any], unknown: Callable[[str], Any]) -> None:
        super().__init__(**known)
        self._unknown = unknown

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._unknown(name)


class ProvidedAttribute:
    """A descriptor for a provided attribute: assignments are ignored, except of a wrapper around it."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        return self._value

    def __set__(self, owner: object, value: object) -> None:
        if wraps(value, self._value):
            self._value = value


def wraps(value: object, module: object) -> bool:
    """Whether a value is a wrapper around a module, such as DDP."""
    if not (isinstance(value, nn.Module) and isinstance(module, nn.Module)) or value is module:
        return False
    return any(inner is module for inner in value.modules())


def load_setup(file: str, data: Data, world: int, device: torch.device) -> dict[str, Any]:
    """The objects that `setup(rank, world, device)` of a file returns, by name.

    Raises:
        SetupError: where the file has no such function, fails, or returns no objects.
    """
    try:
        found = runpy.run_path(file, run_name="accumlint_setup")["setup"](data.rank, world, device)
    except KeyError as problem:
        raise SetupError(f"the set-up file defines no {problem}") from None
    # Any error in the user's file is reported to him.
    except Exception as problem:  # noqa: BLE001
        raise SetupError(f"the set-up file raised {type(problem).__name__}: {problem}") from None
    if not isinstance(found, dict):
        raise SetupError("`setup` in the set-up file returns no dictionary")
    # The types of keys and values are unknown.
    objects: dict[str, Any] = dict(found)  # pyright: ignore[reportUnknownArgumentType]
    # Names that are left open get fakes.
    filled = {name: value for name, value in objects.items() if value is not ...}
    if objects and not filled:
        raise SetupError(f"the set-up file leaves `{next(iter(objects))}` open")
    return {
        name: CountedBatches(value, data)
        if names.role_of(name.rpartition(".")[2]) == "loader" or are_batches(value)
        else value
        for name, value in filled.items()
    }


def are_batches(value: object) -> bool:
    """True for a list of micro-batches."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return bool(items) and all(map(_is_data, items))


def _is_data(item: Any) -> bool:
    """Whether an item contains tensors, like a micro-batch."""
    values: list[Any] = []
    if isinstance(item, dict):
        values = [*cast("dict[Any, Any]", item).values()]
    elif isinstance(item, tuple | list):
        values = [*cast("list[Any]", item)]
    # Named parameters of a network are no micro-batches.
    return any(isinstance(x, torch.Tensor) and not isinstance(x, nn.Parameter) for x in values)
