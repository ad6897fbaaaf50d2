"""The events of a run in their order, and the places in time that tell its micro-batches apart."""

from __future__ import annotations

from accumlint.reading import ir as p
from accumlint.tracing import trace as t
from accumlint.tracing.budget import LOOKS_OF_STEP
from accumlint.tracing.control.exits import Stopped
from accumlint.tracing.state import MAX_EVENTS, MAX_LOOKED, MAX_TOLD, Scenario, State
from accumlint.tracing.values import Batch


class Timeline:
    """What happened in a run so far, and where it is now."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.state = State()

    def emit(self, event: t.Event) -> None:
        self.state.events.append(event)
        ledger = self.state.ledger
        many = len(self.state.events) > MAX_EVENTS or ledger.told > MAX_TOLD
        if many or ledger.looked > MAX_LOOKED:
            raise Stopped("too many events")

    def stamp(self, node: p.Node, subject: str) -> tuple[p.Node, int, int, int, str]:
        """The fields that every event begins with."""
        return (node, len(self.state.events), self.state.current, self.state.epoch, subject)

    def loop_position(self) -> tuple[object, ...]:
        """What tells this pass through the innermost loops from any other."""
        self.state.nodes += len(self.state.loops) // LOOKS_OF_STEP
        return (*((loop.node, loop.index) for loop in self.state.loops), self.state.epoch)

    def fetch(self, parent: Batch | None = None, source: object = "") -> Batch:
        """New data. What several sources give in one iteration is one micro-batch, what one gives twice are two.

        What a model takes of its input is a part of that, and no micro-batch of its own.
        """
        state = self.state
        if state.inside and parent is not None:
            return parent
        state.serial += 1
        here = (self.loop_position(), source)
        state.fetched[here] = number = state.fetched.get(here, 0) + 1
        return Batch(state.serial, parent, (here[0], number))

    def passed(self) -> int:
        """How many passes over the data are over."""
        return self.state.epoch - any(loop.loader for loop in self.state.loops)

    def ordinal(self, key: object) -> int:
        """The number of a micro-batch, given when it is first met."""
        return self.state.ordinals.setdefault(key, len(self.state.ordinals) + 1)

    def newest(self, batches: frozenset[Batch]) -> int:
        """The number of the micro-batch that some data belongs to, 0 where it has none yet."""
        latest = max(batches, key=lambda b: b.serial, default=None)
        return self.state.ordinals.get(latest.when, 0) if latest is not None else 0
