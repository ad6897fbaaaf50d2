"""The ways out of a run, or of a part of it."""

from __future__ import annotations

from accumlint.reading.ir import Node


class Stopped(Exception):
    """The run cannot go on: out of time, too deep, too long."""


class TooFar(Exception):
    """A call into another file takes more than it is worth; it is taken as one that cannot be followed."""


class PythonError(Exception):
    """An exception of the program itself that can be told apart (`StopIteration` …), and what raises it."""

    def __init__(self, kind: str, node: Node | None = None) -> None:
        super().__init__(kind)
        self.kind = kind
        self.node = node


class Leave(Exception):
    """Leaves a loop body that is driven by its iterable."""

    def __init__(self, signal: str) -> None:
        super().__init__(signal)
        self.signal = signal
