"""What a set-up file gives: a user's own objects, in the places where nothing can be made up."""

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


class GivenError(Exception):
    """A set-up file that gives nothing; the message is a sentence."""


class Fed:
    """A user's own micro-batches, counted as they are taken."""

    def __init__(self, batches: Any, data: Data) -> None:
        self._batches = batches
        self._data = data
        self._endless: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            self._data.begin()
            yield batch

    def __next__(self) -> Any:
        """The next one, as of a loader that is cycled."""
        self._endless = self._endless or itertools.cycle(self._batches)
        self._data.begin()
        return next(self._endless)

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


class Partly(SimpleNamespace):
    """Settings of which some are known, as a set-up file gives them; the others are answered by their names."""

    def __init__(self, known: Mapping[str, Any], unknown: Callable[[str], Any]) -> None:
        super().__init__(**known)
        self._unknown = unknown

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._unknown(name)


class Kept:
    """An attribute that stays what a set-up file gives for it, whatever is assigned to it."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        return self._value

    def __set__(self, owner: object, value: object) -> None:
        if wraps(value, self._value):
            self._value = value


def wraps(value: object, given: object) -> bool:
    """Whether a value is a given module in a wrapper, as for several ranks."""
    if not (isinstance(value, nn.Module) and isinstance(given, nn.Module)) or value is given:
        return False
    return any(inner is given for inner in value.modules())


def given(file: str, data: Data, world: int, device: torch.device) -> dict[str, Any]:
    """The objects that the `setup(rank, world, device)` of a file returns, by the names they are to have.

    Raises:
        GivenError: where it has no such function, fails, returns no mapping, or gives nothing in it.
    """
    try:
        found = runpy.run_path(file, run_name="accumlint_setup")["setup"](data.rank, world, device)
    except KeyError as problem:
        raise GivenError(f"the set-up file defines no {problem}") from None
    # Whatever is wrong with the user's file is his to read.
    except Exception as problem:  # noqa: BLE001
        raise GivenError(f"the set-up file raised {type(problem).__name__}: {problem}") from None
    if not isinstance(found, dict):
        raise GivenError("`setup` in the set-up file returns no dictionary")
    # Of what types its keys and values are, only the user knows.
    objects: dict[str, Any] = dict(found)  # pyright: ignore[reportUnknownArgumentType]
    # What is left open is made up as before.
    filled = {name: value for name, value in objects.items() if value is not ...}
    if objects and not filled:
        raise GivenError(f"the set-up file leaves `{next(iter(objects))}` open")
    return {
        name: Fed(value, data)
        if names.role_of(name.rpartition(".")[2]) == "loader" or are_batches(value)
        else value
        for name, value in filled.items()
    }


def are_batches(value: object) -> bool:
    """True for a list of what holds tensors, as micro-batches do."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return bool(items) and all(map(_is_data, items))


def _is_data(item: Any) -> bool:
    """Whether an item holds tensors, as a micro-batch does."""
    held: list[Any] = []
    if isinstance(item, dict):
        held = [*cast("dict[Any, Any]", item).values()]
    elif isinstance(item, tuple | list):
        held = [*cast("list[Any]", item)]
    # The named parameters of a network are no micro-batches.
    return any(isinstance(x, torch.Tensor) and not isinstance(x, nn.Parameter) for x in held)
