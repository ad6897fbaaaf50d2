"""The verdict on a finding: the answer of its symptom's question, and a control that can give the other answer.

Only the rule's own claim is decided; other symptoms become notes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from accumlint.confirming import next_steps
from accumlint.confirming.controls import control as controlled
from accumlint.confirming.evidence import Evidence, Undecided, deciding, is_expected
from accumlint.confirming.finding_verdicts import ERROR_THRESHOLD
from accumlint.confirming.launch import Launched
from accumlint.confirming.plan import DIRECTION_SYMPTOMS, ORDER_SYMPTOMS, SIZE_SYMPTOMS, Plan
from accumlint.confirming.result import Confirmation, Control, Pass, Update, Verdict
from accumlint.confirming.symptoms.answers import Answer, Question
from accumlint.confirming.symptoms.catalogue import QUESTIONS
from accumlint.confirming.symptoms.gradients import clipped_whole
from accumlint.confirming.symptoms.microbatch_weights import divided, relative_weight
from accumlint.reading import names
from accumlint.rule import Symptom


def judged(
    plan: Plan, launched: Launched, dtype: str, shown: Launched | None = None
) -> Confirmation:
    """The confirmation of a plan; `shown` is the result of the unfixed text where that showed the defect."""
    if plan.job is None or launched.failure:
        return _undecided(plan, launched, Undecided(launched.failure or plan.reason))
    evidence = Evidence(launched, plan.job.line, dtype)
    evidence.numbers = _numbers(plan.job.text)
    evidence.shortens = plan.job.shortens
    evidence.mentions_steps = _mentions_steps(plan.job.text) or "steps" in plan.job.roles.values()
    before = Evidence(shown, plan.job.line, dtype) if shown else None
    try:
        answer, control = _answered(evidence, plan, before)
    except Undecided as reason:
        reasons = [str(reason), *map(_refusal, evidence.refused(inside=False)[:1])]
        whole = Undecided("; ".join(dict.fromkeys(reasons)), reason.names)
        return _undecided(plan, launched, whole, evidence)
    verdict = Verdict.CONFIRMED if answer.shows else Verdict.REFUTED
    made = confirmation(plan, verdict, answer.sentence, evidence)
    return replace(made, measured=answer.figures, control=control)


def _answered(evidence: Evidence, plan: Plan, shown: Evidence | None) -> tuple[Answer, Control]:
    """The answer of the passes, and the control.

    Raises:
        Undecided: where there is no answer, or no control gives another one.
    """
    _usable(evidence, plan)
    if plan.symptom is not Symptom.RAISES:
        evidence.substitute_unscaled()
    question = _question(evidence, plan, shown)
    answer = question(evidence)
    if answer.shows:
        _confirmable(evidence, plan, answer)
    else:
        _refutable(evidence, plan, shown is not None)
    if (
        (not answer.shows or plan.symptom in (Symptom.GRADIENT, Symptom.CLIPPED))
        and plan.symptom not in _WINDOW_SYMPTOMS
        and plan.job is not None
        and _nothing_accumulates(evidence)
        and (plan.job.accumulates or not (answer.shows or _goes_on(evidence)))
    ):
        raise Undecided("every window held one micro-batch, so nothing was accumulated")
    if answer.shows and plan.job and plan.job.epochs:
        whole = _with_epoch_lengths(answer, evidence)
        if not whole.shows:
            return whole, Control(
                f"epochs that end inside a window: {answer.sentence}", True, answer.value
            )
        answer = whole
    control = controlled(question, evidence, answer.shows, plan.symptom)
    if control is None:
        cause = (
            "the same shows where the loop is made right, so something else causes it"
            if answer.shows
            else "a defect that was put in on purpose did not show either"
        )
        raise Undecided(f"{answer.sentence}, but {cause}")
    return answer, control


def _with_epoch_lengths(answer: Answer, evidence: Evidence) -> Answer:
    """The answer about leftover micro-batches, with the script's epoch length: none are left by whole windows.

    Raises:
        Undecided: where the script's epoch length is unknown.
    """
    found, equal = evidence.get("trailing"), evidence.get("equal")
    made, whole = (evidence.raw[name]["notes"]["length"] for name in ("trailing", "equal"))
    length, steps, unknown = (evidence.epoch.get(name) for name in ("length", "steps", "unknown"))
    sizes = {len(u.microbatches) for u in (*equal.updates, *found.updates)}
    # The loop may have a literal window size.
    size = next((n for n in (steps, found.steps) if n in sizes), 0)
    if equal.left and size and whole % size == 0:
        # Even whole windows leave micro-batches.
        return answer
    windows = f", with windows of {size}" if size else ""
    text = f"{answer.sentence}, in epochs of {made} micro-batches{windows}"
    if unknown:
        raise Undecided(f"{text}; how many the script's own epochs have is not known: {unknown}")
    if not (length and steps):
        return replace(answer, sentence=f"{text}; the script's own epochs may have any number")
    figures = {**answer.figures, "own epoch": length, "own window": steps}
    epochs = f"the script's own epochs have {length} micro-batches"
    if length % steps:
        return replace(
            answer, sentence=f"{text}; {epochs}, with windows of {steps}", figures=figures
        )
    return Answer(
        False, 0.0, f"{epochs}, which are whole windows of {steps}", {**figures, "left": 0}
    )


def _question(evidence: Evidence, plan: Plan, shown: Evidence | None) -> Question:
    """The question: a fixed text of a loss with intended weights is compared with single micro-batches."""
    usual = QUESTIONS[plan.symptom]
    if plan.rule.of_direction and shown is not None and _clips(evidence) < _clips(shown):
        # Clipping parts became clipping once; whether the gradient is scaled then is another finding.
        return clipped_whole
    if plan.symptom is not Symptom.SCALE or shown is None or not divided(evidence, shown):
        return usual
    try:
        return relative_weight if usual(evidence).shows else usual
    except Undecided:
        return relative_weight


def _clips(evidence: Evidence) -> int:
    """The largest number of clips in an update."""
    found = evidence.passes.get("equal pressure")
    return max((u.clips for u in found.updates), default=0) if found else 0


def _refutable(evidence: Evidence, plan: Plan, shown: bool) -> None:
    """Rejects a refutation by a run without a part of the finding.

    Raises:
        Undecided: where unknown flags were off, the loss was a substitute, or nothing was scaled.
    """
    first = evidence.raw["equal"]
    if not first["ordinary"] and not shown:
        raise Undecided(
            "the defect does not show with all unknown flags off, and with them on the loop did not run"
        )
    if evidence.loss_unknown and plan.symptom in DIRECTION_SYMPTOMS | SIZE_SYMPTOMS and not shown:
        raise Undecided(
            "the loss is computed from what is not known here, and with the real one the defect may show"
        )
    # A disabled scaler has the scale 1.
    if plan.job and plan.job.scaled and first["notes"]["initial_scale"] <= 1:
        raise Undecided("a GradScaler is part of the finding, and none was in use")


def _confirmable(evidence: Evidence, plan: Plan, answer: Answer) -> None:
    """Rejects a confirmation where code that does not run may correct the defect.

    Raises:
        Undecided: where absent code receives the optimizer, or the caller clears the gradients.
    """
    if plan.job is None:
        return
    if "micro-batches per update" in answer.figures and not evidence.mentions_steps:
        raise Undecided("nothing in the loop asks for windows of several micro-batches")
    moved = [n for n, what in evidence.raw["equal"]["fakes"].items() if what == "a LambdaLR"]
    if plan.symptom is Symptom.SCHEDULES and moved:
        text = f"`{moved[0]}`, whose length is not known here, may count micro-batches as well"
        raise Undecided(f"{answer.sentence}, but {text}", (moved[0],))
    if plan.symptom not in _GRADIENT_SYMPTOMS:
        return
    if plan.symptom is Symptom.SPREAD and (unfed := evidence.raw["equal"]["notes"]["unfed"]):
        raise Undecided(
            f"{answer.sentence}, but `{unfed}` is given no data, and a fake makes up its own"
        )
    cleared = any(m.kind == "clear" for m in evidence.passes["equal"].moments)
    unknown = evidence.opaque_calls
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
    """The integer literals above 1 in a source, without exponents."""
    nodes = list(ast.walk(ast.parse(text)))
    powers = {n.right for n in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Pow)}
    found = (n.value for n in nodes if isinstance(n, ast.Constant) and n not in powers)
    return frozenset(value for value in found if type(value) is int and value > 1)


def _mentions_steps(text: str) -> bool:
    """Whether a source mentions accumulation steps, by a name or a literal."""
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


# Claims about gradients: reduction, scaling and clearing included.
_GRADIENT_SYMPTOMS = {
    Symptom.GRADIENT, Symptom.SCALE, Symptom.CLIPPED, Symptom.SPREAD, Symptom.REDUCTIONS, Symptom.MISSED,
    Symptom.RAISES, Symptom.STUCK,
}  # fmt: skip


# Claims that do not depend on windows of several micro-batches.
_WINDOW_SYMPTOMS = {
    Symptom.SIZES, Symptom.STEPS, Symptom.RAISES, Symptom.ATTACHED, Symptom.GROWING,
}  # fmt: skip


def _goes_on(evidence: Evidence) -> bool:
    """Whether every micro-batch between two updates of an epoch goes backward."""
    return all(
        a.epoch != b.epoch or b.microbatches[:1] <= (max(a.microbatches, default=0) + 1,)
        for a, b in pairwise(evidence.passes["equal"].updates)
    )


def _nothing_accumulates(evidence: Evidence) -> bool:
    found = evidence.passes.get("equal")
    return (
        found is not None
        and found.steps > 1
        and bool(found.updates)
        and all(len(u.microbatches) <= 1 for u in found.updates)
        # With several optimizers in turn, each update ends the others' windows.
        and len({u.optimizer for u in found.updates}) == 1
    )


def _usable(evidence: Evidence, plan: Plan) -> None:
    """Rejects a run that cannot decide anything.

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
        # A loss without a gradient has lost it earlier.
        lost = "does not require grad" in raised["message"]
        why = _because(first) if lost or any(f["inside"] for f in first["failed"]) else ""
        # The first failure may be the same.
        why = "" if why.startswith(f" (line {raised['line']}: ") else why
        raise Undecided(f"the loop did not run with fakes: {_raised(raised)}{why}")
    if not notes["losses"]:
        raise Undecided(f"the loop came to no loss that could be measured{_because(first)}")
    # A factor of every loss does not change how its targets weigh beside each other.
    factors = () if plan.symptom is Symptom.WEIGHTS else notes["factors"]
    touched = [*notes["touched"], *factors]
    if touched and plan.symptom not in ORDER_SYMPTOMS | DIRECTION_SYMPTOMS:
        text = touched[0]
        why = " and is given the accumulation steps" if text in notes["window_aware"] else ""
        raise Undecided(f"the loss is computed from `{text}`, which is not known here{why}")
    if plan.symptom is Symptom.WEIGHTS and (own := notes["own_losses"]):
        raise Undecided(
            f"the loss is that of `{own[0]}`, which is given no labels, and a fake makes up its own",
            tuple(own[:1]),
        )
    if quiet:
        if "equal" in evidence.failures:
            raise Undecided(evidence.failures["equal"])
        updates = evidence.passes["equal"].updates
        cut_off = not loud and (raised or len(updates) == 1) and plan.job and plan.job.accumulates
        if cut_off and _nothing_accumulates(evidence):
            why = f": {_raised(raised)}" if raised else _because(first)
            raise Undecided(f"the loop did not run on with fakes{why}")
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
    """The failure that may have prevented training."""
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
    """An undecided confirmation, with a set-up file and advice."""
    made = confirmation(plan, Verdict.UNDECIDED, str(reason), evidence)
    # For a pass without updates, the reason says all.
    passes = tuple(
        p for p in made.passes
        if any(u.reference for u in p.updates) or (p.moments and not p.updates and p.raised is None)
    )  # fmt: skip
    setup = next_steps.setup(plan, launched, evidence, reason)
    advice = next_steps.advice(plan, launched, evidence, reason)
    return replace(made, passes=passes, setup=setup, advice=advice)


