"""Exceptions: the handlers that wait for one, the one that gives a micro-batch up, and what a `raise` does."""

from __future__ import annotations

from accumlint.reading import ir as p
from accumlint.reading.usage import clears
from accumlint.tracing import trace as t
from accumlint.tracing.control.exits import PythonError
from accumlint.tracing.control.guards import Guards
from accumlint.tracing.machine import Machine
from accumlint.tracing.values import Unknown


class Exceptions:
    """The `try` and `raise` statements of one machine."""

    def __init__(self, machine: Machine, guards: Guards) -> None:
        self.machine = machine
        self.guards = guards
        # The handlers of the `try` bodies that are being executed, as the exceptions that they name.
        self.handlers: list[str] = []

    def run(self, node: p.Try) -> str | None:
        machine = self.machine
        try:
            failing = self._failing(node)
            if failing is not None:
                return machine.block(failing)
            begun, caught = len(machine.state.events), len(self.handlers)
            try:
                self.handlers += (kind for kind, _, _ in node.handlers)
                try:
                    signal = machine.block(node.body)
                finally:
                    del self.handlers[caught:]
                if signal is None:
                    given_up = self._given_up(node, begun)
                    signal = machine.block(node.orelse if given_up is None else given_up)
                return signal
            except PythonError as error:
                for kind, name, body in node.handlers:
                    if _catches(kind, error.kind):
                        if name:
                            machine.store(name, Unknown(name))
                        return machine.block(body)
                raise
        finally:
            if node.final:
                machine.block(node.final)

    def _failing(self, node: p.Try) -> tuple[p.Stmt, ...] | None:
        """The handler that gives a micro-batch up (out of memory), where the path is one on which that happens once.

        A handler that clears takes what came before along; one that does not passes over the boundary.
        """
        if not self.machine.state.loops or node not in self.machine.relevance.backwards:
            return None
        return self._handler(node)

    def _given_up(self, node: p.Try, begun: int) -> tuple[p.Stmt, ...] | None:
        """The same for a forward that fails by itself, in the loop that goes backward behind it."""
        loop = self.machine.state.loops[-1].node if self.machine.state.loops else None
        if loop not in self.machine.relevance.backwards or node in self.machine.relevance.backwards:
            return None
        if not any(isinstance(e, t.Forward) for e in self.machine.state.events[begun:]):
            return None
        return self._handler(node)

    def _handler(self, node: p.Try) -> tuple[p.Stmt, ...] | None:
        for kind, name, body in node.handlers:
            jump = next((s for s in p.walk(body) if isinstance(s, p.Jump)), None)
            if jump is None or jump.kind != "continue":
                continue
            if not clears(body) and "Stop" in kind:
                # Data that has run out.
                continue
            if not self.guards.fails(node):
                return None
            self.machine.emit(
                t.Skip(*self.machine.stamp(jump, kind), f"except {kind}".strip(), jump.kind)
            )
            if name:
                self.machine.store(name, Unknown(name))
            return body
        return None

    def raised(self, node: p.Raise) -> str | None:
        """Raises where a handler waits, or where this path is about something that goes wrong; else goes on.

        A `raise` that is reached on any other path stands behind a condition that was misread; one that stands in a
        loop without any condition ends it.
        """
        kind = node.exception.strip("()") or "Exception"
        if self.handled(kind):
            raise PythonError(kind, node)
        self.guards.refused = self.guards.refused or self.guards.latest
        loop = self.machine.state.loops[-1].node if self.machine.state.loops else None
        unconditional = isinstance(loop, p.For | p.While) and node in loop.body
        if unconditional or self.guards.is_exceptional:
            raise PythonError(kind, node)
        return None

    def handled(self, kind: str) -> bool:
        """True where a handler waits for an exception."""
        return any(_catches(handler, kind) for handler in self.handlers)


def _catches(handler: str, kind: str) -> bool:
    """True where an exception is one of those that a handler names ("" for all)."""
    return not handler or kind in handler or handler.endswith("Exception")
