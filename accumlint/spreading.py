"""Spreads the work on many files over several processes, whose results come back in the order of the files.

Processes are forked once everything that they need has been imported. Each takes every n-th file and writes what came
of it into a pipe; who reads them in turn reads them in order.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, Generic, TypeVar

In = TypeVar("In")
Out = TypeVar("Out")

# Fewer files per process are not worth one.
LEAST = 8


class Died(Exception):
    """The process that worked on an item is gone, and gave nothing for it."""


def processes(asked: int, items: int) -> int:
    """How many processes to use for so many items: those that are asked for, with 0 as many as pay."""
    # Where processes begin from nothing, importing everything anew takes longer than most runs; and a process that has
    # threads must not be forked.
    if not hasattr(os, "fork") or sys.platform == "darwin" or threading.active_count() > 1:
        return 1
    return max(1, min(asked or _cores(), items if asked else items // LEAST))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Spread(Generic[In, Out]):
    """Work under way in several processes, which end with the `with` block."""

    def __init__(self, items: Sequence[In], work: Callable[[In], Out], count: int) -> None:
        self.items = items
        self.work = work
        self.count = count
        self._pipes: list[BinaryIO] = []
        self._children: list[int] = []

    def __enter__(self) -> Spread[In, Out]:
        sys.stdout.flush()
        sys.stderr.flush()
        for number in range(self.count):
            reading, writing = os.pipe()
            child = os.fork()
            if not child:
                os.close(reading)
                self._work_off(number, writing)
            os.close(writing)
            self._pipes.append(os.fdopen(reading, "rb"))
            self._children.append(child)
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for child in self._children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def results(self) -> Iterator[Out | Died]:
        """What the work gave for each item, in their order."""
        for number in range(len(self.items)):
            try:
                yield pickle.load(self._pipes[number % self.count])
            except (EOFError, pickle.UnpicklingError):  # noqa: PERF203 (each item fails by itself)
                yield Died()

    def _work_off(self, number: int, writing: int) -> None:
        """Does the work of a child, and ends it: nothing of its parent's runs on here."""
        code = 1
        try:
            with os.fdopen(writing, "wb") as pipe:
                for item in self.items[number :: self.count]:
                    pickle.dump(self.work(item), pipe)
                    pipe.flush()
            code = 0
        finally:
            os._exit(code)