def _shown(symptom: Symptom, evidence: Evidence) -> tuple[Pass, ...]:
    """The passes to show: the decisive one first, then the other regimes."""
    first = {
        Symptom.CLIPPED: "equal pressure", Symptom.WEIGHTS: "ragged", Symptom.LEFT: "trailing",
        Symptom.PARTIAL: "trailing", Symptom.STUCK: "overflow", Symptom.SKIPPED: "overflow",
    }.get(symptom, "equal")  # fmt: skip
    order = dict.fromkeys((first, "equal", "ragged", "trailing", "overflow"))
    return tuple(_weighed(evidence.passes[key]) for key in order if key in evidence.passes)


def _weighed(done: Pass) -> Pass:
    """A pass with weights as applied: a division of gradients instead of losses is included."""

    def weights(u: Update) -> tuple[float, ...]:
        plain = u.error <= ERROR_THRESHOLD or (u.direction <= ERROR_THRESHOLD and not u.clips)
        alike = plain and max(u.weights) <= (1 + ERROR_THRESHOLD) * min(u.weights)
        return (u.scale,) * len(u.weights) if alike else u.weights

    return replace(done, updates=tuple(replace(u, weights=weights(u)) for u in done.updates))


def confirmation(
    plan: Plan, verdict: Verdict, reason: str, evidence: Evidence | None = None
) -> Confirmation:
    """The confirmation of a plan's finding, with the fakes and passes of its run."""
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
    """Symptoms besides the claim."""
    for refused in evidence.refused(inside=False)[:1]:
        yield f"before training, {_refusal(refused)}; fakes took the place of what it would have given"
    answered = {plan.symptom}
    if answered & {Symptom.SCALE, Symptom.RAISES, Symptom.CLIPPED}:
        answered.add(Symptom.GRADIENT)
    if evidence.loss_unknown:
        # The weights of targets in an unknown loss mean nothing.
        answered.add(Symptom.WEIGHTS)
    for symptom in (Symptom.SPREAD, Symptom.GRADIENT, Symptom.WEIGHTS, Symptom.LEFT):
        if symptom in answered:
            continue
        try:
            answer = QUESTIONS[symptom](evidence)
        except Undecided:
            continue
        if answer.shows:
            hedge = "if numbers of targets differ: " if symptom is Symptom.WEIGHTS else ""
            yield hedge + answer.sentence
