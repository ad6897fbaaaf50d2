"""From what all ranks noted of a user's own script to measured windows.

What an update should apply is the sum of what its window's backwards brought, on all ranks, divided by what its losses
weigh together: the gradient of one loss over the whole window, in the proportions of the script's own weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from accumlint.common.frozen import frozen
from accumlint.confirming.measurement import (
    Counted,
    Unmeasurable,
    Vector,
    Weighed,
    compared,
    divided,
    dot,
    factor_of,
    moments,
    norm,
    others,
)
from accumlint.confirming.result import Pass, Raised, Regime, Total, Update

Notes = Mapping[str, Any]
_CLIP_EPSILON = 1e-6
# Below, an update is the sum of its window.
_TELLING = 1e-3


@frozen
class Window:
    """What one rank noted since the previous step of an optimizer."""

    step: Notes
    backwards: tuple[Notes, ...]
    clips: tuple[Notes, ...]
    reductions: int
    schedules: int

    @property
    def parts(self) -> list[Notes]:
        """What each backward made of a loss: its term, and its share of the window."""
        terms: dict[int, dict[int, int]] = {}
        found: list[Notes] = []
        size = len({e["microbatch"] for e in self.backwards})
        for event in self.backwards:
            for one in event["contributions"]:
                places = terms.setdefault(one["microbatch"], {})
                term = places.setdefault(one["loss"], len(places))
                share = one["share"] / event["scale"]
                if one["shaped"]:
                    # As a whole, a micro-batch counts once, divided by what it is divided by.
                    share = 1 / (divided(one["factors"], size, 1, 1) or math.nan)
                found.append({**one, "term": term, "share": share, "event": event})
        return found


@frozen
class Measured:
    """A pass, and by the numbers of its updates the largest ratio of two targets' weights where counts differ.

    `by_targets` is the same pass, compared with what the window brings where every target weighs the same. `unclipped`
    are the factors, by name, that gradients have before they are clipped.
    """

    done: Pass
    by_targets: Pass
    ratios: Mapping[int, float]
    unclipped: Mapping[int, str]
    ended_epochs: int
    joined: bool
    # The optimizers that a line of the source is about, empty for all.
    concerned: frozenset[str]
    # A loss is no plain sum of its targets' losses.
    shaped: bool


def windows(events: Sequence[Notes]) -> list[Window]:
    """The windows in what one rank noted."""
    found: list[Window] = []
    before: dict[int, int] = {}
    elsewhere = others(events)
    for index, event in enumerate(events):
        if event["kind"] not in ("step", "skip"):
            continue
        optimizer = event["optimizer"]
        since = events[before.get(optimizer, 0) : index]
        before[optimizer] = index + 1
        if event["kind"] == "step":
            left_out = elsewhere.get(optimizer, frozenset())
            stepped = set(event["parameters"])
            found.append(
                Window(
                    event,
                    tuple(
                        e
                        for e in since
                        if e["kind"] == "backward"
                        and e["line"] not in left_out
                        and _reaches(e, event)
                    ),
                    tuple(
                        e for e in since if e["kind"] == "clip" and stepped & set(e["parameters"])
                    ),
                    sum(e["kind"] == "reduce" for e in since),
                    sum(e["kind"] == "schedule" for e in since),
                )
            )
    return found


def _reaches(backward: Notes, step: Notes) -> bool:
    """Whether a backward brings anything to what a step applies: beside another network's, it may not."""
    return step["owned"] is None or any(_owned(step, backward["gradient"]))


def reference(ranks: Sequence[Window]) -> Vector | None:
    """What an update should apply, from its window on every rank; None where that cannot be told."""
    total = _brought(ranks)
    if total is None:
        return None
    together = _together(ranks)
    return _clipped(ranks, [x / together for x in total])


