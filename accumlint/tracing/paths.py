"""The paths from an entry point: its runs with each choice at the guards that matter."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Set
from dataclasses import dataclass, field, replace

from accumlint.reading import ir as p
from accumlint.reading import names
from accumlint.reading.gradient_slice import Relevance
from accumlint.tracing import trace as t
from accumlint.tracing.budget import (
    LOOKS_OF_STEP,
    NODES_OF_RUN,
    STEPS_OF_EVENT,
    STEPS_OF_RUN,
    STEPS_OF_TOLD,
    Budget,
)
from accumlint.tracing.calls.borders import Borders
from accumlint.tracing.control.exits import Leave, PythonError, Stopped
from accumlint.tracing.control.path_equivalence import told
from accumlint.tracing.control.regions import Sides
from accumlint.tracing.entry_points import EntryCall
from accumlint.tracing.interpreter import Interpreter
from accumlint.tracing.state import Decision, Scenario

MAX_PATHS = 24
# Counted in expressions and not in seconds, so that the same file gives the same findings on any machine.
MAX_NODES_OF_PATHS = 100_000
MAX_NODES_OF_VAIN = 400_000
MAX_FLIPS = 3
MAX_REFUSALS = 8
STANDARD = Scenario(4, 10)
HALF = Scenario(2, 5)
WHOLE = Scenario(4, 8)
ALONE = Scenario(1, 3)
LONGEST_LITERAL = 64


@dataclass(eq=False, repr=False)
class Paths:
    """The paths from one entry: the default one, then each choice flipped that guards an event."""

    slice: Relevance
    entry: t.Entry
    budget: Budget
    borders: Borders
    sides: Sides = field(default_factory=dict[p.If, bool])
    forced: bool = False

    def __post_init__(self) -> None:
        self.program = self.borders.program
        self.scenario = STANDARD
        self.nodes = 0
        self.call = EntryCall(self.entry)
        self.first: t.Run | None = None
        # Per course of events that was met: the first trace of it, and the guards on its way.
        self.known: dict[Hashable, tuple[t.Trace, Set[str]]] = {}
        # The backward calls that some path went through.
        self.through: set[p.Node] = set()

    def traces(self, covered: set[p.Function]) -> tuple[t.Trace, ...]:
        found: list[t.Trace] = []
        waiting: list[tuple[dict[str, str], int]] = [({}, 0)]
        tried: set[frozenset[tuple[str, str]]] = set()
        asked: set[frozenset[tuple[str, str]]] = set()
        while waiting and len(found) < MAX_PATHS:
            chosen, flips = waiting.pop(0)
            # Two guards flipped one after the other are met in both orders.
            if frozenset(chosen.items()) in asked:
                continue
            asked.add(frozenset(chosen.items()))
            # Where no path trains so far, more of them are tried, and not without end.
            enough = MAX_NODES_OF_PATHS if found else MAX_NODES_OF_VAIN
            if tried and (self.nodes > enough or self.budget.is_over()):
                break
            run, machine = self.trained(chosen, first=not found)
            self.first = self.first or run
            covered.update(machine.entered)
            # Where nothing trains, a flag that was set may be why.
            vain = not found and not run.of(t.Backward)
            decisions = [
                d
                for d in machine.guards.decisions.values()
                if d.matters or (vain and d.key in machine.guards.flagging)
            ]
            path = frozenset((d.key, d.choice) for d in decisions)
            if path in tried:
                continue
            tried.add(path)
            exceptional = any(d.data and d.choice != "ordinary" for d in decisions)
            # Guards on the data are tried on the plain path, and on the first with a scaler, which they may pass over.
            whole = not machine.chosen or (
                bool(run.of(t.Update)) and not any(trace.main.of(t.Update) for trace in found)
            )
            met: Set[str] = frozenset()
            if run.of(t.Backward):
                happened = exceptional, told(run)
                twin, met = self.known.get(happened, (None, met))
                trace = self._traced(run, machine, decisions, flips, exceptional, twin)
                found.append(trace)
                self.known.setdefault(happened, (trace, machine.guards.decisions.keys()))
            if flips < (0 if self.sides else MAX_FLIPS) and not exceptional:
                # Where a flip changed nothing, only the guards that it led to may.
                new = [d for d in decisions if d.key not in met]
                waiting.extend((f, flips + 1) for f in _flipped(new, machine.chosen, on_data=whole))
        return tuple(found)

    def _traced(
        self,
        run: t.Run,
        machine: Interpreter,
        decisions: list[Decision],
        flips: int,
        exceptional: bool,
        twin: t.Trace | None,
    ) -> t.Trace:
        """The trace of a path: its run, and others with other steps unless a `twin` had the same course."""
        runs, single = (twin.runs, twin.single) if twin else ((run,), None)
        # What no path went through before is run with other steps, however many flips lead to it.
        untold = {b.node for b in run.of(t.Backward)} - self.through
        self.through |= untold
        if twin is None and run.asked and not exceptional and (flips < 2 or untold):
            other = Scenario(2, 4) if self.scenario is WHOLE else HALF
            runs = (run, self.run(other, machine.chosen)[0])
            if machine.state.single:
                single = machine.state.single, self.run(ALONE, machine.chosen)[0]
        assumptions = tuple((d.key, d.choice) for d in decisions if not d.data)
        entry = replace(self.entry, calls=self.call.calls, owner=self.call.owner)
        # What is only due once in a while, or only on request, is no ordinary window.
        remote = bool(self.sides) and any(
            choice == "true" and (" % " in text or names.is_off_by_default(text))
            for text, choice in assumptions
        )
        # Nobody is seen to set the accumulation steps.
        remote |= self.entry.driven is not None and not self.entry.driven.accumulates
        return t.Trace(self.program, runs, assumptions, exceptional, entry, remote, single=single)

    def trained(self, chosen: dict[str, str], *, first: bool) -> tuple[t.Run, Interpreter]:
        """A run that trains, with the choices that it takes for that beside the given ones."""
        run, machine = self.run(self.scenario, chosen)
        if first and machine.state.length_asked and not run.of(t.Backward):
            # Perhaps a partial window is refused.
            whole, other = self.run(WHOLE, chosen)
            if whole.of(t.Backward):
                self.scenario, run, machine = WHOLE, whole, other
        kept, tried = (run, machine), chosen
        while (refusal := machine.guards.refusal) and len(tried) < len(chosen) + MAX_REFUSALS:
            # A path that leads to a `raise` is one that the program refuses.
            tried = {**tried, **refusal}
            run, machine = self.run(self.scenario, tried)
        if machine.guards.refused and not machine.guards.is_exceptional:
            run, machine = kept
        literal = run.literal or 0
        if not run.asked and self.scenario is STANDARD and 0 < literal <= LONGEST_LITERAL:
            self.scenario = Scenario(literal, 2 * literal + max(1, literal // 2))
            run, machine = self.run(self.scenario, machine.chosen)
        return run, machine

    def run(self, scenario: Scenario, chosen: dict[str, str]) -> tuple[t.Run, Interpreter]:
        """One run. When a function is refused in its midst, its windows differ, and it is run again without it."""
        refused, nodes = len(self.borders.refused), self.nodes
        run, machine = self.tried(scenario, chosen)
        if len(self.borders.refused) > refused and not self.budget.is_over():
            self.nodes = nodes
            return self.run(scenario, chosen)
        return run, machine

    def tried(self, scenario: Scenario, chosen: dict[str, str]) -> tuple[t.Run, Interpreter]:
        machine = Interpreter(self.slice, scenario, chosen, self.budget, self.borders)
        machine.guards.sides, machine.guards.forced = self.sides, self.forced
        stopped, raised = "", None
        try:
            self.call.run(machine)
        except Stopped as stop:
            stopped = str(stop)
        except PythonError as error:
            stopped, raised = f"raises {error.kind}", error.node
        except Leave:
            pass
        except RecursionError:
            stopped = "nested too deeply"
        state = machine.state
        self.nodes += state.nodes
        self.budget.spend(
            state.nodes
            + machine.function_calls.spent
            + STEPS_OF_EVENT * len(state.events)
            + state.ledger.looked // LOOKS_OF_STEP
            + STEPS_OF_TOLD * state.ledger.told
            + STEPS_OF_RUN
            + len(self.program.nodes) // NODES_OF_RUN
        )
        if len(state.ledger.optimizers) == 1:
            for step in (e for e in state.events if isinstance(e, t.Step)):
                object.__setattr__(step, "owned", True)
        literal = state.literal
        if literal is None and not state.asked and state.modulus != scenario.steps:
            # Where the steps are asked for, `if i % 100 == 0` only says when something is shown.
            literal = state.modulus
        run = t.Run(
            scenario.steps, scenario.length, state.asked, tuple(state.events), tuple(state.unread), stopped,
            literal, state.guessed, tuple(g for g, shut in state.step_guards.items() if shut), raised,
            next(iter(state.written)) if len(state.written) == 1 else None,
        )  # fmt: skip
        return run, machine


def _flipped(
    decisions: list[Decision], chosen: dict[str, str], *, on_data: bool
) -> Iterator[dict[str, str]]:
    """The choices with one more guard flipped; guards on data first, and only where they are asked for.

    What has many values comes last, so that these leave room for the others.
    """
    for decision in sorted(decisions, key=lambda d: (not d.data, len(d.options) > 2)):
        if decision.key in chosen or (decision.data and not on_data):
            continue
        for option in decision.options:
            if option != decision.choice:
                yield {**chosen, decision.key: option}
