"""Plans the run for a finding: its file, the path on which it was found, and the passes."""

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
from accumlint.confirming.passes import Overrides, Spec, passes
from accumlint.diagnostics.results.report import Mark, Report
from accumlint.files.inputs.discovery import Target
from accumlint.reading import ir as p
from accumlint.reading.gradient_slice import Relevance
from accumlint.reading.program import Program
from accumlint.rule import Finding, Rule, Symptom
from accumlint.tracing import Exploration
from accumlint.tracing import trace as t
from accumlint.tracing.framework_driver import ending_flags

# Symptoms in the order of events, which hold for any loss; and symptoms in the gradient's direction, which a common
# factor of all micro-batches does not change.
ORDER_SYMPTOMS = frozenset({
    Symptom.RAISES, Symptom.SPREAD, Symptom.REDUCTIONS, Symptom.LEFT, Symptom.SIZES, Symptom.STEPS,
    Symptom.SCHEDULES, Symptom.AVERAGES, Symptom.STUCK,
})  # fmt: skip
# Symptoms in the gradient's size, which hold for any loss that is computed in the file.
SIZE_SYMPTOMS = frozenset({Symptom.SCALE, Symptom.SKIPPED})
AMOUNT_SYMPTOMS = frozenset({Symptom.GRADIENT, Symptom.SCALE})
DIRECTION_SYMPTOMS = frozenset({Symptom.GRADIENT, Symptom.CLIPPED, Symptom.MISSED, Symptom.PARTIAL})


# Methods that a subclass of the transformers Trainer overrides.
_TRAINERS = ("compute_loss", "training_step")


# A choice on a value that may be an attribute.
_SETTABLE = re.compile(r"(?!(self|not)\b)[a-z_]\w*(?!\w*\()", re.IGNORECASE)
# FSDP reduces on an accelerator only, and DataParallel in one process.
_UNREDUCED = re.compile(
    r"FSDP|fsdp|FullySharded|fully_shard|\A(?!.*(DDP|DistributedData)).*\bDataParallel\(", re.DOTALL
)


