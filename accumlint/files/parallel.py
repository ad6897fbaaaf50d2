"""Spreads the work on many files over several processes, whose results come back in the order of the files.

Processes are forked once everything that they need has been imported. Each takes the next files whenever it is done
with the last ones, so that none waits while another has a pile left, and sends what came of them through a pipe.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar, cast

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

In = TypeVar("In")
Out = TypeVar("Out")

# Fewer files per process are not worth one.
LEAST = 8
# A page of memory holds all tickets, and so does the smallest pipe: writing them never waits for a reader.
_TICKETS = 1000
_TICKET = 4


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
    """Work under way in several processes, which end with the `with` block.

    The items are begun in their order, those of the most `weight` before: begun last, one would keep everybody waiting.
    """

    def __init__(
        self,
        items: Sequence[In],
        work: Callable[[In], Out],
        count: int,
        weight: Callable[[In], int],
    ) -> None:
        self.items = items
        self.work = work
        self.count = count
        numbers = range(len(items))
        heavy = sorted(numbers, key=lambda number: -weight(items[number]))[:count]
        order = [*heavy, *(number for number in numbers if number not in heavy)]
        size = -(-len(order) // _TICKETS)
        self._batches = [order[start : start + size] for start in range(0, len(order), size)]
        self._children: list[int] = []
        # What each process has taken and not yet given, by its pipe.
        self._taken: dict[Connection, deque[int]] = {}

    def __enter__(self) -> Spread[In, Out]:
        from multiprocessing.connection import Pipe

        sys.stdout.flush()
        sys.stderr.flush()
        tickets, box = os.pipe()
        for number in range(len(self._batches)):
            os.write(box, number.to_bytes(_TICKET, "big"))
        os.close(box)
        for _ in range(self.count):
            receiving, sending = Pipe(duplex=False)
            child = os.fork()
            if not child:
                self._work_off(tickets, sending)
            sending.close()
            self._taken[receiving] = deque()
            self._children.append(child)
        os.close(tickets)
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._taken:
            pipe.close()
        for child in self._children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def results(self) -> Iterator[Out | Died]:
        """What the work gave for each item, in their order."""
        from multiprocessing.connection import wait

        done: dict[int, Out | Died] = {}
        pipes: list[Connection] = list(self._taken)
        for number, item in enumerate(self.items):
            while number not in done and pipes:
                ready = wait(pipes)
                pipes = [p for p in pipes if p not in ready or self._receive(p, done)]
            # Nobody is left to do what a process took and did not begin.
            yield done.pop(number) if number in done else self.work(item)

    def _receive(self, pipe: Connection, done: dict[int, Out | Died]) -> bool:
        """Takes what a process sent: that it begins a batch, or what its next item gave. False when it has ended."""
        taken = self._taken[pipe]
        try:
            batch, result = cast("tuple[int | None, Out]", pipe.recv())
        except (EOFError, OSError):
            if taken:
                done[taken.popleft()] = Died()
            return False
        if batch is not None:
            taken.extend(self._batches[batch])
        else:
            done[taken.popleft()] = result
        return True

    def _work_off(self, tickets: int, pipe: Connection) -> NoReturn:
        """Does the work of a child, and ends it: nothing of its parent's runs on here."""
        code = 1
        try:
            while ticket := os.read(tickets, _TICKET):
                batch = int.from_bytes(ticket, "big")
                pipe.send((batch, None))
                for number in self._batches[batch]:
                    pipe.send((None, self.work(self.items[number])))
            code = 0
        finally:
            os._exit(code)
