"""Settings of the interpreter while big trees are built and walked: recursion and garbage collection."""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def room_to_recurse() -> Generator[None, None, None]:
    """Deeply nested code is read and traced by calls nested several times as deeply."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 12_000))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


@contextmanager
def without_collector() -> Generator[None, None, None]:
    """Reading builds a big tree and drops it whole: looking for garbage in it all the time takes half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
