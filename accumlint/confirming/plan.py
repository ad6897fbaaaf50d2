"""What to run for a finding: its file, the path through it that the finding was seen on, and the passes to make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from accumlint.check import Examined
from accumlint.discovery import Target
from accumlint.place import Place
from accumlint.reading import frameworks
from accumlint.reading import program as p
from accumlint.report import Mark, Report
from accumlint.rule import Finding, Rule, Symptom
from accumlint.tracing import Exploration
from accumlint.tracing import trace as t

STEPS = 4
# Two epochs of two windows, and what the second brings to light.
UPDATES = 6


# Symptoms that show in when things happen, whatever the loss is; and those that show in a gradient's direction, to
# which a factor that is the same in every micro-batch does nothing.
OF_ORDER = frozenset({
    Symptom.RAISES, Symptom.SPREAD, Symptom.REDUCTIONS, Symptom.LEFT, Symptom.SIZES, Symptom.STEPS,
    Symptom.SCHEDULES, Symptom.AVERAGES, Symptom.STUCK,
})  # fmt: skip
OF_DIRECTION = frozenset({Symptom.GRADIENT, Symptom.CLIPPED, Symptom.MISSED, Symptom.PARTIAL})


@dataclass(frozen=True)
class Spec:
    """One pass: its data, the accumulation steps that free counts become, and what is changed for a control.

    `pressure`: clip where the user clips, at a threshold that bites. `unscaled`: GradScalers are switched off.
    `growing`: the loss scale grows with every update.
    `inject` is the micro-batch whose gradient is made infinite, `poison` the one whose loss is no number. `sabotage` is
    what the recorder breaks ("double", "forget", "part", "hurry", "void", "seldom", "schedule", "sync", "keep",
    "retain") or mends ("mend", "average", "regular", "free"); the verdict has words for each.
    """

    regime: str
    steps: int = STEPS
    updates: int = UPDATES
    pressure: bool = False
    unscaled: bool = False
    growing: bool = False
    inject: int = 0
    poison: int = 0
    sabotage: str = ""


@dataclass(frozen=True)
class Job:
    """All that a process needs to know to run a loop; plain values, sent as JSON.

    Positions are (line, column) from 1. `entry` names the function to call, None for the module as a script. At the
    lines `averages` a running average of the weights moves; `graphs`: what graphs keep is to be watched. `accumulates`:
    windows of several micro-batches are known to be there. `lenient`: what the loop computes its loss from may fail,
    since the finding is about when things happen. `stepless`: an optimizer that never steps may be what was found.
    `steppers`: names of what steps and clears. `scaled`: a GradScaler multiplies the loss on the path of the finding.
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
    totals: tuple[str, ...]
    averages: tuple[int, ...]
    graphs: bool
    distributed: bool
    accelerate: bool
    unwrapped: bool
    accumulates: bool
    lenient: bool
    stepless: bool
    steppers: tuple[str, ...]
    scaled: bool
    passes: tuple[Spec, ...]

    def plain(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Plan:
    """A finding and the job that is to prove it; None where nothing can be run, and then `reason`."""

    report: Report
    rule: Rule
    symptom: Symptom
    ranks: int
    job: Job | None
    reason: str = ""
    arm: str = "found"


@dataclass(frozen=True)
class Wish:
    """What the user wants otherwise than the loop's own use suggests: ranks, accumulation steps, updates to see."""

    ranks: int | None = None
    steps: int = STEPS
    updates: int = UPDATES


def planned(
    examined: Examined, target: Target, lines: frozenset[int], wish: Wish
) -> Iterator[Plan]:
    """The plans for the findings in a file, for those at `lines` where any are named."""
    for report in examined.checked.reports:
        finding = examined.finding(report)
        if finding is None or (lines and report.mark.place.line not in lines):
            continue
        trace = _trace(finding, examined.exploration)
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
    return _plan(plan.report, plan.rule, totals, trace, examined, None, target, wish)


def question(rule: Rule, trace: t.Trace, examined: Examined, target: Target, wish: Wish) -> Plan:
    """What a rule would ask of a path on which it has found nothing."""
    loop = trace.main.of(t.Backward)
    mark = Mark(examined.program.place(loop[0].node) if loop else Place(1, 1, 1, 1), "")
    report = Report(target.shown, target.file, rule.code, rule.name, "", "", "", mark)
    return _plan(report, rule, _added(trace), trace, examined, None, target, wish)


def _likeness(trace: t.Trace, choices: dict[str, str]) -> int:
    return sum(choices.get(key) == choice for key, choice in trace.assumptions)


def _trace(finding: Finding, exploration: Exploration) -> t.Trace | None:
    """The path on which a finding was seen: the plainest of them."""
    for traces in exploration.traces:
        for trace in traces:
            if trace.exceptional == finding.rule.exceptional and any(
                other.node.at is finding.node.at for other in finding.rule.check(trace)
            ):
                return trace
    return next((traces[0] for traces in exploration.traces), None)


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
    driver = _driver(program, report.mark.place.line) if trace is None else {}
    if trace is None and not driver:
        reason = "no loop around it could be followed, so there is nothing to run"
        return Plan(report, rule, symptom, 1, None, reason)
    events = trace.main.events if trace else ()
    distributed = _is_distributed(events)
    world = wish.ranks or max(2 if distributed else 1, rule.ranks)
    # A framework calls methods that no statement of the source calls.
    is_driven = bool(driver) or any(map(_is_module, program.body))
    root, package = _package(Path(target.file))
    accelerate = any(isinstance(e, t.Backward) and e.via == "accelerator" for e in events) or (
        "ccelerator" in text
    )
    job = Job(
        file=target.file,
        text=text,
        module=".".join(part for part in (package, Path(target.file).stem) if part),
        package=package,
        roots=tuple(_folders(root, Path(target.file).parent)),
        line=program.place(node).line if node else report.mark.place.line,
        entry=_entry(trace.entry) if trace else driver,
        kept=_places(program, _statements(program.body) if is_driven else slice_.kept),
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
        roles=_roles(events),
        choices=dict(trace.assumptions) if trace else {},
        kind=_kind(text),
        ignored=_ignored(program),
        totals=totals,
        averages=tuple(
            sorted({program.place(e.node).line for e in events if isinstance(e, t.Average)})
        ),
        graphs=symptom is Symptom.HELD,
        distributed=distributed or "distributed" in text or accelerate,
        accelerate=accelerate,
        unwrapped=_is_unwrapped(events, text),
        accumulates=trace is None or any(len(w.backwarded) > 1 for w in trace.main.windows),
        lenient=symptom in OF_ORDER | OF_DIRECTION,
        stepless=symptom is Symptom.MISSED,
        steppers=tuple(sorted(_steppers(program))),
        scaled=any(isinstance(e, t.Backward) and e.via == "scaler" for e in events)
        and not _disables(program),
        passes=tuple(_passes(symptom, wish)),
    )
    return Plan(report, rule, symptom, world, job)


def _entry(entry: t.Entry) -> dict[str, str | None]:
    """Where a run starts, in plain words."""
    return {
        "function": entry.function.name if entry.function else None,
        "owner": entry.owner or (entry.function.owner if entry.function else ""),
        "maker": entry.maker.name if entry.maker else None,
        "maker_owner": entry.maker.owner if entry.maker else "",
        "calls": entry.calls,
        "driver": "",
    }


def _driver(program: p.Program, line: int) -> dict[str, str | None]:
    """The framework whose loop runs what stands at a line, and the class or function that it is given; {} for none."""
    made: dict[str, str | None] = {
        "function": None, "owner": "", "maker": None, "maker_owner": "", "calls": "once",
    }  # fmt: skip
    for cls in program.body:
        if not isinstance(cls, p.Class):
            continue
        if _is_module(cls) and "training_step" in cls.methods:
            return {**made, "owner": cls.name, "driver": "module"}
        if any(base.endswith("Trainer") for base in cls.bases) and "compute_loss" in cls.methods:
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


def _statements(body: tuple[p.Stmt, ...]) -> Iterator[p.Stmt]:
    """Every statement."""
    return (node for node in p.walk(body) if isinstance(node, p.Stmt))


def _is_distributed(events: Iterable[t.Event]) -> bool:
    """True when the loop uses several ranks: a wrapper that reduces, or reductions of its own."""
    for event in events:
        if isinstance(event, t.Forward) and (event.armed is not None or event.bypassed):
            return True
        if isinstance(event, t.NoSync | t.SyncFlag | t.Reduce):
            return True
    return False


def _places(program: p.Program, nodes: Iterable[p.Node]) -> tuple[tuple[int, int], ...]:
    places = (program.place(node) for node in nodes)
    return tuple(sorted({(place.line, place.column) for place in places}))


def _roles(events: Iterable[t.Event]) -> dict[str, str]:
    """Roles by text, as the run saw them."""
    roles: dict[str, str] = {}
    for event in events:
        for name in ("model", "optimizer", "scaler", "scheduler"):
            thing = getattr(event, name, None)
            if isinstance(thing, t.Thing) and thing.text.replace(".", "").isidentifier():
                roles.setdefault(thing.text, thing.role)
    return roles


def _disables(program: p.Program) -> bool:
    """Whether a GradScaler is switched off in so many words."""
    return any(
        isinstance(node, p.Call)
        and (p.dotted(node.func) or "").endswith("GradScaler")
        and isinstance(given := node.keyword("enabled"), p.Const)
        and given.value is False
        for node in program.nodes
    )


def _steppers(program: p.Program) -> set[str]:
    """Names on which both `step` and `zero_grad` are called."""
    called: dict[str, set[str]] = {"step": set(), "zero_grad": set()}
    for node in program.nodes:
        if isinstance(node, p.Call):
            owner, _, method = (p.dotted(node.func) or "").rpartition(".")
            if owner and method in called:
                called[method].add(owner.rpartition(".")[2])
    return called["step"] & called["zero_grad"]


def _is_unwrapped(events: Iterable[t.Event], text: str) -> bool:
    """True where models reduce their gradients, and no wrapper for that is in sight."""
    if any(wrapper in text for wrapper in frameworks.WRAPPERS):
        return False
    return any(
        isinstance(e, t.NoSync | t.SyncFlag)
        or (isinstance(e, t.Forward) and (e.armed is not None or e.bypassed))
        for e in events
    )


def _kind(text: str) -> str:
    """What the loop trains on, as far as its words tell: tokens, rows with a class each, or values."""
    low = text.lower()
    tokens = sum(
        low.count(w)
        for w in (
            "input_ids",
            "vocab",
            "token",
            "ignore_index",
            "attention_mask",
            "seq_len",
            "block_size",
            "-100",
        )
    )
    values = sum(
        low.count(w)
        for w in ("mse_loss", "mseloss", "l1_loss", "l1loss", "smooth_l1", "noise", "huber")
    )
    rows = sum(low.count(w) for w in ("image", "num_classes", "pixel", "label", "bce", "softplus"))
    if "cross_entropy" in low or "crossentropy" in low or "nll_loss" in low:
        return "tokens" if tokens > rows else "rows"
    if values > tokens:
        return "values"
    return "tokens" if tokens > rows else "rows"


def _ignored(program: p.Program) -> int:
    """The label that losses leave out, where the source writes it as a number."""
    constants = {
        target.id: statement.value.value
        for statement in program.body
        if isinstance(statement, p.Assign) and isinstance(statement.value, p.Const)
        for target in statement.targets
        if isinstance(target, p.Name)
    }
    for node in program.nodes:
        if isinstance(node, p.Call):
            given = node.keyword("ignore_index")
            value = (
                given.value
                if isinstance(given, p.Const)
                else constants.get(given.id)
                if isinstance(given, p.Name)
                else None
            )
            if isinstance(given, p.Unary) and isinstance(given.operand, p.Const):
                value = -given.operand.value if isinstance(given.operand.value, int) else None
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return -100


def _totals(finding: Finding, trace: t.Trace | None) -> tuple[str, ...]:
    """The running totals that a finding speaks of: those added to where it stands."""
    if trace is None:
        return ()
    found = [
        e.total
        for e in trace.main.of(t.Add)
        if e.node.at is finding.node.at or finding.rule.shows in (Symptom.ATTACHED, Symptom.GROWING)
    ]
    return tuple(dict.fromkeys(found))


def _added(trace: t.Trace | None) -> tuple[str, ...]:
    """All running totals of a loop."""
    return tuple(dict.fromkeys(e.total for e in trace.main.of(t.Add))) if trace else ()


def _package(file: Path) -> tuple[Path, str]:
    """The folder that a file's package is imported from, and the package's dotted name."""
    folder = file.parent
    parts: list[str] = []
    while (folder / "__init__.py").exists() and folder.parent != folder:
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts)


