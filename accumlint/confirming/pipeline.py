"""One `accumlint confirm`: findings to plans, plans to launches by world size, launches to confirmations."""

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
from accumlint.confirming.passes import Wish
from accumlint.confirming.plan import Plan, again, planned
from accumlint.confirming.result import Confirmation, Verdict
from accumlint.confirming.user_script import Script, text_of
from accumlint.confirming.verdict import judged
from accumlint.diagnostics.fixing import fix, fixed
from accumlint.diagnostics.results.report import Checked, Report
from accumlint.files.inputs.discovery import Target
from accumlint.files.source import decode
from accumlint.runtime import judging, launching, records


@frozen
class Asked:
    """A file to confirm findings in, at these lines only where any are given; `after` is its mended text, if any."""

    target: Target
    lines: frozenset[int] = frozenset()
    after: str | None = None


@frozen
class Batch:
    """The plans of one world size: what one launch runs."""

    ranks: int
    plans: tuple[Plan, ...]


def gathered(asked: Iterable[Asked], wish: Wish, mend: bool) -> tuple[list[Plan], list[Problem]]:
    """The plans for every finding and those for its mended text where one is asked for, and what kept files from it."""
    shared = Shared()
    plans: list[Plan] = []
    problems: list[Problem] = []
    for one in asked:
        for plan in _gathered(one, wish, mend, shared):
            if isinstance(plan, Problem):
                problems.append(plan)
            else:
                plans.append(plan)
    return plans, problems


def _gathered(one: Asked, wish: Wish, mend: bool, shared: Shared) -> Iterator[Plan | Problem]:
    examined = check.read(one.target, lambda data, target: check.examine(data, target, shared))
    if isinstance(examined, Problem):
        yield examined
        return
    if isinstance(examined, Checked):
        yield from examined.problems
        return
    yield from examined.checked.problems
    if mend and one.after is None:
        examined = check.with_fixes(examined)
    found = list(planned(examined, one.lines, wish))
    yield from found
    text = examined.program.text
    reports = [plan.report for plan in found if plan.report.fix is not None]
    after = one.after or (_fixed(text, one, reports) if reports else text)
    if found and after != text:
        mended = check.examine(after.encode(), one.target, shared)
        if isinstance(mended, Examined):
            # The same question is asked of the mended text.
            yield from (replace(again(plan, mended, wish), arm="fixed") for plan in found)
        else:
            yield from mended.problems


def _fixed(text: str, one: Asked, reports: Sequence[Report]) -> str:
    """The text with the fixes of the lines that were asked about, or else with all, as `check --fix` makes them."""
    if one.lines:
        return fixed(text, reports)
    return decode(fix(text.encode(), one.target, unsafe=True).after)


def batches(plans: Sequence[Plan]) -> Iterator[Batch]:
    """The launches to make: one for each world size."""
    runnable = [plan for plan in plans if plan.job is not None]
    for ranks in sorted({plan.ranks for plan in runnable}):
        yield Batch(ranks, tuple(plan for plan in runnable if plan.ranks == ranks))


def confirm(
    plans: Sequence[Plan], options: Options, progress: Callable[[Plan], None]
) -> list[Confirmation]:
    """The confirmations of plans, in their order; `progress` hears of each that has been run.

    Raises:
        LaunchError: where nothing can be run at all.
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
    # What is mended is judged by what the found text has shown.
    for plan in sorted(plans, key=lambda plan: plan.arm == "fixed"):
        found = launched.get(id(plan), Launched())
        way, key = found.way(), id(plan.report)
        before = shown.get(key)
        alike = before is not None and way is not None and before.way() == way
        answer = judged(plan, found, options.dtype, before if alike else None)
        answers[id(plan)] = _telling(answer, found)
        if answers[id(plan)].verdict is Verdict.CONFIRMED:
            shown[key] = found
    return [answers[id(plan)] for plan in plans]


def confirm_script(
    script: Script, plans: Sequence[Plan], updates: int, ranks: int, limit: float
) -> list[Confirmation]:
    """The confirmations of plans, in their order, from a run of a user's own script on `ranks` processes.

    The script runs as it is, without a sandbox, for so many updates and `limit` seconds at most.
    """
    words = script.arguments if script.module else (script.file, *script.arguments)
    executed = launching.command(words, script.module, ranks)
    with tempfile.TemporaryDirectory(prefix="accumlint-run-") as folder:
        ended = launching.launch(executed, launching.Watch(updates), Path(folder), limit)
        noted = records.read(Path(folder))
    run = judging.judge(noted)
    failure = ended.failure(run.updates, noted=bool(noted))
    return [user_script_verdict.judged(plan, run, failure) for plan in plans]


def _telling(answer: Confirmation, launched: Launched) -> Confirmation:
    """A confirmation that tells by what the code could have changed what it rests on."""
    if not launched.reached_into:
        return answer
    told = f"the code uses {', '.join(launched.reached_into)}, by which it could change what is recorded"
    return replace(answer, also=(*answer.also, told))


def sources(asked: Iterable[Asked]) -> Mapping[str, str]:
    """The text of each file by the name that it is shown under, as far as it can be read."""
    found = {one.target.shown: text_of(one.target.file) for one in asked}
    return {shown: text for shown, text in found.items() if text is not None}
