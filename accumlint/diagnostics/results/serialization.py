"""Turns results into what JSON can hold, and back."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


def plain(value: object) -> object:
    """A value as lists of numbers and texts: dataclasses are the list of their fields."""
    if is_dataclass(value) and not isinstance(value, type):
        return [plain(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, tuple):
        return [plain(item) for item in cast("tuple[object, ...]", value)]
    return value.value if isinstance(value, Enum) else value


def rich(kind: type[T], value: object) -> T:
    """What `plain` has made of a value of this type.

    Raises:
        ValueError: when that is no such value.
    """
    return _rich(kind, value)


def _rich(kind: Any, value: Any) -> Any:
    if is_dataclass(kind) and isinstance(kind, type):
        kinds = _kinds(kind)
        if isinstance(value, list) and len(cast("list[Any]", value)) == len(kinds):
            return kind(*map(_rich, kinds, cast("list[Any]", value)))
    elif get_origin(kind) is tuple:
        inner = get_args(kind)
        if isinstance(value, list):
            items = cast("list[Any]", value)
            kinds = inner[:1] * len(items) if inner[-1] is ... else inner
            if len(items) == len(kinds):
                return tuple(map(_rich, kinds, items))
    elif NoneType in get_args(kind):
        return None if value is None else _rich(get_args(kind)[0], value)
    elif isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    elif type(value) is kind:
        return value
    raise ValueError(f"{value!r} is no {kind}")


@cache
def _kinds(kind: type) -> tuple[Any, ...]:
    hints = get_type_hints(kind)
    return tuple(hints[field.name] for field in fields(cast("Any", kind)))