def reference_by_targets(ranks: Sequence[Window]) -> Vector | None:
    """The same where every target weighs as much as any other; None where backwards are no single micro-batch's."""
    if is_shaped(ranks):
        return None
    leading = _leading([part for window in ranks for part in window.parts])
    total: Vector = [0.0] * len(_owned(ranks[0].step, ranks[0].step["applied"]))
    counted = 0
    for window in ranks:
        for event in window.backwards:
            parts = [part for part in window.parts if part["event"] is event]
            count = sum(part["count"] for part in parts)
            share = sum(part["share"] for part in parts)
            own = _owned(window.step, event["gradient"])
            single = {part["term"] for part in parts} == {leading}
            if not single or len({part["microbatch"] for part in parts}) > 1 or not share:
                return None
            counted += count
            each = count / share / event["scale"]
            total = [a + b * each for a, b in zip(total, own, strict=True)]
    return _clipped(ranks, [x / counted for x in total]) if counted else None


def _clipped(ranks: Sequence[Window], due: Vector) -> Vector | None:
    """What clipping leaves of a gradient; None where that cannot be repeated."""
    for clip in ranks[0].clips[-1:]:
        at = _owned(ranks[0].step, clip["gradient"])
        size = norm(at)
        if not size or not clip["norm"]:
            continue
        # Of a sample, the norm of all is known where it was clipped.
        whole = clip["norm"] * norm(due) / size
        if not clip["comparable"]:
            if clip["bites"]:
                return None
            continue
        due = [x * min(1.0, clip["threshold"] / (whole + _CLIP_EPSILON)) for x in due]
    return due


def bite(events: Sequence[Notes], sampled: Sequence[int]) -> float:
    """A clipping threshold that acts: half the norm of the first window's gradient, 0 where nothing is clipped.

    `sampled` says how many numbers are compared, and of how many.
    """
    first = next(iter(windows(events)), None)
    if first is None or not any(event["kind"] == "clip" for event in events):
        return 0.0
    total = _brought([first])
    if total is None:
        return 0.0
    whole = math.sqrt(sampled[1] / max(sampled[0], 1))
    return 0.5 * whole * norm(total) / abs(_together([first]))


def usual_steps(events: Sequence[Notes]) -> int:
    """How many micro-batches most windows hold."""
    sizes = [len({e["microbatch"] for e in window.backwards}) for window in windows(events)]
    return max(sizes, key=sizes.count, default=0)


def _brought(ranks: Sequence[Window]) -> Vector | None:
    """The sum of what went backward; None where it is no number."""
    total: Vector = [0.0] * len(_owned(ranks[0].step, ranks[0].step["applied"]))
    for window in ranks:
        for event in window.backwards:
            own = _owned(window.step, event["gradient"])
            if len(own) != len(total) or not all(map(math.isfinite, own)):
                return None
            total = [a + b / event["scale"] for a, b in zip(total, own, strict=True)]
    return total


def _together(ranks: Sequence[Window]) -> float:
    """What the losses of a window weigh together, on all ranks: as many as there are ranks where it is right."""
    parts = [part for window in ranks for part in window.parts]
    leading = _leading(parts)
    weight = sum(part["share"] for part in parts if part["term"] == leading)
    if math.isnan(weight):
        raise Unmeasurable("one part of the loss is divided by the window's size, another is not")
    return weight if abs(weight) > 1e-12 else float(len(ranks))


def _leading(parts: Sequence[Notes]) -> int | None:
    """The term that weighs most."""
    shares: dict[int, float] = {}
    for part in parts:
        shares[part["term"]] = shares.get(part["term"], 0.0) + part["share"]
    return max(shares, key=lambda term: abs(shares[term]), default=None)


def _owned(step: Notes, vector: Vector) -> Vector:
    return (
        vector if step["owned"] is None else [vector[i] for i in step["owned"] if i < len(vector)]
    )


