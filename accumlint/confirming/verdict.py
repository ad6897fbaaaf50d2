"""The verdict on a finding: its symptom, looked for in the measured windows, and a control that could have failed.

Only the rule's own claim is answered; what else was seen is a note.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from accumlint.confirming import next_steps
from accumlint.confirming.controls import control as controlled
from accumlint.confirming.evidence import Evidence, Undecided, deciding, is_expected
from accumlint.confirming.finding_verdicts import TELLING
from accumlint.confirming.launch import Launched
from accumlint.confirming.plan import OF_DIRECTION, OF_ORDER, OF_SIZE, Plan
from accumlint.confirming.result import Confirmation, Control, Pass, Update, Verdict
from accumlint.confirming.symptoms.answers import Answer, Question
from accumlint.confirming.symptoms.catalogue import QUESTIONS
from accumlint.confirming.symptoms.gradients import clipped_whole
from accumlint.confirming.symptoms.microbatch_weights import alone, divided
from accumlint.reading import names
from accumlint.rule import Symptom


def judged(
    plan: Plan, launched: Launched, dtype: str, shown: Launched | None = None
) -> Confirmation:
    """The confirmation of a plan from what its launch brought.

    `shown`: what the text that this one mends has brought, where that, run in the same way, has shown the defect.
    """
    if plan.job is None or launched.failure:
        return _undecided(plan, launched, Undecided(launched.failure or plan.reason))
    evidence = Evidence(launched, plan.job.line, dtype)
    evidence.numbers = _numbers(plan.job.text)
    evidence.asks = _asks(plan.job.text) or "steps" in plan.job.roles.values()
    before = Evidence(shown, plan.job.line, dtype) if shown else None
    try:
        answer, control = _answered(evidence, plan, before)
    except Undecided as reason:
        told = [str(reason), *map(_refusal, evidence.refused(inside=False)[:1])]
        whole = Undecided("; ".join(dict.fromkeys(told)), reason.names)
        return _undecided(plan, launched, whole, evidence)
    verdict = Verdict.CONFIRMED if answer.shows else Verdict.REFUTED
    made = confirmation(plan, verdict, answer.sentence, evidence)
    return replace(made, measured=answer.figures, control=control)


def _answered(evidence: Evidence, plan: Plan, shown: Evidence | None) -> tuple[Answer, Control]:
    """What the passes say to the claim, and the control.

    Raises:
        Undecided: where they say nothing, or where nothing shows that they could have said otherwise.
    """
    _usable(evidence, plan)
    if plan.symptom is not Symptom.RAISES:
        evidence.stand_in()
    question = _question(evidence, plan, shown)
    answer = question(evidence)
    if answer.shows:
        _confirmable(evidence, plan, answer)
    else:
        _refutable(evidence, plan, shown is not None)
    if (
        (not answer.shows or plan.symptom in (Symptom.GRADIENT, Symptom.CLIPPED))
        and plan.symptom not in _OF_WINDOWS
        and plan.job is not None
        and plan.job.accumulates
        and _nothing_accumulates(evidence)
    ):
        raise Undecided("every window held one micro-batch, so nothing was accumulated")
    if answer.shows and plan.job and plan.job.epochs:
        whole = _of_lengths(answer, evidence)
        if not whole.shows:
            return whole, Control(
                f"epochs that end inside a window: {answer.sentence}", True, answer.value
            )
        answer = whole
    control = controlled(question, evidence, answer.shows, plan.symptom)
    if control is None:
        told = (
            "the same shows where the loop is made right, so something else causes it"
            if answer.shows
            else "a defect that was put in on purpose did not show either"
        )
        raise Undecided(f"{answer.sentence}, but {told}")
    return answer, control


def _of_lengths(answer: Answer, evidence: Evidence) -> Answer:
    """What is left of an epoch, with the lengths that it is left of: nothing where the script's own are whole windows.

    Raises:
        Undecided: where the script makes data of its own whose length is not known.
    """
    found, equal = evidence.get("trailing"), evidence.get("equal")
    made, whole = (evidence.raw[name]["notes"]["length"] for name in ("trailing", "equal"))
    length, steps, unknown = (evidence.epoch.get(name) for name in ("length", "steps", "unknown"))
    held = {len(u.microbatches) for u in (*equal.updates, *found.updates)}
    # The loop may have a window's size of its own.
    size = next((n for n in (steps, found.steps) if n in held), 0)
    if equal.left and size and whole % size == 0:
        # Whole windows leave something, too.
        return answer
    windows = f", with windows of {size}" if size else ""
    told = f"{answer.sentence}, in epochs of {made} micro-batches{windows}"
    if unknown:
        raise Undecided(f"{told}; how many the script's own epochs have is not known: {unknown}")
    if not (length and steps):
        return replace(answer, sentence=f"{told}; the script's own epochs may have any number")
    figures = {**answer.figures, "own epoch": length, "own window": steps}
    own = f"the script's own epochs have {length} micro-batches"
    if length % steps:
        return replace(answer, sentence=f"{told}; {own}, with windows of {steps}", figures=figures)
    return Answer(False, 0.0, f"{own}, which are whole windows of {steps}", {**figures, "left": 0})


def _question(evidence: Evidence, plan: Plan, shown: Evidence | None) -> Question:
    """What is asked: where a loss weighs its targets on purpose, a mended text is held to what it does alone."""
    usual = QUESTIONS[plan.symptom]
    if plan.rule.of_direction and shown is not None and _clips(evidence) < _clips(shown):
        # What was clipped in parts is clipped once: whether it is scaled then is another finding's question.
        return clipped_whole
    if plan.symptom is not Symptom.SCALE or shown is None or not divided(evidence, shown):
        return usual
    try:
        return alone if usual(evidence).shows else usual
    except Undecided:
        return alone


def _clips(evidence: Evidence) -> int:
    """How often an update is clipped."""
    found = evidence.passes.get("equal pressure")
    return max((u.clips for u in found.updates), default=0) if found else 0


def _refutable(evidence: Evidence, plan: Plan, shown: bool) -> None:
    """Refuses a refutation by a run that has left out what the finding is about.

    Raises:
        Undecided: where flags were off that may be on, the loss is another one, or nothing was scaled.
    """
    first = evidence.raw["equal"]
    if not first["ordinary"] and not shown:
        raise Undecided(
            "the defect does not show with all unknown flags off, and with them on the loop did not run"
        )
    if evidence.made_up and plan.symptom in OF_DIRECTION | OF_SIZE and not shown:
        raise Undecided(
            "the loss is computed from what is not known here, and with the real one the defect may show"
        )
    # A scaler that is switched off multiplies by 1.
    if plan.job and plan.job.scaled and first["notes"]["initial_scale"] <= 1:
        raise Undecided("a GradScaler is part of the finding, and none was in use")


def _confirmable(evidence: Evidence, plan: Plan, answer: Answer) -> None:
    """Refuses a confirmation where what is not run may put right what the run shows.

    Raises:
        Undecided: where something that is not here is given the optimizer, or the gradients are cleared elsewhere.
    """
    if plan.job is None:
        return
    if "micro-batches per update" in answer.figures and not evidence.asks:
        raise Undecided("nothing in the loop asks for windows of several micro-batches")
    if plan.symptom not in _OF_GRADIENTS:
        return
    if plan.symptom is Symptom.SPREAD and (unfed := evidence.raw["equal"]["notes"]["unfed"]):
        raise Undecided(
            f"{answer.sentence}, but `{unfed}` is given no data, and a fake makes up its own"
        )
    cleared = any(m.kind == "clear" for m in evidence.passes["equal"].moments)
    unknown = evidence.handed
    if plan.symptom is Symptom.SPREAD:
        unknown = unknown | evidence.wrapped
    if unknown:
        text = min(unknown)
        raise Undecided(
            f"{answer.sentence}, unless `{text}` sees to it, which does not run here", (text,)
        )
    if plan.job.entry["calls"] == "microbatch" and not cleared and "zero_grad(" in plan.job.text:
        raise Undecided(
            f"{answer.sentence}, with nothing cleared where it is cleared by the caller"
        )


def _numbers(text: str) -> frozenset[int]:
    """The whole numbers above 1 that a source is written with, powers left out."""
    nodes = list(ast.walk(ast.parse(text)))
    powers = {n.right for n in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Pow)}
    found = (n.value for n in nodes if isinstance(n, ast.Constant) and n not in powers)
    return frozenset(value for value in found if type(value) is int and value > 1)


def _asks(text: str) -> bool:
    """Whether a source speaks of accumulation steps, by a name or by a number."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.arg(arg=word):
                if names.is_steps(word) and word != "accumulate":
                    return True
            case ast.keyword(arg=str(word)) | ast.Constant(value=str(word)):
                if word.isidentifier() and names.is_steps(word):
                    return True
            case ast.BinOp(op=ast.Mod() | ast.Div(), right=ast.Constant()):
                return True
            case _:
                pass
    return False


