"""Finds where training starts in a program and runs it on every path that matters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from itertools import chain

from accumlint.common.frozen import frozen
from accumlint.files import prefilter
from accumlint.reading import ir as p
from accumlint.reading.excerpts import joined
from accumlint.reading.gradient_slice import Relevance
from accumlint.reading.hooks import driven
from accumlint.reading.program import Program
from accumlint.reading.project import Project
from accumlint.tracing import trace as t
from accumlint.tracing.budget import STEPS_OF_NODE, Budget
from accumlint.tracing.calls.borders import Borders
from accumlint.tracing.control.regions import regions
from accumlint.tracing.entry_points import backward_calls, entries, inherited
from accumlint.tracing.paths import Paths


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


# What a file shows in which nothing trains.
NOTHING = Exploration((), (), "", {})


def explore(
    program: Program,
    project: Project,
    budget: Budget | None = None,
    *,
    by_calls: bool = False,
    misplaced: Set[p.Node] = frozenset(),
) -> Exploration:
    """Traces the training loops of `program`, a file of `project`, as far as the budget goes.

    A file that only tells a trainer how is not followed through its imports, unless `by_calls`. What is `misplaced`
    clears gradients behind the step instead of where it stands.
    """
    budget = budget or Budget()
    hooked = driven(program, project)
    if not hooked and not by_calls and not prefilter.may_loop(program.text):
        return NOTHING
    budget.spend(STEPS_OF_NODE * len(program.nodes))
    if budget.is_over():
        unread = tuple((node, budget.stopped) for node in backward_calls(program))
        return Exploration((), unread, budget.stopped, {}, steps=budget.spent)
    ending = {f for d in hooked if d.hook.goes_backward for f in (d.function, d.end)}
    own, excerpts = project.slice_of(program, ending)
    slice_ = joined(own, excerpts)
    if not slice_.backwards:
        return NOTHING
    search = _Search(slice_, budget, Borders(program, project, excerpts, misplaced=misplaced))
    begun = (t.Entry(d.function, calls="microbatch", driven=d) for d in hooked)
    for entry in chain(
        begun,
        entries(program, slice_, search.covered),
        inherited(program, project, slice_, search.covered),
    ):
        if budget.is_over():
            break
        if not entry.owner or by_calls:
            search.start(entry)
        elif not search.fill_in(entry):
            break
    return search.ended()


class _Search:
    """The traces that were found so far."""

    def __init__(self, slice_: Relevance, budget: Budget, borders: Borders) -> None:
        self.slice = slice_
        self.budget = budget
        self.borders = borders
        self.groups: list[tuple[t.Trace, ...]] = []
        self.covered: set[p.Function] = set()
        self.reasons: dict[p.Function | None, str] = {}
        self.idle: list[tuple[p.Function | None, t.Run]] = []

    def start(self, entry: t.Entry) -> None:
        """Runs the paths from an entry."""
        paths = Paths(self.slice, entry, self.budget, self.borders)
        # Of what a trainer does around a method, only the loss is judged; what it does itself is read once more.
        traces = paths.traces(self.covered if entry.driven is None else set())
        if traces:
            self.groups.append(traces)
            self.reasons[entry.function] = traces[0].main.stopped
        elif paths.first is not None:
            self.idle.append((entry.function, paths.first))

    def fill_in(self, entry: t.Entry) -> bool:
        """Runs an inherited loop for the backward calls from which no run came to a step; False where none is left.

        What the file's runs end with a step is told where the loop stands.
        """
        traces = [trace for traces in self.groups for trace in traces]
        left = _passed(traces) - _passed(trace for trace in traces if trace.main.windows)
        if left:
            paths = Paths(self.slice, entry, self.budget, self.borders)
            found = tuple(
                x for x in paths.traces(set()) if x.main.windows and left & goes_backward(x)
            )
            reached = _passed(found)
            self.groups = [g for g in self.groups if not _passed(g) <= reached]
            self.groups += [found] if found else []
        return bool(left)

    def ended(self) -> Exploration:
        """What was found, once regions around the backward calls that no run reached are run, too."""
        program, budget = self.borders.program, self.budget
        reached = self._reached(self.groups)
        missed: list[p.Node] = [n for n in backward_calls(program) if n.at not in reached]
        for found in regions(program, self.slice, missed, budget):
            for forced in (False, True):
                if not missed or budget.is_over():
                    break
                entry = t.Entry(found.function, found.maker)
                paths = Paths(self.slice, entry, budget, self.borders, found.sides, forced=forced)
                traces = paths.traces(self.covered)
                reached = self._reached([traces])
                left = [node for node in missed if node.at not in reached]
                if len(left) < len(missed):
                    _join(self.groups, traces)
                    missed = left
        why = next(filter(None, self.reasons.values()), "no backward was reached")
        return Exploration(
            tuple(self.groups),
            tuple((node, why) for node in missed),
            budget.stopped,
            self.borders.leads,
            tuple(self.idle),
            budget.spent,
        )

    def _reached(self, groups: list[tuple[t.Trace, ...]]) -> set[object]:
        """What some run came to with a backward, and what of the file led there."""
        runs = (run for traces in groups for trace in traces for run in trace.runs)
        nodes = {event.node for run in runs for event in run.of(t.Backward)}
        return {n.at for node in nodes for n in (node, self.borders.leads.get(node, node))}


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


def _passed(traces: Iterable[t.Trace]) -> set[object]:
    """The places of the backward calls that some of the traces come to."""
    return set[object]().union(*map(goes_backward, traces))