@frozen
class Job:
    """A loop to run, as plain values for JSON.

    Positions are (line, column) from 1. `entry` names the function to call, None for the module as a script. At the
    lines `averages` a running average of the weights moves; `clippers` are calls that clip without being torch's.
    `unwrapped`: no wrapper in the file, although the loop `reduces` gradients over ranks. `pads`: padding tokens are
    compared; `cuts`: batches are cut into pieces; `graphs`: retained graphs are counted; `epochs`: the script's epoch
    length matters. `accumulates`: there are windows of several micro-batches. `lenient`: the computation of the loss
    may fail, since the finding is about the order of events; `exact`: the size of the loss counts, and its computation
    does not depend on the window; `undivided`: nor does a named loss. `stepless`: an optimizer that never steps may be
    the defect. `shortens`: the defect may be a window that lacks a micro-batch and is divided as if it were whole.
    `scripted`: an engine steps at every call. `scaled`: a GradScaler scales the loss on the path of the finding.
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
    shortens: bool
    scripted: bool
    scaled: bool
    passes: tuple[Spec, ...]

    def plain(self) -> dict[str, Any]:
        return asdict(self)


@frozen
class Plan:
    """A finding with its job; without one, `reason` says why it cannot run."""

    report: Report
    rule: Rule
    ranks: int
    job: Job | None
    reason: str = ""
    arm: str = "found"

    @property
    def symptom(self) -> Symptom:
        """The symptom that the run looks for."""
        return self.rule.shows


def planned(examined: Examined, lines: frozenset[int], overrides: Overrides) -> Iterator[Plan]:
    """The plans for the findings of a file, only at `lines` if any."""
    for report in examined.checked.reports:
        finding = examined.finding(report)
        if finding is None or (lines and report.mark.place.line not in lines):
            continue
        # The run starts in this file, whatever its callers show.
        trace = _trace(finding, examined.exploration.alone or examined.exploration)
        totals = _totals(finding, trace)
        yield _Question(
            report, finding.rule, totals, trace, examined, finding.node, overrides
        ).plan()


def replanned(plan: Plan, examined: Examined, overrides: Overrides) -> Plan:
    """The plan for another text of the file, in which the finding may be gone."""
    every = examined.exploration.traces
    usual = [traces[0] for traces in every if not traces[0].exceptional][:1]
    choices = plan.job.choices if plan.job else {}
    # The most similar path to that of the finding.
    paths = (*usual, *(trace for traces in every for trace in traces))
    trace = max(paths, key=lambda trace: _likeness(trace, choices), default=None)
    totals = plan.job.totals if plan.job else _added(trace)
    made = _Question(plan.report, plan.rule, totals, trace, examined, None, overrides).plan()
    if plan.job is None or made.job is None:
        return made
    # Roles that the new text does not show are taken from the old one.
    return replace(made, job=replace(made.job, roles={**plan.job.roles, **made.job.roles}))


def question(
    rule: Rule, trace: t.Trace, examined: Examined, target: Target, overrides: Overrides
) -> Plan:
    """The plan for a rule on a path without a finding."""
    loop = trace.main.of(t.Backward)
    mark = Mark(examined.program.place(loop[0].node) if loop else Place(1, 1, 1, 1), "")
    report = Report(target.shown, target.file, rule.code, rule.name, "", "", "", mark)
    return _Question(report, rule, _added(trace), trace, examined, None, overrides).plan()


def _likeness(trace: t.Trace, choices: Mapping[str, str]) -> int:
    return sum(choices.get(key) == choice for key, choice in trace.assumptions)


def _trace(finding: Finding, exploration: Exploration) -> t.Trace | None:
    """The simplest path of a finding; for a finding about ranks, one on which they reduce."""
    rule = finding.rule
    plainest: t.Trace | None = None
    for trace in (trace for traces in exploration.traces for trace in traces):
        found = rule.findings(trace) if trace.exceptional == rule.exceptional else ()
        if any(other.node.at is finding.node.at for other in found):
            if rule.ranks < 2 or run_hints.is_distributed(trace.main.events):
                return trace
            plainest = plainest or trace
    return plainest or next((traces[0] for traces in exploration.traces), None)


@frozen
class _Question:
    """A rule's question about a path through a file, None for no path; `node` is the place of a finding."""

    report: Report
    rule: Rule
    totals: tuple[str, ...]
    trace: t.Trace | None
    examined: Examined
    node: p.Node | None
    overrides: Overrides

    @property
    def events(self) -> Sequence[t.Event]:
        return self.trace.main.events if self.trace else ()

    def plan(self) -> Plan:
        """The plan of the run that answers it."""
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
            made = p.dotted(self.node.func) if isinstance(self.node, p.Call) else ""
            if made.endswith("Trainer"):
                unfollowed = f"`{made}` holds the loop, and a fake of it would only repeat what the finding says"
            return Plan(self.report, rule, 1, None, reason or unfollowed)
        several = 2 if run_hints.is_distributed(self.events, rule.symptom) else 1
        ranks = self.overrides.ranks or max(several, rule.ranks)
        return Plan(self.report, rule, ranks, self._job(entry, slice_))

    def _entry(self, slice_: Relevance) -> dict[str, str | None]:
        """The entry of the run; {} where nothing can run."""
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
        """The job for the worker process."""
        program, trace, events = self.examined.program, self.trace, self.events
        symptom, text, file = self.rule.shows, program.text, self.report.file
        owner = entry["owner"] or ""
        via = {e.via for e in events if isinstance(e, t.Backward)}
        accelerate = "accelerator" in via or "ccelerator" in text
        # A finding about reductions implies a wrapper, possibly in an absent helper.
        reports_wrapper = self.node is not None and symptom is Symptom.REDUCTIONS
        exact = symptom in SIZE_SYMPTOMS and not run_hints.knows_window(program)
        # A framework calls methods that the source does not call.
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
            unwrapped=run_hints.is_unwrapped(events, text, reports_wrapper),
            reduces=not _UNREDUCED.search(text)
            and (reports_wrapper or run_hints.reduces(events, symptom in AMOUNT_SYMPTOMS)),
            accumulates=trace is None or any(len(w.backwarded) > 1 for w in trace.main.windows),
            lenient=symptom in ORDER_SYMPTOMS | DIRECTION_SYMPTOMS or exact,
            exact=exact,
            undivided=exact and not run_hints.divides(program),
            stepless=symptom is Symptom.MISSED,
            shortens=symptom is Symptom.SKIPPED and run_hints.is_in_one_window(program, self.node),
            scripted=run_hints.is_scripted(events, text),
            scaled="scaler" in via and not run_hints.disables(program),
            passes=tuple(
                replace(
                    spec, exhausts=bool(spec.poison) and run_hints.gives_up(program, self.node),
                    withholds=bool(spec.poison) and run_hints.guards_against_none(program, self.node),
                )
                for spec in passes(symptom, self.overrides)
                if not spec.undefined or "isnan" in text
            ),
        )  # fmt: skip