# Claims about gradients, their reduction, their scaling and their clearing.
_OF_GRADIENTS = {
    Symptom.GRADIENT, Symptom.SCALE, Symptom.CLIPPED, Symptom.SPREAD, Symptom.REDUCTIONS, Symptom.MISSED,
    Symptom.RAISES, Symptom.STUCK,
}  # fmt: skip


# Claims about how many micro-batches a window holds, or none.
_OF_WINDOWS = {
    Symptom.SIZES, Symptom.STEPS, Symptom.RAISES, Symptom.ATTACHED, Symptom.GROWING,
}  # fmt: skip


def _nothing_accumulates(evidence: Evidence) -> bool:
    found = evidence.passes.get("equal")
    return (
        found is not None
        and found.steps > 1
        and bool(found.updates)
        and all(len(u.microbatches) <= 1 for u in found.updates)
        # Where several optimizers take turns, each update ends what another's window would hold.
        and len({u.optimizer for u in found.updates}) == 1
    )


def _usable(evidence: Evidence, plan: Plan) -> None:
    """Refuses what cannot decide anything.

    Raises:
        Undecided: with the first reason.
    """
    first = evidence.raw.get("equal")
    if first is None:
        raise Undecided("the loop was not run")
    if refused := evidence.refused(inside=True):
        raise Undecided(_refusal(refused[0]))
    notes = first["notes"]
    if first["unbound"]:
        raise Undecided(first["unbound"])
    raised = first["raised"]
    if raised and raised["kind"] == "Forbidden":
        raise Undecided(_refusal({"line": raised["line"], "what": raised["message"]}))
    loud = raised and is_expected(raised["message"])
    quiet = plan.symptom is not Symptom.RAISES
    if raised and not loud and quiet and not evidence.passes["equal"].updates:
        # A loss without a gradient has lost it before.
        lost = "does not require grad" in raised["message"]
        why = _because(first) if lost or any(f["inside"] for f in first["failed"]) else ""
        # What failed first may be the same.
        why = "" if why.startswith(f" (line {raised['line']}: ") else why
        raise Undecided(f"the loop did not run with fakes: {_raised(raised)}{why}")
    if not notes["losses"]:
        raise Undecided(f"the loop came to no loss that could be measured{_because(first)}")
    if notes["touched"] and plan.symptom not in OF_ORDER | OF_DIRECTION:
        text = notes["touched"][0]
        why = " and is given the accumulation steps" if text in notes["told"] else ""
        raise Undecided(f"the loss is computed from `{text}`, which is not known here{why}")
    if quiet:
        if "equal" in evidence.failures:
            raise Undecided(evidence.failures["equal"])
        updates = evidence.passes["equal"].updates
        if not updates and not loud and plan.symptom is not Symptom.MISSED:
            raise Undecided(f"the optimizer never stepped{_because(first)}")
        if updates and all(u.reference < 1e-9 for u in updates):
            if raised and not loud:
                raise Undecided(f"the loop did not run on with fakes: {_raised(raised)}")
            raise Undecided("the large batch's gradient is zero, so nothing can be compared")


