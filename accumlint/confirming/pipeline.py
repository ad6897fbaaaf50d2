"""The pipeline of `accumlint confirm`: plans for findings, a launch per world size, and their confirmations."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from accumlint import check
from accumlint.check import Examined, Shared
from accumlint.common.frozen import frozen
from accumlint.common.problem import Problem
from accumlint.confirming import user_script_verdict
from accumlint.confirming.launch import Launched, Options, launch
from accumlint.confirming.passes import Overrides
from accumlint.confirming.plan import Plan, planned, replanned
from accumlint.confirming.result import Confirmation, Verdict
from accumlint.confirming.user_script import Script, text_of
from accumlint.confirming.verdict import judged
from accumlint.diagnostics.fixing import fix, fixed
from accumlint.diagnostics.results.report import Checked, Report
from accumlint.files.inputs.discovery import Target
from accumlint.files.source import decode
from accumlint.runtime import judging, launching, records


@frozen
class Request:
    """A file whose findings to confirm, only at `lines` if any; `after` is its fixed text, if known."""

    target: Target
    lines: frozenset[int] = frozenset()
    after: str | None = None


@frozen
class Batch:
    """The plans of one world size, for one launch."""

    ranks: int
    plans: tuple[Plan, ...]


def gathered(
    requests: Iterable[Request], overrides: Overrides, mend: bool
) -> tuple[list[Plan], list[Problem]]:
    """The plans for every finding, with `mend` also in the fixed text, and the problems of files."""
    shared = Shared()
    plans: list[Plan] = []
    problems: list[Problem] = []
    for request in requests:
        for plan in _gathered(request, overrides, mend, shared):
            if isinstance(plan, Problem):
                problems.append(plan)
            else:
                plans.append(plan)
    return plans, problems


def _gathered(
    request: Request, overrides: Overrides, mend: bool, shared: Shared
) -> Iterator[Plan | Problem]:
    examined = check.read(request.target, lambda data, target: check.examine(data, target, shared))
    if isinstance(examined, Problem):
        yield examined
        return
    if isinstance(examined, Checked):
        yield from examined.problems
        return
    yield from examined.checked.problems
    if mend and request.after is None:
        examined = check.with_fixes(examined)
    found = list(planned(examined, request.lines, overrides))
    yield from found
    text = examined.program.text
    reports = [plan.report for plan in found if plan.report.fix is not None]
    after = request.after or (_fixed(text, request, reports) if reports else text)
    if found and after != text:
        mended = check.examine(after.encode(), request.target, shared)
        if isinstance(mended, Examined):
            # The fixed text answers the same question.
            yield from (replace(replanned(plan, mended, overrides), arm="fixed") for plan in found)
        else:
            yield from mended.problems


def _fixed(text: str, request: Request, reports: Sequence[Report]) -> str:
    """The text with the fixes of the requested lines, else with all fixes of `check --fix`."""
    if request.lines:
        return fixed(text, reports)
    return decode(fix(text.encode(), request.target, unsafe=True).after)


def batches(plans: Sequence[Plan]) -> Iterator[Batch]:
    """One launch for each world size."""
    runnable = [plan for plan in plans if plan.job is not None]
    for ranks in sorted({plan.ranks for plan in runnable}):
        yield Batch(ranks, tuple(plan for plan in runnable if plan.ranks == ranks))


def confirm(
    plans: Sequence[Plan], options: Options, progress: Callable[[Plan], None]
) -> list[Confirmation]:
    """The confirmations of plans, in their order; `progress` receives each finished plan.

    Raises:
        LaunchError: where nothing can run.
    """
    launched: dict[int, Launched] = {}
    for batch in batches(plans):
        jobs = [plan.job for plan in batch.plans if plan.job is not None]

        def done(number: int, batch: Batch = batch) -> None:
            progress(batch.plans[number])

        found = launch(jobs, batch.ranks, options, done)
        launched.update(zip(map(id, batch.plans), found, strict=True))
    answers: dict[int, Confirmation] = {}
    shown: dict[int, Launched] = {}
    # The fixed text is judged relative to the original one.
    for plan in sorted(plans, key=lambda plan: plan.arm == "fixed"):
        found = launched.get(id(plan), Launched())
        mode, key = found.mode(), id(plan.report)
        before = shown.get(key)
        alike = before is not None and mode is not None and before.mode() == mode
        answer = judged(plan, found, options.dtype, before if alike else None)
        answers[id(plan)] = _with_tampering_note(answer, found)
        if answers[id(plan)].verdict is Verdict.CONFIRMED:
            shown[key] = found
    return [answers[id(plan)] for plan in plans]


def confirm_script(
    script: Script, plans: Sequence[Plan], updates: int, ranks: int, limit: float
) -> list[Confirmation]:
    """The confirmations of plans, in their order, from a run of the user's script on `ranks` processes.

    The script runs unchanged and without a sandbox, for at most `updates` updates and `limit` seconds.
    """
    words = script.arguments if script.module else (script.file, *script.arguments)
    executed = launching.command(words, script.module, ranks)
    with tempfile.TemporaryDirectory(prefix="accumlint-run-") as folder:
        ended = launching.launch(executed, launching.Watch(updates), Path(folder), limit)
        noted = records.read(Path(folder))
    run = judging.judge(noted)
    failure = ended.failure(run.updates, noted=bool(noted))
    return [user_script_verdict.judged(plan, run, failure) for plan in plans]


def _with_tampering_note(answer: Confirmation, launched: Launched) -> Confirmation:
    """A confirmation with a note about functions that the code uses and that can change recorded results."""
    if not launched.reached_into:
        return answer
    note = f"the code uses {', '.join(launched.reached_into)}, by which it could change what is recorded"
    return replace(answer, also=(*answer.also, note))


def sources(requests: Iterable[Request]) -> Mapping[str, str]:
    """The text of each readable file, by its displayed name."""
    found = {request.target.shown: text_of(request.target.file) for request in requests}
    return {shown: text for shown, text in found.items() if text is not None}
