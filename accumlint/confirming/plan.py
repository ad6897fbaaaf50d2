"""What to run for a finding: its file, the path through it that the finding was seen on, and the passes to make."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from accumlint.check import Examined
from accumlint.common.frozen import frozen
from accumlint.common.place import Place
from accumlint.confirming import run_hints
from accumlint.confirming.import_roots import package, roots_of
from accumlint.confirming.passes import Spec, Wish, passes
from accumlint.diagnostics.results.report import Mark, Report
from accumlint.files.inputs.discovery import Target
from accumlint.reading import ir as p
from accumlint.reading.gradient_slice import Relevance
from accumlint.reading.program import Program
from accumlint.rule import Finding, Rule, Symptom
from accumlint.tracing import Exploration
from accumlint.tracing import trace as t
from accumlint.tracing.framework_driver import ending_flags

# Symptoms that show in when things happen, whatever the loss is; and those that show in a gradient's direction, to
# which a factor that is the same in every micro-batch does nothing.
OF_ORDER = frozenset({
    Symptom.RAISES, Symptom.SPREAD, Symptom.REDUCTIONS, Symptom.LEFT, Symptom.SIZES, Symptom.STEPS,
    Symptom.SCHEDULES, Symptom.AVERAGES, Symptom.STUCK,
})  # fmt: skip
# Those that show in how large a gradient is, whatever its loss, as long as all of that loss is computed here.
OF_SIZE = frozenset({Symptom.SCALE, Symptom.SKIPPED})
OF_AMOUNT = frozenset({Symptom.GRADIENT, Symptom.SCALE})
OF_DIRECTION = frozenset({Symptom.GRADIENT, Symptom.CLIPPED, Symptom.MISSED, Symptom.PARTIAL})


# Methods by which a subclass of the Trainer of transformers takes part in its loop.
_TRAINERS = ("compute_loss", "training_step")


# A choice by what an object may have been given.
_GIVEN = re.compile(r"(?!(self|not)\b)[a-z_]\w*(?!\w*\()", re.IGNORECASE)
_FSDP = re.compile(r"FSDP|fsdp|FullySharded|fully_shard")


@frozen
class Job:
    """All that a process needs to know to run a loop; plain values, sent as JSON.

    Positions are (line, column) from 1. `entry` names the function to call, None for the module as a script. At the
    lines `averages` a running average of the weights moves; `clippers` are calls that clip without being torch's.
    `unwrapped`: nothing in the file wraps what `reduces` its gradients over ranks. `pads`: tokens are compared with
    that of padding; `cuts`: batches are cut into pieces; `graphs`: what graphs keep is to be watched; `epochs`: how
    long the script's own are counts. `accumulates`:
    windows of several micro-batches are known to be there. `lenient`: what the loop computes its loss from may fail,
    since the finding is about when things happen; `exact`: how large a loss is counts, and nothing that it is computed
    from knows of a window; `undivided`: nor is it divided by a window's size under its name. `stepless`: an optimizer
    that never steps may be what was found. `scripted`: an engine steps whenever it is asked to. `steppers`: names of
    what steps and clears. `scaled`: a GradScaler multiplies the loss on the path of the finding.
    """

    file: str
    text: str
    module: str
    package: str
    roots: tuple[str, ...]
    line: int
    entry: dict[str, str | None]
    kept: tuple[tuple[int, int], ...]
    eventful: tuple[tuple[int, int], ...]
    leave_out: tuple[tuple[int, int], ...]
    roles: dict[str, str]
    choices: dict[str, str]
    kind: str
    ignored: int
    pads: bool
    cuts: bool
    totals: tuple[str, ...]
    averages: tuple[int, ...]
    clippers: tuple[tuple[int, int], ...]
    graphs: bool
    epochs: bool
    distributed: bool
    accelerate: bool
    unwrapped: bool
    reduces: bool
    accumulates: bool
    lenient: bool
    exact: bool
    undivided: bool
    stepless: bool
    scripted: bool
    steppers: tuple[str, ...]
    scaled: bool
    passes: tuple[Spec, ...]

    def plain(self) -> dict[str, Any]:
        return asdict(self)


@frozen
class Plan:
    """A finding and the job that is to prove it; None where nothing can be run, and then `reason`."""

    report: Report
    rule: Rule
    ranks: int
    job: Job | None
    reason: str = ""
    arm: str = "found"

    @property
    def symptom(self) -> Symptom:
        """What the run is to show."""
        return self.rule.shows


def planned(examined: Examined, lines: frozenset[int], wish: Wish) -> Iterator[Plan]:
    """The plans for the findings in a file, for those at `lines` where any are named."""
    for report in examined.checked.reports:
        finding = examined.finding(report)
        if finding is None or (lines and report.mark.place.line not in lines):
            continue
        # What is run starts in this file, whatever its callers have shown.
        trace = _trace(finding, examined.exploration.alone or examined.exploration)
        totals = _totals(finding, trace)
        yield _Question(report, finding.rule, totals, trace, examined, finding.node, wish).plan()


def again(plan: Plan, examined: Examined, wish: Wish) -> Plan:
    """The same question put to another text of the file, in which the finding may be gone."""
    every = examined.exploration.traces
    usual = [traces[0] for traces in every if not traces[0].exceptional][:1]
    choices = plan.job.choices if plan.job else {}
    # The path that the finding was seen on, or the one most like it.
    paths = (*usual, *(trace for traces in every for trace in traces))
    trace = max(paths, key=lambda trace: _likeness(trace, choices), default=None)
    totals = plan.job.totals if plan.job else _added(trace)
    made = _Question(plan.report, plan.rule, totals, trace, examined, None, wish).plan()
    if plan.job is None or made.job is None:
        return made
    # A name that the new text does not tell the role of has that of the old one.
    return replace(made, job=replace(made.job, roles={**plan.job.roles, **made.job.roles}))


def question(rule: Rule, trace: t.Trace, examined: Examined, target: Target, wish: Wish) -> Plan:
    """What a rule would ask of a path on which it has found nothing."""
    loop = trace.main.of(t.Backward)
    mark = Mark(examined.program.place(loop[0].node) if loop else Place(1, 1, 1, 1), "")
    report = Report(target.shown, target.file, rule.code, rule.name, "", "", "", mark)
    return _Question(report, rule, _added(trace), trace, examined, None, wish).plan()


def _likeness(trace: t.Trace, choices: Mapping[str, str]) -> int:
    return sum(choices.get(key) == choice for key, choice in trace.assumptions)


def _trace(finding: Finding, exploration: Exploration) -> t.Trace | None:
    """The plainest path on which a finding was seen; where it is about ranks, of those on which they reduce."""
    rule = finding.rule
    plainest: t.Trace | None = None
    for trace in (trace for traces in exploration.traces for trace in traces):
        found = rule.check(trace) if trace.exceptional == rule.exceptional else ()
        if any(other.node.at is finding.node.at for other in found):
            if rule.ranks < 2 or run_hints.is_distributed(trace.main.events):
                return trace
            plainest = plainest or trace
    return plainest or next((traces[0] for traces in exploration.traces), None)


@frozen
class _Question:
    """The question of a rule to a path through a file, None for no path; at the node where it has found something."""

    report: Report
    rule: Rule
    totals: tuple[str, ...]
    trace: t.Trace | None
    examined: Examined
    node: p.Node | None
    wish: Wish

    @property
    def events(self) -> Sequence[t.Event]:
        return self.trace.main.events if self.trace else ()

    def plan(self) -> Plan:
        """What is to be run to answer it."""
        rule, behind = self.rule, self.report.behind
        hidden = f"{behind} hides it: mend that first, then confirm again" if behind else ""
        program = self.examined.program
        reason = rule.unmeasured or hidden or _unparsable(program.text)
        if rule.symptom is Symptom.SKIPPED and not run_hints.leaves_out(program, self.node):
            reason = reason or "nothing that the stubs return is what its guard leaves out"
        slice_ = self.examined.project.slice_of(program)[0]
        entry = {} if reason else self._entry(slice_)
        if not entry:
            unfollowed = "no loop around it could be followed, so there is nothing to run"
            return Plan(self.report, rule, 1, None, reason or unfollowed)
        several = 2 if run_hints.is_distributed(self.events) else 1
        ranks = self.wish.ranks or max(several, rule.ranks)
        return Plan(self.report, rule, ranks, self._job(entry, slice_))

    def _entry(self, slice_: Relevance) -> dict[str, str | None]:
        """Where a run starts, in plain words; {} where nothing can be run."""
        program, trace = self.examined.program, self.trace
        found: dict[str, str | None] = {
            "function": None, "owner": "", "maker": None, "maker_owner": "", "calls": "once", "driver": "",
            "stepping": "", "ending": "",
        }  # fmt: skip
        driven = trace.entry.driven if trace else None
        if trace is None or driven is not None or _is_of_trainer(trace.entry, program):
            if driver := _driver(program, driven.function.owner if driven else ""):
                return found | driver
        if trace is None:
            return {}
        entry = trace.entry
        owner = entry.owner or (entry.function.owner if entry.function else "")
        found |= {"owner": owner, "calls": entry.calls}
        if entry.function is not None:
            found["function"] = entry.function.name
        if entry.maker is not None:
            found |= {"maker": entry.maker.name, "maker_owner": entry.maker.owner}
        if entry.calls == "microbatch":
            found["stepping"] = _stepping(owner, trace, program)
            if entry.function is not None:
                flags = ending_flags(entry.function, trace.program.functions, slice_)
                found["ending"] = min(flags, default="")
        return found

    def _job(self, entry: dict[str, str | None], slice_: Relevance) -> Job:
        """What a process needs to know."""
        program, trace, events = self.examined.program, self.trace, self.events
        symptom, text, file = self.rule.shows, program.text, self.report.file
        owner = entry["owner"] or ""
        via = {e.via for e in events if isinstance(e, t.Backward)}
        accelerate = "accelerator" in via or "ccelerator" in text
        # A finding about reductions knows of a wrapper, were it in a helper that is not here.
        told = self.node is not None and symptom is Symptom.REDUCTIONS
        exact = symptom in OF_SIZE and not run_hints.knows_window(program)
        # A framework calls methods that no statement of the source calls.
        is_driven = bool(entry["driver"]) or any(map(_is_module, program.body))
        kept = _statements(program.body) if is_driven else (*slice_.kept, *_forward(program, owner))
        calls = trace is not None and trace.entry.function is not None
        trains = (s for s in program.body if calls and s in slice_.backwards)
        _, package_name = package(Path(file))
        return Job(
            file=file,
            text=text,
            module=".".join(filter(None, (package_name, Path(file).stem))),
            package=package_name,
            roots=roots_of(file),
            line=(program.place(self.node) if self.node else self.report.mark.place).line,
            entry=entry,
            kept=_places(program, kept),
            eventful=_places(program, slice_.eventful),
            leave_out=_places(program, (s for s in trains if not isinstance(s, p.Function | p.Class))),
            roles=run_hints.of_program(program) | run_hints.roles(events) | run_hints.engines(events),
            choices=_choices(trace, owner) if trace else {},
            kind=run_hints.kind(text),
            ignored=run_hints.ignored(program),
            pads=run_hints.pads(program) or run_hints.ignored(program) == 0,
            cuts=run_hints.cuts(program),
            totals=self.totals,
            averages=tuple(sorted({program.place(e.node).line for e in events if isinstance(e, t.Average)})),
            clippers=_places(program, run_hints.clippers(events)),
            graphs=symptom is Symptom.HELD,
            epochs=symptom in (Symptom.LEFT, Symptom.PARTIAL),
            distributed=run_hints.is_distributed(events) or "distributed" in text or accelerate,
            accelerate=accelerate,
            unwrapped=run_hints.is_unwrapped(events, text, told),
            # FSDP reduces on an accelerator only.
            reduces=(told or run_hints.reduces(events, symptom in OF_AMOUNT)) and not _FSDP.search(text),
            accumulates=trace is None or any(len(w.backwarded) > 1 for w in trace.main.windows),
            lenient=symptom in OF_ORDER | OF_DIRECTION or exact,
            exact=exact,
            undivided=exact and not run_hints.divides(program),
            stepless=symptom is Symptom.MISSED,
            scripted=run_hints.is_scripted(events, text),
            steppers=tuple(sorted(run_hints.steppers(program))),
            scaled="scaler" in via and not run_hints.disables(program),
            passes=tuple(
                replace(spec, exhausts=bool(spec.poison) and run_hints.gives_up(program, self.node))
                for spec in passes(symptom, self.wish)
                if not spec.undefined or "isnan" in text
            ),
        )  # fmt: skip


def _unparsable(text: str) -> str:
    """Why the Python that is here cannot run a text, "" where it can."""
    try:
        ast.parse(text)
    except SyntaxError as problem:
        here = ".".join(map(str, sys.version_info[:2]))
        return (
            f"Python {here}, which runs the loop, cannot parse line {problem.lineno}: {problem.msg};"
            " install accumlint beside the Python that the loop is written for"
        )
    return ""


def _choices(trace: t.Trace, owner: str) -> dict[str, str]:
    """The choices of a path by their text; in a class, what it was given may be an attribute of the same name."""
    found = dict(trace.assumptions)
    kept = {f"self.{text}": choice for text, choice in found.items() if _GIVEN.match(text)}
    return (kept if owner else {}) | found


def _stepping(owner: str, trace: t.Trace, program: Program) -> str:
    """The method of a class that steps where its entry only goes backward, and that no method calls; "" for none."""
    if trace.main.of(t.Step):
        return ""
    for cls in program.body:
        if isinstance(cls, p.Class) and cls.name == owner:
            called = {name.rpartition(".")[2] for m in cls.methods.values() for name in m.calls}
            for name, method in cls.methods.items():
                given = [param for param in method.params[1:] if param.default is None]
                steps = any(c.endswith(".step") for c in method.calls)
                if steps and not given and (name not in called or name == "step"):
                    return name
    return ""


def _is_of_trainer(entry: t.Entry, program: Program) -> bool:
    """True for a step that only the Trainer of transformers calls."""
    function = entry.function
    return (
        function is not None
        and function.name in _TRAINERS
        and "transformers" in program.text
        and any(base.endswith("Trainer") for base in function.bases)
    )


def _driver(program: Program, owner: str) -> dict[str, str | None]:
    """The framework whose loop runs what a file has, and the class or function that it is given; {} for none.

    The class is the `owner`, where that is known.
    """
    for cls in program.body:
        if not isinstance(cls, p.Class) or (owner and cls.name != owner):
            continue
        if _is_module(cls) and "training_step" in cls.methods:
            return {"owner": cls.name, "driver": "module"}
        trains = _TRAINERS if "transformers" in program.text else _TRAINERS[:1]
        is_trainer = any(base.endswith("Trainer") for base in cls.bases)
        if is_trainer and not cls.methods.keys().isdisjoint(trains):
            return {"owner": cls.name, "driver": "trainer"}
    for node in p.walk(program.body):
        if isinstance(node, p.Call) and (given := node.keyword("compute_loss_func")) is not None:
            return {"function": p.dotted(given), "driver": "loss"}
    return {}


def _is_module(statement: p.Stmt) -> bool:
    """True for a class of Lightning's."""
    return isinstance(statement, p.Class) and any(
        base.endswith("LightningModule") for base in statement.bases
    )