def _refusal(refused: Mapping[str, Any]) -> str:
    where = f" at line {refused['line']}" if refused["line"] else ""
    return f"the loop tried something that the sandbox refuses{where}: {refused['what']}"


def _because(first: Mapping[str, Any]) -> str:
    """What has failed and may be why a loop did not train."""
    failure = deciding(first["failed"])
    return f" (line {failure['line']}: {failure['reason'].rstrip('.')})" if failure else ""


def _raised(raised: Mapping[str, Any]) -> str:
    where = f" at line {raised['line']}" if raised["line"] else ""
    where += f" ({raised['beside']})" if raised["beside"] else ""
    return f"{raised['kind']}{where}: {raised['message']}".removesuffix(": ")


# Confirmations


def _undecided(
    plan: Plan, launched: Launched, reason: Undecided, evidence: Evidence | None = None
) -> Confirmation:
    """An undecided finding, with what would decide it."""
    made = confirmation(plan, Verdict.UNDECIDED, str(reason), evidence)
    # Of what ended before any update, the reason tells all.
    passes = tuple(
        p for p in made.passes
        if any(u.reference for u in p.updates) or (p.moments and not p.updates and p.raised is None)
    )  # fmt: skip
    setup = next_steps.setup(plan, launched, evidence, reason)
    advice = next_steps.advice(plan, launched, evidence, reason)
    return replace(made, passes=passes, setup=setup, advice=advice)