def roots_of(file: str) -> tuple[str, ...]:
    """The folders that a file's imports are looked for in."""
    return tuple(_folders(_package(Path(file))[0], Path(file).parent))


def _folders(*folders: Path) -> Iterator[str]:
    """The folders that imports are looked for in: each given one, and its `src`."""
    for folder in dict.fromkeys(folders):
        yield str(folder)
        if (folder / "src").is_dir():
            yield str(folder / "src")


def _passes(symptom: Symptom, wish: Wish) -> Iterator[Spec]:
    """The passes to make, with the user's steps and updates where a pass does not need its own."""
    for spec in _usual(symptom):
        steps = wish.steps if spec.steps == STEPS else spec.steps
        updates = wish.updates if spec.updates == UPDATES else spec.updates
        yield replace(spec, steps=steps, updates=updates)


# Arms that break the loop, so that a question which no defect has answered is seen to have another answer.
_BROKEN = {
    Symptom.WEIGHTS: Spec("ragged", sabotage="double"),
    Symptom.CLIPPED: Spec("equal", pressure=True, sabotage="forget"),
    Symptom.RAISES: Spec("equal", sabotage="keep"),
    Symptom.SPREAD: Spec("equal", sabotage="part"),
    Symptom.REDUCTIONS: Spec("equal", sabotage="sync"),
    Symptom.LEFT: Spec("trailing", sabotage="void"),
    Symptom.PARTIAL: Spec("trailing", sabotage="double"),
    Symptom.SIZES: Spec("equal", sabotage="hurry"),
    Symptom.STEPS: Spec("equal", sabotage="hurry"),
    Symptom.SCHEDULES: Spec("equal", sabotage="schedule"),
    Symptom.AVERAGES: Spec("equal", sabotage="seldom"),
    Symptom.HELD: Spec("equal", sabotage="retain"),
    Symptom.STUCK: Spec("overflow", inject=3, updates=8, sabotage="void"),
}


