"""One `accumlint confirm`: findings to plans, plans to launches by world size, launches to confirmations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from accumlint.confirming.launch import Launched, Options, launch
from accumlint.confirming.plan import Plan, Wish, again, planned
from accumlint.confirming.result import Confirmation
from accumlint.confirming.verdict import judged
from accumlint.discovery import Target
from accumlint.fixing import fixed
from accumlint.source import UndecodableSource, decode


@dataclass(frozen=True)
class Asked:
    """A file to confirm findings in, at these lines only where any are given; `after` is its mended text, if any."""

    target: Target
    lines: frozenset[int] = frozenset()
    after: str | None = None


@dataclass(frozen=True)
class Batch:
    """The plans of one world size: what one launch runs."""

    ranks: int
    plans: tuple[Plan, ...]


def gathered(asked: Iterable[Asked], wish: Wish, mend: bool) -> list[Plan]:
    """The plans for every finding, and those for its mended text where one is asked for."""
    plans: list[Plan] = []
    for one in asked:
        text = _text(one.target)
        if text is None:
            continue
        found = list(planned(one.target, text, one.lines, wish))
        plans.extend(found)
        after = one.after
        if after is None and mend and found:
            reports = [plan.report for plan in found if plan.report.fix is not None]
            after = fixed(text, reports) if reports else None
        if after is not None and after != text:
            plans.extend(_mended(plan, one.target, after, wish) for plan in found)
    return plans


def _mended(plan: Plan, target: Target, text: str, wish: Wish) -> Plan:
    """The plan that asks the same question of a file's mended text."""
    return replace(again(plan, target, text, wish), arm="fixed")


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
    return [judged(plan, launched.get(id(plan), Launched()), options.dtype) for plan in plans]


def sources(asked: Iterable[Asked]) -> Mapping[str, str]:
    """The text of each file by the name that it is shown under, as far as it can be read."""
    found = {one.target.shown: _text(one.target) for one in asked}
    return {shown: text for shown, text in found.items() if text is not None}


def _text(target: Target) -> str | None:
    try:
        with open(target.file, "rb") as file:
            return decode(file.read())
    except (OSError, UndecodableSource):
        return None
