"""The verdict on a finding from the observation of the user's script."""

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
    """The confirmation of a plan; `failure` says why the script did not complete, "" for nothing.

    An observed defect in the loop of the finding confirms it. A correct measurement there refutes it, unless the same
    defect was observed in another loop. All else leaves it undecided.
    """
    report = plan.report
    answers = [a for a in run.answers if a.observed is plan.rule.observed]
    here = [a for a in answers if reports.touches(a, report.file, report.loop)]
    wrong = [a for a in here if a.wrong and a.confidence != Confidence.POSSIBLE.value]
    if wrong:
        made = confirmation(plan, Verdict.CONFIRMED, _describe(wrong[0]))
        if (factor := wrong[0].factor) != 1.0:
            made = replace(made, measured={"factor": factor})
    elif here and not any(a.wrong for a in answers):
        made = confirmation(plan, Verdict.REFUTED, here[0].figures)
    else:
        made = confirmation(plan, Verdict.UNDECIDED, _undecided_reason(plan, run, failure))
    return replace(made, also=tuple(run.notes))


def _describe(found: Answer) -> str:
    """The observation, with the applied and the expected gradient."""
    return "; ".join(filter(None, (found.message, found.applied, found.expected)))


def _undecided_reason(plan: Plan, run: Judged, failure: str) -> str:
    if failure:
        return failure
    if plan.rule.observed is None:
        return plan.rule.unmeasured or "no run of a script is asked this question"
    return f"{count(run.updates, 'update')} of the script did not answer the question; `--windows` watches more"