def _usual(symptom: Symptom) -> Iterator[Spec]:
    """The three regimes, what the symptom needs besides, and its controls."""
    # A total may be set back with the epoch only.
    yield Spec("equal", updates=20) if symptom is Symptom.GROWING else Spec("equal")
    yield Spec("ragged")
    yield Spec("trailing")
    if symptom in (Symptom.CLIPPED, Symptom.RAISES):
        yield Spec("equal", pressure=True)
    if symptom is Symptom.STUCK:
        yield Spec("overflow", inject=3, updates=8)
    if symptom is Symptom.SKIPPED:
        yield Spec("overflow", poison=STEPS - 1)
        yield Spec("overflow", poison=STEPS)
    if symptom is Symptom.RAISES:
        yield Spec("equal", growing=True)
    # What is done where the GradScaler refuses to go on.
    yield Spec("equal", unscaled=True)
    # Made right: nothing to accumulate, nothing to scale, what is applied put right.
    if symptom is Symptom.CLIPPED:
        yield Spec("equal", steps=1, updates=4, pressure=True)
        yield Spec("equal", pressure=True, sabotage="mend")
        yield Spec("equal", unscaled=True, pressure=True)
    else:
        yield Spec("equal", steps=1, updates=4)
        yield Spec("equal", sabotage="mend")
        yield Spec("equal", unscaled=True, sabotage="mend")
    if symptom is Symptom.HELD:
        yield Spec("equal", sabotage="free")
    if symptom in (Symptom.SIZES, Symptom.STEPS, Symptom.MISSED):
        yield Spec("equal", sabotage="regular")
    if symptom is Symptom.SPREAD:
        yield Spec("equal", sabotage="average")
    yield _BROKEN.get(symptom, Spec("equal", sabotage="double"))
