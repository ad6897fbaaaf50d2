"""What to run for a finding: its file, the path through it that the finding was seen on, and the passes to make."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from accumlint.check import Examined
from accumlint.common.frozen import frozen
from accumlint.common.place import Place
from accumlint.confirming import run_hints
from accumlint.confirming.import_roots import package, roots_of
from accumlint.confirming.passes import Spec, Wish, passes
from accumlint.inputs.discovery import Target
from accumlint.reading import ir as p
from accumlint.reading.program import Program
from accumlint.results.report import Mark, Report
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
    symptom: Symptom
    ranks: int
    job: Job | None
    reason: str = ""
    arm: str = "found"


def planned(
    examined: Examined, target: Target, lines: frozenset[int], wish: Wish
) -> Iterator[Plan]:
    """The plans for the findings in a file, for those at `lines` where any are named."""
    for report in examined.checked.reports:
        finding = examined.finding(report)
        if finding is None or (lines and report.mark.place.line not in lines):
            continue
        # What is run starts in this file, whatever its callers have shown.
        trace = _trace(finding, examined.exploration.alone or examined.exploration)
        totals = _totals(finding, trace)
        yield _plan(report, finding.rule, totals, trace, examined, finding.node, target, wish)


def again(plan: Plan, examined: Examined, target: Target, wish: Wish) -> Plan:
    """The same question put to another text of the file, in which the finding may be gone."""
    exploration = examined.exploration
    trace = next((traces[0] for traces in exploration.traces if not traces[0].exceptional), None)
    choices = dict(plan.job.choices) if plan.job else {}
    for traces in exploration.traces:
        # The path that the finding was seen on, or the one most like it.
        for other in traces:
            if trace is None or _likeness(other, choices) > _likeness(trace, choices):
                trace = other
    totals = plan.job.totals if plan.job else _added(trace)
    made = _plan(plan.report, plan.rule, totals, trace, examined, None, target, wish)
    if plan.job is None or made.job is None:
        return made
    # A name that the new text does not tell the role of has that of the old one.
    return replace(made, job=replace(made.job, roles={**plan.job.roles, **made.job.roles}))


def question(rule: Rule, trace: t.Trace, examined: Examined, target: Target, wish: Wish) -> Plan:
    """What a rule would ask of a path on which it has found nothing."""
    loop = trace.main.of(t.Backward)
    mark = Mark(examined.program.place(loop[0].node) if loop else Place(1, 1, 1, 1), "")
    report = Report(target.shown, target.file, rule.code, rule.name, "", "", "", mark)
    return _plan(report, rule, _added(trace), trace, examined, None, target, wish)


def _likeness(trace: t.Trace, choices: dict[str, str]) -> int:
    return sum(choices.get(key) == choice for key, choice in trace.assumptions)


def _trace(finding: Finding, exploration: Exploration) -> t.Trace | None:
    """The plainest path on which a finding was seen; where it is about ranks, of those on which they reduce."""
    plainest: t.Trace | None = None
    for traces in exploration.traces:
        for trace in traces:
            if trace.exceptional == finding.rule.exceptional and any(
                other.node.at is finding.node.at for other in finding.rule.check(trace)
            ):
                if finding.rule.ranks < 2 or run_hints.is_distributed(trace.main.events):
                    return trace
                plainest = plainest or trace
    return plainest or next((traces[0] for traces in exploration.traces), None)


def _plan(
    report: Report,
    rule: Rule,
    totals: tuple[str, ...],
    trace: t.Trace | None,
    examined: Examined,
    node: p.Node | None,
    target: Target,
    wish: Wish,
) -> Plan:
    program = examined.program
    slice_ = examined.project.slice_of(program)[0]
    symptom, text = rule.shows, program.text
    if rule.unmeasured:
        return Plan(report, rule, symptom, 1, None, rule.unmeasured)
    if report.behind:
        reason = f"{report.behind} hides it: mend that first, then confirm again"
        return Plan(report, rule, symptom, 1, None, reason)
    if reason := _unparsable(text):
        return Plan(report, rule, symptom, 1, None, reason)
    driven = trace.entry.driven if trace else None
    owner = driven.function.owner if driven else ""
    by_trainer = trace is None or driven is not None or _is_of_trainer(trace.entry, program)
    driver = _driver(program, owner) if by_trainer else {}
    if trace is None and not driver:
        reason = "no loop around it could be followed, so there is nothing to run"
        return Plan(report, rule, symptom, 1, None, reason)
    events = trace.main.events if trace else ()
    distributed = run_hints.is_distributed(events)
    # A finding about reductions knows of a wrapper, were it in a helper that is not here.
    told = node is not None and symptom is Symptom.REDUCTIONS
    world = wish.ranks or max(2 if distributed else 1, rule.ranks)
    # A framework calls methods that no statement of the source calls.
    is_driven = bool(driver) or any(map(_is_module, program.body))
    _, package_name = package(Path(target.file))
    accelerate = any(isinstance(e, t.Backward) and e.via == "accelerator" for e in events) or (
        "ccelerator" in text
    )
    entry = driver or (_entry(trace.entry) if trace else {})
    if stepping := _stepping(entry, trace, program):
        entry["stepping"] = stepping
    if (
        entry.get("calls") == "microbatch"
        and trace is not None
        and trace.entry.function is not None
    ):
        entry["ending"] = min(
            ending_flags(trace.entry.function, trace.program.functions, slice_), default=""
        )
    exact = symptom in OF_SIZE and not run_hints.knows_window(program)
    job = Job(
        file=target.file,
        text=text,
        module=".".join(part for part in (package_name, Path(target.file).stem) if part),
        package=package_name,
        roots=roots_of(target.file),
        line=program.place(node).line if node else report.mark.place.line,
        entry=entry,
        kept=_places(
            program,
            _statements(program.body) if is_driven else (*slice_.kept, *_forward(program, trace)),
        ),
        eventful=_places(program, slice_.eventful),
        leave_out=_places(
            program,
            (
                s
                for s in program.body
                if trace is not None
                and trace.entry.function is not None
                and s in slice_.backwards
                and not isinstance(s, p.Function | p.Class)
            ),
        ),
        roles=run_hints.masks(program)
        | run_hints.pieces(program)
        | run_hints.windows(program)
        | run_hints.roles(events)
        | run_hints.engines(events)
        | run_hints.settings(program)
        | run_hints.criteria(program),
        choices=_choices(trace, entry.get("owner") or "") if trace else {},
        kind=run_hints.kind(text),
        ignored=run_hints.ignored(program),
        pads=run_hints.pads(program) or run_hints.ignored(program) == 0,
        cuts=run_hints.cuts(program),
        totals=totals,
        averages=tuple(
            sorted({program.place(e.node).line for e in events if isinstance(e, t.Average)})
        ),
        clippers=_places(program, run_hints.clippers(events)),
        graphs=symptom is Symptom.HELD,
        epochs=symptom in (Symptom.LEFT, Symptom.PARTIAL),
        distributed=distributed or "distributed" in text or accelerate,
        accelerate=accelerate,
        unwrapped=run_hints.is_unwrapped(events, text, told),
        # FSDP reduces on an accelerator only.
        reduces=(told or run_hints.reduces(events, symptom in OF_AMOUNT))
        and not _FSDP.search(text),
        accumulates=trace is None or any(len(w.backwarded) > 1 for w in trace.main.windows),
        lenient=symptom in OF_ORDER | OF_DIRECTION or exact,
        exact=exact,
        undivided=exact and not run_hints.divides(program),
        stepless=symptom is Symptom.MISSED,
        scripted=run_hints.is_scripted(events, text),
        steppers=tuple(sorted(run_hints.steppers(program))),
        scaled=any(isinstance(e, t.Backward) and e.via == "scaler" for e in events)
        and not run_hints.disables(program),
        passes=tuple(
            replace(spec, exhausts=bool(spec.poison) and run_hints.gives_up(program, node))
            for spec in passes(symptom, wish)
            if not spec.undefined or "isnan" in text
        ),
    )
    return Plan(report, rule, symptom, world, job)


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


def _entry(entry: t.Entry) -> dict[str, str | None]:
    """Where a run starts, in plain words."""
    return {
        "function": entry.function.name if entry.function else None,
        "owner": entry.owner or (entry.function.owner if entry.function else ""),
        "maker": entry.maker.name if entry.maker else None,
        "maker_owner": entry.maker.owner if entry.maker else "",
        "calls": entry.calls,
        "driver": "",
        "stepping": "",
        "ending": "",
    }


def _stepping(entry: dict[str, str | None], trace: t.Trace | None, program: Program) -> str:
    """The method that steps where an entry only goes backward, and no method of its class calls it; "" for none."""
    if entry.get("calls") != "microbatch" or trace is None or trace.main.of(t.Step):
        return ""
    for cls in program.body:
        if isinstance(cls, p.Class) and cls.name == entry["owner"]:
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
    made: dict[str, str | None] = {
        "function": None, "owner": "", "maker": None, "maker_owner": "", "calls": "once", "stepping": "",
        "ending": "",
    }  # fmt: skip
    for cls in program.body:
        if not isinstance(cls, p.Class) or (owner and cls.name != owner):
            continue
        if _is_module(cls) and "training_step" in cls.methods:
            return {**made, "owner": cls.name, "driver": "module"}
        trains = _TRAINERS if "transformers" in program.text else _TRAINERS[:1]
        if any(base.endswith("Trainer") for base in cls.bases) and any(
            name in cls.methods for name in trains
        ):
            return {**made, "owner": cls.name, "driver": "trainer"}
    for node in p.walk(program.body):
        if isinstance(node, p.Call) and (given := node.keyword("compute_loss_func")) is not None:
            return {**made, "function": p.dotted(given), "driver": "loss"}
    return {}


def _is_module(statement: p.Stmt) -> bool:
    """True for a class of Lightning's."""
    return isinstance(statement, p.Class) and any(
        base.endswith("LightningModule") for base in statement.bases
    )


def _forward(program: Program, trace: t.Trace | None) -> Iterator[p.Stmt]:
    """The forward of a class that trains itself: nothing in the source calls it by name."""
    entry = _entry(trace.entry) if trace else {}
    for cls in program.body:
        if isinstance(cls, p.Class) and entry.get("owner") == cls.name:
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
