"""The verdict on a finding from a run of the user's own script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from accumlint.confirming.evidence import Undecided, is_expected
from accumlint.confirming.launch import Launched
from accumlint.confirming.next_steps import ENDED
from accumlint.confirming.plan import Plan
from accumlint.confirming.result import Confirmation, Pass, Verdict
from accumlint.confirming.symptoms.user_script import OVERFLOW, OWN, OwnEvidence, answered
from accumlint.confirming.user_script import line_of
from accumlint.confirming.verdict import confirmation
from accumlint.rule import Symptom

# What a refusal is about, by how it begins, and the word that allows it.
_ALLOWS = {
    "writes": "writes", "changes": "writes", "connects": "network", "looks up": "network",
    "starts": "processes", "sends": "processes",
}  # fmt: skip
# Claims about how many micro-batches a window holds, or none.
_OF_WINDOWS = {Symptom.SIZES, Symptom.STEPS, Symptom.MISSED, Symptom.ATTACHED, Symptom.GROWING}


def judged(plan: Plan, launched: Sequence[Launched]) -> Confirmation:
    """The confirmation of a plan from what the passes over the script brought, the undisturbed one first."""
    first = launched[0]
    if plan.rule.unmeasured:
        return confirmation(plan, Verdict.UNDECIDED, plan.rule.unmeasured)
    if first.failure:
        made = confirmation(plan, Verdict.UNDECIDED, first.failure)
        return replace(made, advice=ENDED.get(first.how, ""))
    together = Launched(
        tuple(
            {"passes": [made for one in launched for made in _of(one, rank)]}
            for rank in range(len(first.ranks))
        )
    )
    evidence = OwnEvidence(together, plan.report.file, line_of(plan))
    standins = _standins(evidence)
    also = dict.fromkeys(_also(evidence))
    try:
        _usable(evidence, plan)
        answer, control = answered(evidence, plan.symptom)
        if not answer.shows and plan.symptom not in _OF_WINDOWS:
            _accumulates(evidence)
    except Undecided as reason:
        also = [note for note in also if note != str(reason)]
        return confirmation(
            plan, Verdict.UNDECIDED, str(reason), shown=_shown(evidence, plan), standins=standins, also=also
        )  # fmt: skip
    verdict = Verdict.CONFIRMED if answer.shows else Verdict.REFUTED
    return confirmation(
        plan, verdict, answer.sentence, answer.figures, control, _shown(evidence, plan), standins, also
    )  # fmt: skip


def _of(launched: Launched, rank: int) -> Sequence[Mapping[str, Any]]:
    return launched.ranks[rank]["passes"] if launched.ranks else ()


def _shown(evidence: OwnEvidence, plan: Plan) -> tuple[Pass, ...]:
    if plan.symptom is Symptom.WEIGHTS and OWN in evidence.measured:
        return (evidence.measured[OWN].by_targets,)
    keys = ("own pressure", OWN) if plan.symptom is Symptom.CLIPPED else (OWN,)
    passes = (evidence.passes[key] for key in keys if key in evidence.passes)
    return tuple(done for done in passes if done.moments)


def _usable(evidence: OwnEvidence, plan: Plan) -> None:
    """Refuses what cannot decide anything.

    Raises:
        Undecided: with the first reason.
    """
    first = evidence.raw[OWN]
    raised = _raised(evidence)
    if OWN in evidence.failures:
        raise Undecided(evidence.failures[OWN])
    found = evidence.get(OWN)
    events = first["notes"]["events"]
    began = any(event["kind"] == "step" for event in events)
    loud = raised is not None and is_expected(raised["message"])
    if raised is not None and not began and not (loud and plan.symptom is Symptom.RAISES):
        raise Undecided(_failed(raised, first["said"], plan.report.file))
    # A guard against what is no number lets through what is one.
    looked = OVERFLOW if plan.symptom in (Symptom.STUCK, Symptom.SKIPPED) else OWN
    reached = looked in evidence.passes and evidence.passes[looked].reached
    if plan.arm == "found" and not (found.reached or reached):
        what = "stopped" if first["how"] == "stopped" else "ended"
        steps = sum(event["kind"] == "step" for event in events)
        updates = f"{steps} update{'' if steps == 1 else 's'}"
        raise Undecided(f"line {line_of(plan)} was not reached: the script {what} after {updates}")
    if loud and plan.symptom is Symptom.RAISES:
        return
    if first["unfit"]:
        raise Undecided(first["unfit"])
    backwards = sum(event["kind"] == "backward" for event in events)
    if not backwards:
        raise Undecided("no backward reached the parameters of a torch optimizer")
    if not began and plan.symptom is not Symptom.MISSED:
        if first["how"] == "ended":
            many = f"{backwards} micro-batch{'' if backwards == 1 else 'es'}"
            raise Undecided(f"the script ended after {many}, before its first update")
        raise Undecided(f"the optimizer never stepped in {backwards} micro-batches")
    if began and not found.updates:
        raise Undecided(
            "no update can be compared: its gradient is not finite, or is not clipped by the norm of all gradients"
        )
    if len(evidence.notes) > 1 and began and not evidence.measured[OWN].joined:
        raise Undecided(
            f"the script ran on {len(evidence.notes)} ranks, and formed no process group"
        )
    if found.updates and all(u.reference < 1e-12 for u in found.updates):
        raise Undecided("the large batch's gradient is zero, so nothing can be compared")


def _raised(evidence: OwnEvidence) -> Mapping[str, Any] | None:
    """What ended the script on any rank."""
    return next(
        (r["passes"][0]["raised"] for r in evidence.notes if r["passes"][0]["raised"]), None
    )


def _accumulates(evidence: OwnEvidence) -> None:
    """Raises where nothing could have shown."""
    found = evidence.get(OWN)
    one = all(len(u.microbatches) <= 1 for u in found.updates)
    if found.updates and one and len({u.optimizer for u in found.updates}) == 1:
        raise Undecided(
            "every window held one micro-batch, so nothing was accumulated; with other arguments the script may"
        )


def _failed(raised: Mapping[str, Any], said: str, file: str) -> str:
    """Why a script did not come to train."""
    where = ""
    if raised["line"]:
        beside = "" if raised["file"] == file else f" of {raised['file'].rpartition('/')[2]}"
        where = f" at line {raised['line']}{beside}"
    if raised["kind"] == "SystemExit":
        told = f": {said}" if said else ""
        return f"the script left with code {raised['message']} before its first update{told}"
    if raised["kind"] == "Forbidden":
        return _refusal(raised["message"], where)
    if raised["kind"] == "MemoryError" or "can't allocate memory" in raised["message"]:
        return f"the script needs more memory{where} than a rank may use; {ENDED['killed']}"
    told = f"the script failed before its first update, with {raised['kind']}{where}: {raised['message']}"
    return told.removesuffix(": ")


def _refusal(what: str, where: str) -> str:
    word = next((word for begun, word in _ALLOWS.items() if what.startswith(begun)), "")
    allow = f"; --allow {word} would let it" if word else ""
    return f"the script tried something that the sandbox refuses{where}: {what}{allow}"


def _standins(evidence: OwnEvidence) -> dict[str, str]:
    first = evidence.raw[OWN]
    told = dict(first["standins"])
    compared, every = first["sampled"]
    if compared < every:
        told["parameters"] = f"{compared:,} of {every:,}, drawn evenly, are compared"
    return told


def _also(evidence: OwnEvidence) -> Iterator[str]:
    for refused in [r for rank in evidence.notes for r in rank["passes"][0]["notes"]["refused"]][
        :2
    ]:
        where = f" at line {refused['line']}" if refused["line"] else ""
        yield _refusal(refused["what"], where)
    raised = evidence.raw[OWN]["raised"]
    if raised is not None and evidence.passes.get(OWN) and evidence.passes[OWN].updates:
        yield f"the script ended with {raised['kind']}: {raised['message']}"
