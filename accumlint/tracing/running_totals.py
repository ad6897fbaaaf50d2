"""Running totals: what is added up over micro-batches, put into a tensor, and set back."""

from __future__ import annotations

from collections.abc import Sequence

from accumlint.reading import frameworks
from accumlint.reading import ir as p
from accumlint.tracing import trace as t
from accumlint.tracing.machine import Machine
from accumlint.tracing.values import Number, Unknown, Value


class Totals:
    """The running totals of one run."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.totals: set[str] = set()
        # Per name: the iteration in which it was last assigned.
        self.begun: dict[str, object] = {}

    def assigned(self, target: p.Expr, value: Value, node: p.Node) -> None:
        """Bookkeeping of running totals after an assignment."""
        text = p.dotted(target)
        if isinstance(node, p.Augment):
            return
        if isinstance(node, p.Assign) and isinstance(node.value, p.Binary) and node.value.op == "+":
            if p.dotted(node.value.left) == text and isinstance(value, Unknown):
                added = self.added(text, Unknown(text), value, value, node)
                if added is not value:
                    self.machine.store(text, added)
                return
        if isinstance(value, dict | Unknown):
            for total in [x for x in self.totals if x.startswith(f"{text}[")]:
                self.machine.emit(t.Reset(*self.machine.stamp(node, total), total))
        if text in self.totals and isinstance(value, Number):
            self.machine.emit(t.Reset(*self.machine.stamp(node, text), text))
        self.begun[text] = self.machine.loop_position()

    def added(self, target: str, old: Value, value: Value, new: Unknown, node: p.Node) -> Value:
        """`target += value`: a running total, unless it was begun in this very iteration."""
        machine = self.machine
        if not isinstance(value, Unknown) or not machine.state.loops:
            return new
        if self.begun.get(target) == machine.loop_position() or not isinstance(
            old, Number | Unknown
        ):
            return new
        if not value.batches and not value.loss and not value.networks:
            return new
        self.totals.add(target)
        new.total = target
        # A sum of one micro-batch's own losses is no running total: it goes backward with its micro-batch.
        rounds = {b.when for b in new.batches}
        attached = bool(value.networks) and not machine.state.no_grad and len(rounds) != 1
        unread = attached and (_is_part(value) or value.lost or not value.loss)
        machine.emit(t.Add(*machine.stamp(node, target), target, attached, not value.loss, unread))
        return new

    def put(
        self, text: str, holder: Value, value: Value, made: Sequence[p.Expr], node: p.Node
    ) -> None:
        """`losses[i] = loss`, where `losses` is a tensor that was `made` before the loop."""
        machine = self.machine
        if not isinstance(value, Unknown) or not isinstance(holder, Unknown | Number):
            return
        if value.loss and machine.state.loops and made and all(map(_allocates, made)):
            attached = bool(value.networks) and not machine.state.no_grad
            machine.emit(t.Put(*machine.stamp(node, text), attached))


def _is_part(value: Unknown) -> bool:
    """True for one of several values that a call gave which was not followed, unless it is a model's own."""
    call, found, _ = value.text.partition("(…)[")
    return bool(found) and not any(f.subject == call for f in value.forwards)


def _allocates(value: p.Expr) -> bool:
    """`torch.zeros(…)`, and what moves it to a device."""
    while isinstance(value, p.Call) and isinstance(value.func, p.Attr):
        if p.dotted(value.func) in frameworks.ALLOCATING:
            return value.keyword("requires_grad") is None
        value = value.func.base
    return False
