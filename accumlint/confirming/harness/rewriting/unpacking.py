"""Reads from bytecode the names into which a frame unpacks a value, for project files that are not rewritten."""

from __future__ import annotations

import dis
import functools
import itertools
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

_STORES = {"STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF"}


def names_of(frame: FrameType) -> tuple[Any, ...] | None:
    """The nested names that receive the parts of a value that `frame` unpacks; None where it does not unpack."""
    return _names(frame.f_code, frame.f_lasti)


@functools.lru_cache(maxsize=256)
def _names(code: CodeType, place: int) -> tuple[Any, ...] | None:
    following = (i for i in dis.get_instructions(code) if i.offset >= place)
    instructions = (i for i in following if i.opname != "EXTENDED_ARG")
    first = next(instructions, None)
    if first is None or first.offset != place or first.opname != "UNPACK_SEQUENCE":
        return None
    return _targets(_stored(instructions), first.argval)


def _targets(stored: Iterator[str | int], count: int) -> tuple[Any, ...] | None:
    """A number of names, possibly nested; None where a part gets no name."""
    found = [
        _targets(stored, one) if isinstance(one, int) else one
        for one in itertools.islice(stored, count)
    ]
    return tuple(found) if len(found) == count and None not in found else None


def _stored(instructions: Iterator[dis.Instruction]) -> Iterator[str | int]:
    """Names in the order of their stores, and sizes of nested groups; ends at another instruction."""
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