def _forward(program: Program, owner: str) -> Iterator[p.Stmt]:
    """The forward of a class that trains itself: nothing in the source calls it by name."""
    for cls in program.body:
        if isinstance(cls, p.Class) and owner == cls.name:
            if (forward := cls.methods.get("forward")) is not None:
                yield from _statements((forward,))


def _statements(body: tuple[p.Stmt, ...]) -> Iterator[p.Stmt]:
    """Every statement."""
    return (node for node in p.walk(body) if isinstance(node, p.Stmt))


def _places(program: Program, nodes: Iterable[p.Node]) -> tuple[tuple[int, int], ...]:
    places = (program.place(node) for node in nodes)
    return tuple(sorted({(place.line, place.column) for place in places}))


def _totals(finding: Finding, trace: t.Trace | None) -> tuple[str, ...]:
    """The running totals that a finding speaks of: those added to where it stands."""
    if trace is None:
        return ()
    put = [e.subject for e in trace.main.of(t.Put) if e.node.at is finding.node.at]
    found = [
        e.total
        for e in trace.main.of(t.Add)
        if e.node.at is finding.node.at or finding.rule.shows in (Symptom.ATTACHED, Symptom.GROWING)
    ]
    return tuple(dict.fromkeys(put or found))


def _added(trace: t.Trace | None) -> tuple[str, ...]:
    """All running totals of a loop, and the tensors that it fills."""
    if trace is None:
        return ()
    added = [e.total for e in trace.main.of(t.Add)]
    return tuple(dict.fromkeys([*added, *(e.subject for e in trace.main.of(t.Put))]))
