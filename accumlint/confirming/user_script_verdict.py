"""The verdict on a finding from what was observed of a user's own script, which runs as it is."""

from __future__ import annotations

from dataclasses import replace

from accumlint.confirming.plan import Plan
from accumlint.confirming.result import Confirmation, Verdict
from accumlint.confirming.verdict import confirmation
from accumlint.diagnostics.reporting.phrases import count
from accumlint.rule import Confidence
from accumlint.runtime import reports
from accumlint.runtime.answers import Answer
from accumlint.runtime.judging import Judged


def judged(plan: Plan, run: Judged, failure: str) -> Confirmation:
    """The confirmation of a plan; `failure` is what kept the script from its end, "" for nothing.

    A defect that was observed in the loop of the finding confirms it. What was measured there and is right refutes it,
    unless the same defect was observed elsewhere. All else leaves it undecided.
    """
    report = plan.report
    answers = [a for a in run.answers if a.observed is plan.rule.observed]
    here = [a for a in answers if reports.touches(a, report.file, report.loop)]
    wrong = [a for a in here if a.wrong and a.confidence != Confidence.POSSIBLE.value]
    if wrong:
        made = confirmation(plan, Verdict.CONFIRMED, _told(wrong[0]))
        if (factor := wrong[0].factor) != 1.0:
            made = replace(made, measured={"factor": factor})
    elif here and not any(a.wrong for a in answers):
        made = confirmation(plan, Verdict.REFUTED, here[0].figures)
    else:
        made = confirmation(plan, Verdict.UNDECIDED, _open(plan, run, failure))
    return replace(made, also=tuple(run.notes))


def _told(found: Answer) -> str:
    """What was observed, with what the update applied and what it should have."""
    return "; ".join(filter(None, (found.message, found.applied, found.expected)))


def _open(plan: Plan, run: Judged, failure: str) -> str:
    if failure:
        return failure
    if plan.rule.observed is None:
        return plan.rule.unmeasured or "no run of a script is asked this question"
    return f"{count(run.updates, 'update')} of the script did not answer the question; `--windows` watches more"