def measured(ranks: Sequence[Notes], file: str, line: int) -> Measured:
    """The measured pass from every rank's notes of it, as seen from a line of a file.

    Raises:
        Unmeasurable: where the ranks took different numbers of steps.
    """
    first = ranks[0]
    read = [windows(notes["notes"]["events"]) for notes in ranks]
    whole = not any(notes["raised"] for notes in ranks)
    if len({len(r) for r in read}) > 1 and whole:
        counts = ", ".join(str(len(r)) for r in read)
        raise Unmeasurable(f"the ranks took different numbers of steps ({counts})")
    events = first["notes"]["events"]
    updates: list[Update] = []
    by_targets: list[Update] = []
    ratios: dict[int, float] = {}
    unclipped: dict[int, str] = {}
    usual = usual_steps(events)
    for number, together in enumerate(zip(*read, strict=False), 1):
        found = _update(number, together, reference(together))
        if found is not None:
            updates.append(found)
            by_targets.append(_update(number, together, reference_by_targets(together)) or found)
            unclipped[number] = _unclipped(together)
            ratio = _ratio(together)
            if ratio is not None:
                ratios[number] = ratio
    raised = next((n["raised"] for n in ranks if n["raised"]), None)
    ends = [index for index, event in enumerate(events) if event["kind"] == "epoch"]
    done = Pass(
        regime=Regime.OWN,
        steps=first["asked"] or usual,
        ranks=len(ranks),
        updates=tuple(updates),
        left=_left(events, ends[0], read[0], updates, usual) if ends else (),
        raised=_raised(raised, file) if raised else None,
        reached=any([file, line] in notes["reached"] for notes in ranks),
        moments=tuple(moments(list(_seen_from(file, events)))),
        totals=tuple(_totals(read[0])),
        scales=tuple(first["notes"]["scales"]),
        pressure=first["pressure"],
    )
    return Measured(
        done,
        replace(done, updates=tuple(by_targets)),
        ratios,
        unclipped,
        len(ends),
        all(w.step["joined"] for r in read for w in r),
        concerned(list(_seen_from(file, events)), line),
        any(is_shaped(together) for together in zip(*read, strict=False)),
    )


def concerned(events: Sequence[Notes], line: int) -> frozenset[str]:
    """The optimizers that step at a line, or right after what goes backward there."""
    at = {str(e["optimizer"]) for e in events if e["kind"] == "step" and e["line"] == line}
    if at:
        return frozenset(at)
    found: set[str] = set()
    pending = False
    for event in events:
        if event["kind"] == "backward":
            pending = event["line"] == line
        elif event["kind"] == "step" and pending:
            found.add(str(event["optimizer"]))
            pending = False
    return frozenset(found)


def _raised(raised: Notes, file: str) -> Raised:
    line = raised["line"] if raised.get("file") == file else 0
    return Raised(raised["kind"], raised["message"], line)


def _seen_from(file: str, events: Sequence[Notes]) -> Iterator[Notes]:
    for event in events:
        if event["kind"] not in ("skip",):
            yield event if event["file"] == file else {**event, "line": 0}


def _update(number: int, ranks: Sequence[Window], due: Vector | None) -> Update | None:
    vectors = [_owned(w.step, w.step["applied"]) for w in ranks]
    if due is None or not all(len(v) == len(due) for v in vectors):
        return None
    first = ranks[0]
    counted = Counted(first.reductions, len(first.clips), first.schedules)
    found = compared(number, first.step, vectors, due, _weights(ranks), counted)
    scaled = next((e["scale"] for e in first.backwards), 1.0)
    numbers, targets = found.microbatches, found.targets
    factor = factor_of(found.scale, max(len(numbers), 1), len(ranks), sum(targets), scaled, 1e-5)
    return replace(found, factor=factor or _share_of_all(found.scale, ranks))