def _unparsable(text: str) -> str:
    """Why the running Python cannot parse a text, "" where it can."""
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
    """The choices of a path by text; in a class, a parameter may be an attribute of the same name."""
    found = dict(trace.assumptions)
    kept = {f"self.{text}": choice for text, choice in found.items() if _SETTABLE.match(text)}
    return (kept if owner else {}) | found


def _stepping(owner: str, trace: t.Trace, program: Program) -> str:
    """The uncalled method of a class that steps, where the entry only goes backward; "" for none."""
    if trace.main.of(t.Step):
        return ""
    for cls in program.body:
        if isinstance(cls, p.Class) and cls.name == owner:
            called = {name.rpartition(".")[2] for m in cls.methods.values() for name in m.calls}
            for name, method in cls.methods.items():
                required = [param for param in method.params[1:] if param.default is None]
                steps = any(c.endswith(".step") for c in method.calls)
                if steps and not required and (name not in called or name == "step"):
                    return name
    return ""


def _is_of_trainer(entry: t.Entry, program: Program) -> bool:
    """True for a step that only the transformers Trainer calls."""
    function = entry.function
    return (
        function is not None
        and function.name in _TRAINERS
        and "transformers" in program.text
        and any(base.endswith("Trainer") for base in function.bases)
    )


def _driver(program: Program, owner: str) -> dict[str, str | None]:
    """The framework that runs a class (of name `owner`, if known) or function of the file; {} for none."""
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
        if isinstance(node, p.Call) and (function := node.keyword("compute_loss_func")) is not None:
            return {"function": p.dotted(function), "driver": "loss"}
    return {}


def _is_module(statement: p.Stmt) -> bool:
    """True for a class of Lightning's."""
    return isinstance(statement, p.Class) and any(
        base.endswith("LightningModule") for base in statement.bases
    )


def _forward(program: Program, owner: str) -> Iterator[p.Stmt]:
    """The forward of the owner class, which no statement calls by name."""
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
    """The running totals of a finding: those that its statement adds to."""
    if trace is None:
        return ()
    filled = [e.subject for e in trace.main.of(t.Put) if e.node.at is finding.node.at]
    found = [
        e.total
        for e in trace.main.of(t.Add)
        if e.node.at is finding.node.at or finding.rule.shows in (Symptom.ATTACHED, Symptom.GROWING)
    ]
    return tuple(dict.fromkeys(filled or found))


def _added(trace: t.Trace | None) -> tuple[str, ...]:
    """All running totals of a loop, and the tensors that it fills."""
    if trace is None:
        return ()
    added = [e.total for e in trace.main.of(t.Add)]
    return tuple(dict.fromkeys([*added, *(e.subject for e in trace.main.of(t.Put))]))
