"""Room on the interpreter's stack for calls that go up and down all the time."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# In machine words: a little more than half a megabyte.
_ROOM = 70_000


def _called(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return call(*args, **kwargs)


_roomy = FunctionType(_called.__code__.replace(co_stacksize=_ROOM), globals())


def with_room(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What a call gives, made with half a megabyte of the stack at hand.

    CPython takes its stack from the system in chunks of 16 KB and gives each back as soon as no call is in it. Tracing
    goes up and down thousands of times a second, and where that is across the end of a chunk, every time costs two
    system calls and four pages: a fifth of the time of a run. A chunk is as large as the frame that is its first asks
    for, rounded up to a power of two, so that below a frame that asks for a little more than half a megabyte there is
    nearly as much again. Only what is used is ever touched.
    """
    return _roomy(call, *args, **kwargs)
