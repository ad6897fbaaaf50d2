"""Finds where training starts in a program and runs it on every path that matters."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Set
from dataclasses import replace
from itertools import chain

from accumlint.common.frozen import frozen
from accumlint.files import prefilter
from accumlint.reading import ir as p
from accumlint.reading import names
from accumlint.reading.excerpts import joined
from accumlint.reading.gradient_slice import Relevance, key
from accumlint.reading.hooks import driven, lineage
from accumlint.reading.program import Program
from accumlint.reading.project import Project
from accumlint.reading.statement_facts import called
from accumlint.tracing import trace as t
from accumlint.tracing.budget import (
    LOOKS_OF_STEP,
    NODES_OF_RUN,
    STEPS_OF_EVENT,
    STEPS_OF_NODE,
    STEPS_OF_RUN,
    STEPS_OF_TOLD,
    Budget,
)
from accumlint.tracing.calls.borders import Borders
from accumlint.tracing.control.exits import Leave, PythonError, Stopped
from accumlint.tracing.control.path_equivalence import told
from accumlint.tracing.control.regions import Sides, regions
from accumlint.tracing.framework_driver import (
    counted_by_callers,
    loops,
    repeat,
    run_through,
    runs_once,
)
from accumlint.tracing.graph import CallGraph
from accumlint.tracing.interpreter import Machine
from accumlint.tracing.state import Decision, Scenario
from accumlint.tracing.trainers import Trainer
from accumlint.tracing.values import ClassValue, Closure, Object, Unknown, Value

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


@frozen
class Exploration:
    """All traces of a program; the loops that could not be traced, and why; why it stopped early ("" if not).

    `leads` tell for what happened in other files which node of the program led there. `idle` are the first runs from
    the entries from which no run trained, with the functions that they started in (None: the module). `steps` is the
    work that all of it took. `alone` is what the file shows by itself, where other files show more of it.
    """

    traces: tuple[tuple[t.Trace, ...], ...]
    untraced: tuple[tuple[p.Node, str], ...]
    stopped: str
    leads: Mapping[p.Node, p.Node]
    idle: tuple[tuple[p.Function | None, t.Run], ...] = ()
    steps: int = 0
    alone: Exploration | None = None

    @property
    def events(self) -> int:
        """How many events the rules are asked about."""
        runs = {id(r): len(r.events) for traces in self.traces for t in traces for r in t.runs}
        return sum(runs.values())

    @property
    def is_whole(self) -> bool:
        """True when something trains, every loop was followed up to a step, and every call in it that matters."""
        runs = [run for traces in self.traces for trace in traces for run in trace.runs]
        return (
            bool(runs)
            and not self.untraced
            and not self.stopped
            and all(run.windows and not run.stopped for run in runs)
            and not any(unread.inside for run in runs for unread in run.unread)
        )


def explore(
    program: Program,
    project: Project,
    budget: Budget | float | None = None,
    *,
    by_calls: bool = False,
    misplaced: Set[p.Node] = frozenset(),
) -> Exploration:
    """Traces the training loops of `program`, a file of `project`, as far as the budget goes; a number is seconds.

    A file that only tells a trainer how is not followed through its imports, unless `by_calls`. What is `misplaced`
    clears gradients behind the step instead of where it stands.
    """
    if not isinstance(budget, Budget):
        budget = Budget() if budget is None else Budget(seconds=budget)
    hooked = driven(program, project)
    if not hooked and not by_calls and not prefilter.may_loop(program.text):
        return Exploration((), (), "", {})
    budget.spend(STEPS_OF_NODE * len(program.nodes))
    if budget.is_over():
        unread = tuple((node, budget.stopped) for node in _backwards(program))
        return Exploration((), unread, budget.stopped, {}, steps=budget.spent)
    ending = {f for d in hooked if d.hook.goes_backward for f in (d.function, d.end)}
    own, excerpts = project.slice_of(program, ending)
    slice_ = joined(own, excerpts)
    borders = Borders(program, project, excerpts, misplaced=misplaced)
    if not slice_.backwards:
        return Exploration((), (), "", {})
    groups: list[tuple[t.Trace, ...]] = []
    covered: set[p.Function] = set()
    reasons: dict[p.Function | None, str] = {}
    idle: list[tuple[p.Function | None, t.Run]] = []
    entries = (t.Entry(d.function, calls="microbatch", driven=d) for d in hooked)
    inherited = _inherited(program, project, slice_, covered)
    for entry in chain(entries, _entries(program, slice_, covered), inherited):
        if budget.is_over():
            break
        if entry.owner and not by_calls:
            # What the file's runs end with a step is told where the loop stands.
            if not (left := _without_steps(groups)):
                break
            traces = _Paths(program, slice_, entry, budget, borders).traces(set())
            found = tuple(x for x in traces if x.main.windows and left & goes_backward(x))
            reached = set[object]().union(*map(goes_backward, found))
            groups = [g for g in groups if not all(goes_backward(x) <= reached for x in g)]
            groups += [found] if found else []
            continue
        paths = _Paths(program, slice_, entry, budget, borders)
        # Of what a trainer does around a method, only the loss is judged; what it does itself is read once more.
        traces = paths.traces(covered if entry.driven is None else set())
        if traces:
            groups.append(traces)
            reasons[entry.function] = traces[0].main.stopped
        elif paths.first is not None:
            idle.append((entry.function, paths.first))
    reached = _reached(groups, borders)
    missed: list[p.Node] = [node for node in _backwards(program) if node.at not in reached]
    for found in regions(program, slice_, missed, budget):
        for forced in (False, True):
            if not missed or budget.is_over():
                break
            entry = t.Entry(found.function, found.maker)
            paths = _Paths(program, slice_, entry, budget, borders, found.sides, forced=forced)
            traces = paths.traces(covered)
            reached = _reached([traces], borders)
            left = [node for node in missed if node.at not in reached]
            if len(left) < len(missed):
                _join(groups, traces)
                missed = left
    why = next((r for r in reasons.values() if r), "") or "no backward was reached"
    untraced = tuple((node, why) for node in missed)
    return Exploration(
        tuple(groups), untraced, budget.stopped, borders.leads, tuple(idle), budget.spent
    )


def _join(groups: list[tuple[t.Trace, ...]], traces: tuple[t.Trace, ...]) -> None:
    """Adds paths to those through the same steps, so that what holds on some of them is told with its condition."""

    def steps(group: tuple[t.Trace, ...]) -> set[p.Node]:
        return {e.node for trace in group for e in trace.main.of(t.Step)}

    reached = steps(traces)
    for i, group in enumerate(groups):
        if not reached.isdisjoint(steps(group)):
            groups[i] = (*group, *traces)
            return
    groups.append(traces)


def goes_backward(trace: t.Trace) -> set[object]:
    """The places of the backward calls that the runs of a trace come to."""
    return {event.node.at for run in trace.runs for event in run.of(t.Backward)}


def _without_steps(groups: list[tuple[t.Trace, ...]]) -> set[object]:
    """The backward calls from which no run came to a step."""
    traces = [trace for traces in groups for trace in traces]
    whole = (goes_backward(trace) for trace in traces if trace.main.windows)
    return set[object]().union(*map(goes_backward, traces)) - set[object]().union(*whole)


def _reached(groups: list[tuple[t.Trace, ...]], borders: Borders) -> set[object]:
    """What some run came to with a backward, and what of the file led there."""
    nodes = {
        event.node
        for traces in groups
        for trace in traces
        for run in trace.runs
        for event in run.of(t.Backward)
    }
    return {n.at for node in nodes for n in (node, borders.leads.get(node, node))}


def _backwards(program: Program) -> list[p.Node]:
    """The calls of a file that are written as a backward pass."""
    own = any(f.name == "backward" and f.owner for f in program.functions)
    return [
        node
        for node in program.of(p.Call)
        if isinstance(node.func, p.Attr)
        and node.func.name == "backward"
        # A method of one's own is no backward pass; the one inside it is.
        and not (own and (bool(node.args) or p.dotted(node.func.base) == "self"))
    ]


def _entries(program: Program, slice_: Relevance, covered: set[p.Function]) -> Iterator[t.Entry]:
    """The module if it trains by itself, then the outermost functions that do and were not run yet."""
    if any(s in slice_.backwards for s in program.body if not isinstance(s, p.Function | p.Class)):
        yield t.Entry(None)
    training = [
        f
        for f in program.functions
        if key(f) in slice_.reaching_backward and any(s in slice_.backwards for s in f.body)
    ]
    # A function that no training function calls stands outermost.
    inside = {
        called(node.func)
        for f in training
        for node in p.walk(f.body)
        if isinstance(node, p.Call) and called(node.func) != key(f)
    }
    nested = {
        inner
        for f in program.functions
        for inner in p.walk(f.body)
        if isinstance(inner, p.Function)
    }
    outermost = [f for f in training if key(f) not in inside and f not in nested]
    for function in outermost:
        if function not in covered and not _only_leads_to(covered, function, slice_, training):
            yield t.Entry(function)
    # A function made inside another one and handed out is called by a framework.
    for outer in program.functions:
        for inner in p.walk(outer.body):
            if (
                isinstance(inner, p.Function)
                and inner in training
                and inner not in covered
                and outer not in nested
            ):
                yield t.Entry(inner, outer)
    # What is called only by code that could not be followed still deserves a look.
    for function in sorted(training, key=lambda f: not loops(f, slice_)):
        if (
            function not in covered
            and function not in nested
            and not _only_leads_to(covered, function, slice_, training)
        ):
            yield t.Entry(function)


def _inherited(
    program: Program, project: Project, slice_: Relevance, covered: set[p.Function]
) -> Iterator[t.Entry]:
    """The training loops of other files that the classes of a file inherit, and fill in."""
    for cls in program.classes.values():
        classes, _ = lineage(cls, program, project) if cls.bases else ((), ())
        for base in classes:
            for name, method in base.methods.items():
                if (
                    name not in cls.methods
                    and program.classes.get(base.name) is not base
                    and key(method) in slice_.reaching_backward
                    and loops(method, slice_)
                    and method not in covered
                ):
                    yield t.Entry(method, owner=cls.name)


def _only_leads_to(
    covered: set[p.Function], function: p.Function, slice_: Relevance, training: list[p.Function]
) -> bool:
    """True for a function that does nothing to gradients but call those that ran already."""
    written = [n.func for n in p.walk(function.body) if isinstance(n, p.Call)]
    leading = {called(func) for func in written} & slice_.reaching_backward
    clears = {p.dotted(func).rpartition(".")[2] for func in written} & names.CLEARS
    # Another class's method of the same name did not run for this one.
    beside = (f for f in training if f.owner and f.owner == function.owner and key(f) in leading)
    if clears or "backward" in leading or not covered.issuperset(beside):
        return False
    return bool(leading) and leading <= {key(f) for f in covered}


class _Paths:
    """The paths from one entry: the default one, then each choice flipped that guards an event."""

    def __init__(
        self,
        program: Program,
        slice_: Relevance,
        entry: t.Entry,
        budget: Budget,
        borders: Borders,
        sides: Sides | None = None,
        *,
        forced: bool = False,
    ) -> None:
        self.borders = borders
        self.sides = sides or {}
        self.forced = forced
        self.program = program
        self.slice = slice_
        self.entry = entry
        self.budget = budget
        self.scenario = STANDARD
        self.nodes = 0
        self.calls = "once"
        self.owner = ""
        self.first: t.Run | None = None

    def traces(self, covered: set[p.Function]) -> tuple[t.Trace, ...]:
        found: list[t.Trace] = []
        waiting: list[tuple[dict[str, str], int]] = [({}, 0)]
        tried: set[frozenset[tuple[str, str]]] = set()
        asked: set[frozenset[tuple[str, str]]] = set()
        known: dict[Hashable, tuple[t.Trace, Set[str]]] = {}
        through: set[p.Node] = set()
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
            run, machine, chosen = self.trained(chosen, first=not found)
            self.first = self.first or run
            covered.update(machine.entered)
            # Where nothing trains, a flag that was set may be why.
            vain = not found and not run.of(t.Backward)
            flagging: Set[str] = machine.guards.flagging if vain else frozenset()
            decisions = [
                d for d in machine.guards.decisions.values() if d.matters or d.key in flagging
            ]
            path = frozenset((d.key, d.choice) for d in decisions)
            if path in tried:
                continue
            tried.add(path)
            exceptional = any(d.data and d.choice != "ordinary" for d in decisions)
            # Guards on the data are tried on the plain path, and on the first with a scaler, which they may pass over.
            whole = not chosen or (
                bool(run.of(t.Update)) and not any(trace.main.of(t.Update) for trace in found)
            )
            met: Set[str] = frozenset()
            if run.of(t.Backward):
                happened = exceptional, told(run)
                twin, met = known.get(happened, (None, met))
                runs, single = (twin.runs, twin.single) if twin else ((run,), None)
                # What no path went through before is run with other steps, however many flips lead to it.
                untold = {b.node for b in run.of(t.Backward)} - through
                through |= untold
                if twin is None and run.asked and not exceptional and (flips < 2 or untold):
                    other = Scenario(2, 4) if self.scenario is WHOLE else HALF
                    runs = (run, self.run(other, chosen)[0])
                    if machine.state.single:
                        single = machine.state.single, self.run(ALONE, chosen)[0]
                assumptions = tuple((d.key, d.choice) for d in decisions if not d.data)
                entry = replace(self.entry, calls=self.calls, owner=self.owner)
                # What is only due once in a while, or only on request, is no ordinary window.
                remote = bool(self.sides) and any(
                    choice == "true" and (" % " in text or names.is_off_by_default(text))
                    for text, choice in assumptions
                )
                # Nobody is seen to set the accumulation steps.
                remote |= self.entry.driven is not None and not self.entry.driven.spoken
                trace = t.Trace(
                    self.program, runs, assumptions, exceptional, entry, remote, single=single
                )
                found.append(trace)
                known.setdefault(happened, (trace, machine.guards.decisions.keys()))
            if flips < (0 if self.sides else MAX_FLIPS) and not exceptional:
                # Where a flip changed nothing, only the guards that it led to may.
                new = [d for d in decisions if d.key not in met]
                waiting.extend((f, flips + 1) for f in _flipped(new, chosen, on_data=whole))
        return tuple(found)

    def trained(
        self, chosen: dict[str, str], *, first: bool
    ) -> tuple[t.Run, Machine, dict[str, str]]:
        """A run that trains, with the choices that it took."""
        run, machine = self.run(self.scenario, chosen)
        if first and machine.state.length_asked and not run.of(t.Backward):
            # Perhaps a partial window is refused.
            whole, other = self.run(WHOLE, chosen)
            if whole.of(t.Backward):
                self.scenario, run, machine = WHOLE, whole, other
        kept, tried = (run, machine, chosen), chosen
        while (refusal := machine.guards.refusal) and len(tried) < len(chosen) + MAX_REFUSALS:
            # A path that leads to a `raise` is one that the program refuses.
            tried = {**tried, **refusal}
            run, machine = self.run(self.scenario, tried)
        if machine.guards.refused and not machine.guards.is_exceptional:
            run, machine, chosen = kept
        else:
            chosen = tried
        literal = run.literal or 0
        if not run.asked and self.scenario is STANDARD and 0 < literal <= LONGEST_LITERAL:
            self.scenario = Scenario(literal, 2 * literal + max(1, literal // 2))
            run, machine = self.run(self.scenario, chosen)
        return run, machine, chosen

    def run(self, scenario: Scenario, chosen: dict[str, str]) -> tuple[t.Run, Machine]:
        """One run. When a function is refused in its midst, its windows differ, and it is run again without it."""
        refused, nodes = len(self.borders.refused), self.nodes
        run, machine = self.tried(scenario, chosen)
        if len(self.borders.refused) > refused and not self.budget.is_over():
            self.nodes = nodes
            return self.run(scenario, chosen)
        return run, machine

    def tried(self, scenario: Scenario, chosen: dict[str, str]) -> tuple[t.Run, Machine]:
        machine = Machine(self.program, self.slice, scenario, chosen, self.budget, self.borders)
        machine.guards.sides, machine.guards.forced = self.sides, self.forced
        stopped, raised = "", None
        try:
            self.start(machine)
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
            + machine.elsewhere.spent
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

    def start(self, machine: Machine) -> None:
        function = self.entry.function
        if function is None:
            machine.block(self.program.body)
            return
        machine.block(
            tuple(
                s
                for s in self.program.body
                if s not in self.slice.backwards or isinstance(s, p.Function | p.Class)
            )
        )
        if self.entry.maker is not None:
            self.made(machine, self.entry.maker, function)
            return
        receiver: Value = None
        closure = None
        owner = self.program.classes.get(self.entry.owner or function.owner)
        if owner is not None and (self.entry.owner or function.name in owner.methods):
            concrete = owner if self.entry.owner else self.filled(machine, owner, function)
            self.owner = concrete.name
            receiver = machine.invoking.construct(
                ClassValue(concrete, None), [], {"**": Unknown("kwargs")}, function
            )
            if isinstance(receiver, Object) and receiver.thing is None:
                receiver.text = "self"
            if isinstance(receiver, Object):
                lineage = machine.invoking.lineage(concrete)
                _forget_unset(receiver, lineage, function)
                _forget_empty(receiver, lineage, function, self.borders.graph)
            if self.entry.owner:
                closure = machine.invoking.find_method(concrete, function.name)
        self.train(machine, closure or Closure(function, None, owner), receiver, function)

    def filled(self, machine: Machine, owner: p.Class, function: p.Function) -> p.Class:
        """The class whose instance runs a method: the first that fills in what its owner leaves to others."""
        hollow = {name for name, method in owner.methods.items() if _is_hollow(method)}
        missing = self.borders.graph.left_to_heirs(machine.invoking.lineage(owner))
        for cls in self.program.classes.values() if hollow or missing else ():
            if function.name in cls.methods:
                continue
            _, *above = machine.invoking.lineage(cls)
            given = hollow & cls.methods.keys() or any(
                missing & c.methods.keys() for c in (cls, *above)
            )
            if owner in above and given:
                return cls
        return owner

    def made(self, machine: Machine, maker: p.Function, function: p.Function) -> None:
        """Runs the function that makes another one, then the made one."""
        owner = self.program.classes.get(maker.owner) if maker.owner else None
        receiver: Value = None
        if owner is not None and maker.name in owner.methods:
            receiver = machine.invoking.construct(
                ClassValue(owner, None), [], {"**": Unknown("kwargs")}, maker
            )
        machine.invoking.invoke(Closure(maker, None, owner), [], {"**": None}, receiver, maker)
        closure = machine.captured.get(function)
        if closure is not None:
            self.train(machine, closure, None, function)

    def train(
        self, machine: Machine, closure: Closure, receiver: Value, function: p.Function
    ) -> None:
        """Calls a function as its framework would: once, twice (an epoch each), or for every micro-batch."""
        if self.entry.driven is not None:
            self.calls = "microbatch"
            trainer = Trainer(machine, self.entry.driven, receiver)
            repeat(machine, closure, receiver, function, trainer)
            return
        self.calls = "once"
        machine.state.by_epochs = _speaks_of_epochs(function)
        if loops(function, self.slice):
            nested = any(
                isinstance(n, p.For | p.While)
                and n in self.slice.backwards
                and machine.rounds.holds_loop(n)
                for n in p.walk(function.body)
            )
            run_through(machine, closure, receiver, function)
            if not nested and _is_an_epoch(function) and not runs_once(function, machine):
                self.calls = "twice"
                run_through(machine, closure, receiver, function)
            return
        if self._calls_loop(function, machine):
            self.calls = "twice" if machine.state.by_epochs else "once"
            for _ in range(2 if machine.state.by_epochs else 1):
                run_through(machine, closure, receiver, function)
            return
        self.calls = "microbatch"
        for name in counted_by_callers(machine, closure, function):
            if isinstance(receiver, Object):
                receiver.attributes[name] = Unknown(f"{receiver.text}.{name}")
        repeat(machine, closure, receiver, function)

    def _calls_loop(self, function: p.Function, machine: Machine) -> bool:
        # What calls it is another's method of that name, where it calls that: `model.train_step(batch)`.
        around = self.borders.graph.callers(self.program.functions, function)
        return machine.rounds.has_training_loop(function.body, around)


def _forget_unset(receiver: Object, lineage: list[p.Class], function: p.Function) -> None:
    """Leaves open what a constructor sets to None and another method sets up before the training begins."""
    unset = {f"self.{n}" for n, v in receiver.attributes.items() if v is None and names.role_of(n)}
    methods = [m for cls in lineage for m in cls.methods.values()] if unset else []
    nodes = [n for m in methods if m.name != "__init__" for n in p.walk(m.body)]
    tests = " ".join(p.render(n.test) for n in nodes if isinstance(n, p.If))
    own = set(p.walk(function.body)) if unset else set[p.Node]()
    for node in nodes:
        if isinstance(node, p.Assign) and node not in own and not isinstance(node.value, p.Const):
            for target in node.targets:
                parts = target.items if isinstance(target, p.Sequence) else (target,)
                for name in {p.dotted(part) for part in parts} & unset:
                    # Where it is asked for, the training sets it up by itself.
                    if not re.search(rf"{re.escape(name)}\b", tests):
                        receiver.attributes.pop(name.removeprefix("self."), None)


def _forget_empty(
    receiver: Object, lineage: list[p.Class], function: p.Function, graph: CallGraph
) -> None:
    """Leaves open what a table of optimizers or networks holds that others fill before the training begins."""
    empty = {
        f"self.{name}"
        for name, value in receiver.attributes.items()
        if value in ([], {}) and names.role_of(name) in ("optimizer", "model", "scheduler")
    }
    methods = [m for cls in lineage for m in cls.methods.values()] if empty else []
    for filling in (m for m in methods if m is function or function in graph.callers(methods, m)):
        empty.difference_update(_filled(filling))
    for name in empty:
        del receiver.attributes[name.removeprefix("self.")]


def _filled(method: p.Function) -> Iterator[str]:
    """What a method puts something into (`self.optimizers["adam"] = ...`, `self.optimizers.append(...)`), or sets."""
    for node in p.walk(method.body):
        if isinstance(node, p.Assign):
            for target in node.targets:
                yield p.dotted(target.base if isinstance(target, p.Item) else target)
        elif isinstance(node, p.Call) and isinstance(node.func, p.Attr):
            if node.func.name in ("append", "extend", "update", "insert", "setdefault"):
                yield p.dotted(node.func.base)


def _is_hollow(method: p.Function) -> bool:
    """True for a method that subclasses must give: it only raises."""
    *said, last = method.body or (None,)
    texts = all(isinstance(s, p.Do) and isinstance(s.value, p.Const) for s in said)
    return isinstance(last, p.Raise) and texts


def _speaks_of_epochs(function: p.Function) -> bool:
    """True when a function's name or one of its parameters is about one epoch."""
    told = any(names.is_epoch(param.name) for param in function.params)
    return told or "epoch" in function.name.lower()


def _is_an_epoch(function: p.Function) -> bool:
    """True when a function reads like one pass over the data, which its caller makes again and again."""
    whole = ("fit", "main", "run", "finetune", "pretrain")
    return _speaks_of_epochs(function) or not any(word in function.name.lower() for word in whole)


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
