"""Tells the names that take a value apart where the user's code is run as it is, as that of his other files is."""

from __future__ import annotations

import dis
import functools
import itertools
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

_STORES = {"STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF"}


def names_of(frame: FrameType) -> tuple[Any, ...] | None:
    """The names, nested as they are, that get the parts of what `frame` takes apart; None if it does something else."""
    return _names(frame.f_code, frame.f_lasti)


@functools.lru_cache(maxsize=256)
def _names(code: CodeType, place: int) -> tuple[Any, ...] | None:
    following = (i for i in dis.get_instructions(code) if i.offset >= place)
    instructions = (i for i in following if i.opname != "EXTENDED_ARG")
    first = next(instructions, None)
    if first is None or first.offset != place or first.opname != "UNPACK_SEQUENCE":
        return None
    return _taken(_stored(instructions), first.argval)


def _taken(stored: Iterator[str | int], count: int) -> tuple[Any, ...] | None:
    """So many names, each of which may be a group of them; None where one gets no name."""
    found = [
        _taken(stored, one) if isinstance(one, int) else one
        for one in itertools.islice(stored, count)
    ]
    return tuple(found) if len(found) == count and None not in found else None


def _stored(instructions: Iterator[dis.Instruction]) -> Iterator[str | int]:
    """Names as they are stored to, and how many a group has; ends where something else is stored to."""
    for one in instructions:
        match one.opname:
            case name if name in _STORES:
                yield one.argval
            case "STORE_FAST_STORE_FAST":
                yield from one.argval
            case "STORE_FAST_LOAD_FAST":
                yield one.argval[0]
            case "UNPACK_SEQUENCE":
                yield one.argval
            case _:
                return