def _shown(symptom: Symptom, evidence: Evidence) -> tuple[Pass, ...]:
    """The passes to show: the one that decides first, then the other regimes; controls tell themselves."""
    first = {
        Symptom.CLIPPED: "equal pressure", Symptom.WEIGHTS: "ragged", Symptom.LEFT: "trailing",
        Symptom.PARTIAL: "trailing", Symptom.STUCK: "overflow", Symptom.SKIPPED: "overflow",
    }.get(symptom, "equal")  # fmt: skip
    order = dict.fromkeys((first, "equal", "ragged", "trailing", "overflow"))
    return tuple(_weighed(evidence.passes[key]) for key in order if key in evidence.passes)


def _weighed(done: Pass) -> Pass:
    """A pass with weights as they are applied: what divides gradients instead of losses divides them too."""

    def weights(u: Update) -> tuple[float, ...]:
        plain = u.error <= TELLING or (u.direction <= TELLING and not u.clips)
        alike = plain and max(u.weights) <= (1 + TELLING) * min(u.weights)
        return (u.scale,) * len(u.weights) if alike else u.weights

    return replace(done, updates=tuple(replace(u, weights=weights(u)) for u in done.updates))


def confirmation(
    plan: Plan, verdict: Verdict, reason: str, evidence: Evidence | None = None
) -> Confirmation:
    """A plan's finding with its verdict, and with what a run on fakes has brought beside it."""
    report = plan.report
    place = report.mark.place
    first = evidence.raw.get("equal") if evidence else None
    fakes: Mapping[str, str] = first["fakes"] if first else {}
    return Confirmation(
        file=report.shown,
        line=place.line,
        column=place.column,
        code=report.code,
        name=report.name,
        claim=plan.rule.claim.value,
        message=report.headline,
        verdict=verdict,
        reason=reason,
        measured={},
        control=None,
        passes=_shown(plan.symptom, evidence) if evidence else (),
        fakes=tuple(f"`{name}`: {what}" for name, what in sorted(fakes.items())),
        also=tuple(_also(plan, evidence)) if evidence else (),
        arm=plan.arm,
    )


def _also(plan: Plan, evidence: Evidence) -> Iterator[str]:
    """What else was seen, besides the claim."""
    for refused in evidence.refused(inside=False)[:1]:
        yield f"before training, {_refusal(refused)}; fakes took the place of what it would have given"
    asked = {plan.symptom}
    if asked & {Symptom.SCALE, Symptom.RAISES, Symptom.CLIPPED}:
        asked.add(Symptom.GRADIENT)
    if evidence.made_up:
        # What targets weigh in a loss that is another than the loop's tells nothing.
        asked.add(Symptom.WEIGHTS)
    for symptom in (Symptom.SPREAD, Symptom.GRADIENT, Symptom.WEIGHTS, Symptom.LEFT):
        if symptom in asked:
            continue
        try:
            answer = QUESTIONS[symptom](evidence)
        except Undecided:
            continue
        if answer.shows:
            hedge = "if numbers of targets differ: " if symptom is Symptom.WEIGHTS else ""
            yield hedge + answer.sentence