def _unclipped(ranks: Sequence[Window]) -> str:
    """The factor of a gradient right before it is clipped, "" where none explains it."""
    total = _brought(ranks)
    clips = ranks[0].clips
    if total is None or not clips:
        return ""
    together = _together(ranks)
    due = [x / together for x in total]
    at = _owned(ranks[0].step, clips[-1]["gradient"])
    size = norm(due)
    if not size or len(at) != len(due):
        return ""
    scale = dot(at, due) / size**2
    numbers, targets, _ = _weights(ranks)
    scaled = next((e["scale"] for e in ranks[0].backwards), 1.0)
    return factor_of(scale, max(len(numbers), 1), len(ranks), sum(targets), scaled, 1e-5)


def _share_of_all(scale: float, ranks: Sequence[Window]) -> str:
    parts = [part for window in ranks for part in window.parts]
    everything = sum(part["all"] for part in parts)
    counted = sum(part["count"] for part in parts)
    share = counted / everything if everything else 1.0
    return "counted/all" if share < 1 and abs(scale - share) <= 1e-5 * share else ""


def _weights(ranks: Sequence[Window]) -> Weighed:
    """The micro-batches of an update, their targets on all ranks, and what one weighs against the large batch."""
    order = tuple(sorted({e["microbatch"] for e in ranks[0].backwards} | {
        part["microbatch"] for part in ranks[0].parts
    }))  # fmt: skip
    parts = [part for window in ranks for part in window.parts]
    leading = _leading(parts)
    own = [part for part in parts if part["term"] == leading]
    everything = sum(part["count"] for part in own)
    targets = {m: sum(part["count"] for part in own if part["microbatch"] == m) for m in order}
    shares = {m: sum(part["share"] for part in own if part["microbatch"] == m) for m in order}
    weights = {m: shares[m] * everything / len(ranks) / max(targets[m], 1) for m in order}
    if not own:
        return order, (), ()
    return order, tuple(targets.values()), tuple(weights.values())


def is_shaped(ranks: Sequence[Window]) -> bool:
    """Whether a loss is no plain sum of its targets' losses."""
    return any(part["shaped"] for window in ranks for part in window.parts)


def _ratio(ranks: Sequence[Window]) -> float | None:
    """How much more one target of a window weighs than another; None where all micro-batches count as many."""
    if is_shaped(ranks):
        return None
    every: list[tuple[int, float]] = []
    for window in ranks:
        parts = window.parts
        leading = _leading(parts)
        by: dict[int, list[Notes]] = {}
        for part in parts:
            if part["term"] == leading:
                by.setdefault(part["microbatch"], []).append(part)
        for found in by.values():
            count = sum(part["count"] for part in found)
            if count:
                every.append((count, sum(part["share"] for part in found) / count))
    if len({count for count, _ in every}) < 2:
        return None
    weights = [abs(weight) for _, weight in every]
    return max(weights) / min(weights) if min(weights) > 0 else math.inf


def _left(
    events: Sequence[Notes],
    end: int,
    found: Sequence[Window],
    updates: Sequence[Update],
    usual: int,
) -> tuple[int, ...]:
    """The micro-batches of the first epoch that no update applies, or only one of the next epoch on top of its own."""
    last = next((i for i in range(end, -1, -1) if events[i]["kind"] in ("step", "skip")), -1)
    left = {e["microbatch"] for e in events[last + 1 : end] if e["kind"] == "backward"}
    following = next((e["kind"] for e in events[end:] if e["kind"] in ("step", "backward")), "")
    if not left or following == "step":
        return ()
    number = sum(e["kind"] == "step" for e in events[:end]) + 1
    then = next((u for u in updates if u.number == number), None)
    if then is not None and then.direction < _TELLING and len(then.microbatches) <= usual:
        # The window goes on into the next epoch, and is applied whole.
        return ()
    return tuple(sorted(left))


def _totals(found: Sequence[Window]) -> Iterator[Total]:
    for number, window in enumerate(found, 1):
        for total in window.step["totals"]:
            yield Total(total["name"], number, window.step["epoch"], total["value"], total["nodes"])
