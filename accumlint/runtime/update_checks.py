"""Checks that schedules and averages move once per update, and that no graphs are retained."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from accumlint.common.observed import Observed
from accumlint.runtime.answers import Answer, right
from accumlint.runtime.records import Event, Spot, spot
from accumlint.runtime.windows import Windows


def answers(found: Windows) -> Iterator[Answer]:
    """The answers about schedules, averages and retained graphs."""
    if found.usual > 1:
        yield from _schedules(found)
        yield from _averages(found)
    yield from _graphs(found)


def _between(found: Windows, kind: str) -> list[list[Event]]:
    """The events of a kind in each window of the usual size."""
    steps = {id(w.step.event): w for w in found.steady}
    groups: list[list[Event]] = []
    current: list[Event] = []
    whole = False
    for event in found.first.events:
        if event["kind"] == kind:
            current.append(event)
        elif event["kind"] == "step" and event["optimizer"] == found.history.optimizer:
            # Events behind a step belong to it until the next backward.
            whole = id(event) in steps
        elif event["kind"] == "backward" and whole:
            groups.append(current)
            current, whole = [], False
    return groups[1:] if len(groups) > 1 else groups


def _schedules(found: Windows) -> Iterator[Answer]:
    groups = [
        [e for e in group if e.get("optimizer") == found.history.optimizer]
        for group in _between(found, "schedule")
    ]
    counts = Counter(len(group) for group in groups if group)
    if not counts:
        return
    usual = counts.most_common(1)[0][0]
    event = next(group[-1] for group in groups if group)
    prepared = "accelerate" in event["through"] and usual == found.world
    if usual == 1 or prepared:
        figures = f"the schedule moves {usual} times per update"
        yield right(Observed.SCHEDULED_EACH_TIME, figures, event)
    if usual != found.usual or prepared or _counts_microbatches(found, event):
        return
    yield Answer(
        Observed.SCHEDULED_EACH_TIME, True, "", (spot(event), *_backwards(found)),
        message=f"{event['name']} moves {usual} times per update",
        applied=f"{usual} steps of the schedule in a window of {found.usual} micro-batches",
        expected=f"one step is due; seen in {len(groups)} windows, control: each call was seen",
        confidence="certain" if event["length"] else "likely",
    )  # fmt: skip


def _backwards(found: Windows) -> Iterator[Spot]:
    return (spot(found.backward(n)) for n in found.steady[-1].backwards)


def _counts_microbatches(found: Windows, event: Event) -> bool:
    """Whether the length of a schedule is a multiple of an epoch's micro-batches."""
    lengths = {int(e["length"]) for e in found.first.of("epoch") if e["length"]}
    return any(event["length"] and event["length"] % length == 0 for length in lengths)


def _averages(found: Windows) -> Iterator[Answer]:
    groups = _between(found, "average")
    counts = Counter(
        number for group in groups for number in Counter(e["owner"] for e in group).values()
    )
    if not counts:
        return
    usual = counts.most_common(1)[0][0]
    event = next(group[-1] for group in groups if group)
    if usual == 1:
        yield right(Observed.AVERAGED_EACH_TIME, "the average moves once per update", event)
    elif usual == found.usual:
        yield Answer(
            Observed.AVERAGED_EACH_TIME, True, "", (spot(event), *_backwards(found)),
            message=f"{event['name']} moves {usual} times per update: its decay is applied as often",
            applied=f"{usual} updates of the average in a window of {found.usual} micro-batches",
            expected=f"one update is due; seen in {len(groups)} windows, control: each call was seen",
        )  # fmt: skip


def _graphs(found: Windows) -> Iterator[Answer]:
    """Graphs of micro-batches that are retained from window to window."""
    steps = [m.event for m in found.history.steps]
    counts = [int(event.get("held", 0)) for event in steps]
    growth = [after - before for before, after in pairwise(counts)]
    least = max(found.usual - 1, 1)
    if len(growth) < 3 or sum(g >= least for g in growth) < 3 or counts[-1] < 3 * least:
        if len(growth) >= 3 and max(growth) <= 0:
            figures = f"no graph is held from window to window in {len(steps)} steps"
            yield right(Observed.TOTAL_ATTACHED, figures, steps[-1])
        return
    names = Counter((t["file"], t["name"], t["first"]) for e in steps for t in e.get("totals", ()))
    named = names.most_common(1)[0][0] if names else None
    place = _line_of(*named) if named else spot(steps[-1])
    what = f"`{named[1]}`" if named else "a variable"
    yield Answer(
        Observed.TOTAL_ATTACHED, True, "", (place, spot(steps[-1])),
        message=f"{what} holds the graph of every micro-batch: {counts[-1]} after {len(counts)} updates",
        applied=f"graphs held at each step: {', '.join(map(str, counts[:8]))}",
        expected="0 from earlier windows, control: the same count falls when a graph is freed",
    )  # fmt: skip


def _line_of(file: str, name: str, first: int) -> Spot:
    """The line that adds to a variable, else the first line of its function."""
    written = re.compile(
        rf"(?<![\w.]){re.escape(name)}\s*(\+=|=[^=].*\b{re.escape(name)}\b|\.append\()"
    )
    try:
        rows: list[Any] = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return file, first
    for at in range(max(first - 1, 0), len(rows)):
        if written.search(rows[at]):
            return file, at + 1
    return file, max(first, 1)
