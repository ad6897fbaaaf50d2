"""From the notes of all ranks to measured windows: what each update applied, and what the large batch would have.

The reference of an update is the gradient of the mean over all counted targets of its micro-batches on all ranks, then
clipped where the loop clips. Vectors are short (about a hundred numbers), so plain Python is enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accumlint.common.frozen import frozen
from accumlint.confirming.factors import SHARE, divided, dot, factor_of, norm, products
from accumlint.confirming.result import Moment, Pass, Raised, Regime, Total, Update

Vector = list[float]
Notes = Mapping[str, Any]
# Clipping in torch divides by the norm plus this.
_CLIP_EPSILON = 1e-6
# An update that lacks a micro-batch is further off.
_WIPED = 0.05


class Unmeasurable(Exception):
    """The notes allow no comparison; the message says why."""


@frozen
class Part:
    """What one backward brought to one update: a loss, its counted targets, their weight, their summed gradient.

    Parts with the same `term` are the same term of the large batch's loss. `factors` are the constants that each of
    its summands is multiplied with. One that is `shaped` is no plain sum of its targets, and counts as a whole.
    """

    microbatch: int
    term: int
    count: int
    elements: int
    weight: float
    scale: float
    gradient: Vector
    factors: Sequence[Sequence[float]] = ()
    shaped: bool = False
    # The accumulation steps that the loop was told, 1 for none.
    steps: int = 1


@dataclass
class Window:
    """What happened on one rank up to one step."""

    step: Notes
    parts: dict[int, Part]
    clips: int
    threshold: float
    reductions: int
    schedules: int


@dataclass
class _Rank:
    windows: list[Window] = field(default_factory=list[Window])
    lefts: tuple[tuple[int, ...], ...] = ()


def measured(ranks: Sequence[Notes], steps: int, line: int, weighted: bool = False) -> Pass:
    """The measured pass from every rank's notes of it; `weighted` as for `reference`.

    Raises:
        Unmeasurable: where the ranks took different numbers of steps, or no step was taken.
    """
    first = ranks[0]
    spec = first["spec"]
    read = [_read(notes) for notes in ranks]
    if len({len(r.windows) for r in read}) > 1 and not any(n["raised"] for n in ranks):
        counts = ", ".join(str(len(r.windows)) for r in read)
        raise Unmeasurable(f"the ranks took different numbers of steps ({counts})")
    updates = tuple(
        _update(number, windows, steps, len(ranks), weighted)
        for number, windows in enumerate(zip(*(r.windows for r in read), strict=False), 1)
    )
    events = first["notes"]["events"]
    raised = next((n["raised"] for n in ranks if n["raised"]), None)
    return Pass(
        regime=Regime(spec["regime"]),
        steps=steps,
        ranks=len(ranks),
        updates=updates,
        left=next((x for x in read[0].lefts if not _completed(x, updates)), ()),
        raised=Raised(raised["kind"], raised["message"], raised["line"]) if raised else None,
        reached=any(e["line"] == line for e in events),
        moments=tuple(Moment(e["kind"], e["microbatch"], e["line"]) for e in events),
        totals=tuple(_totals(read[0])),
        scales=tuple(first["notes"]["scales"]),
        pressure=first["pressure"],
    )


def _read(notes: Notes) -> _Rank:
    """The windows of one rank, and what its epochs leave behind."""
    events: Sequence[Notes] = notes["notes"]["events"]
    ends = (index for index, event in enumerate(events) if event["kind"] == "epoch")
    own = notes["spec"]["regime"] == Regime.OWN
    return _Rank(windows(events), tuple(left for end in ends if (left := _left(events, end, own))))


def _completed(left: Sequence[int], updates: Sequence[Update]) -> bool:
    """True where the next epoch completes what one leaves to a window like any other."""
    sizes = [len(u.microbatches) for u in updates]
    usual = max(sizes, key=sizes.count, default=0)
    after = next((u for u in updates if set(left) & set(u.microbatches)), None)
    return after is not None and len(after.microbatches) == usual and after.error < _WIPED


def windows(events: Sequence[Notes]) -> list[Window]:
    """The windows in what one rank noted: per optimizer, what went backward since its previous step."""
    found: list[Window] = []
    before: dict[int, int] = {}
    elsewhere = others(events)
    for index, event in enumerate(events):
        if event["kind"] == "step":
            since = events[before.get(event["optimizer"], 0) : index + 1]
            before[event["optimizer"]] = index + 1
            found.append(_window(event, since, elsewhere.get(event["optimizer"], frozenset())))
    return found


def _left(events: Sequence[Notes], end: int, own: bool) -> tuple[int, ...]:
    """The micro-batches that an epoch leaves behind: backwarded, not stepped, and not stepped right after either.

    With the end of a run, a loop may leave what it will; an `own` script's run is ended from outside.
    """
    after = next((e["kind"] for e in events[end:] if e["kind"] in ("step", "backward")), "")
    if after == "step" or not (after or own):
        return ()
    left: list[int] = []
    for event in reversed(events[:end]):
        if event["kind"] == "step":
            break
        if event["kind"] == "backward":
            left.extend(p["microbatch"] for p in event["contributions"])
    return tuple(sorted(set(left)))


def _window(step: Notes, since: Sequence[Notes], others: frozenset[int]) -> Window:
    """The window up to a step. `others` are lines that go backward for another optimizer's sake."""
    owned: Sequence[int] | None = step["owned"]
    parts: dict[int, Part] = {}
    terms: dict[int, dict[object, int]] = {}
    stepped = set(step["parameters"])
    for event in since:
        if event["kind"] != "backward" or event["line"] in others:
            continue
        nth: dict[int, int] = {}
        for found in event["contributions"]:
            gradient = found["gradient"]
            own = gradient if owned is None else [gradient[i] for i in owned]
            # What is no number belongs to no mean.
            if stepped.isdisjoint(found["reached"]) or not all(map(math.isfinite, own)):
                continue
            if found["shaped"] and found.get("doubled"):
                # What counts as a whole is what it would bring without the control.
                own = [x / 2 for x in own]
            line = found["loss"]
            nth[line] = nth.get(line, -1) + 1
            # Micro-batches differ in the branch that they take, and a micro-batch may go backward in pieces: the first
            # place of each is the first term, and so on.
            places = terms.setdefault(found["microbatch"], {})
            term = places.setdefault((event["line"], line, nth[line]), len(places))
            # A loss that goes backward twice is one loss of the large batch.
            part = Part(
                found["microbatch"], term, found["count"], found["elements"], found["weight"], event["scale"], own,
                found["factors"], found["shaped"], event["steps"],
            )  # fmt: skip
            parts.setdefault(found["number"], part)
    clips = [e for e in since if e["kind"] == "clip" and stepped & set(e["parameters"])]
    return Window(
        step, parts, len(clips), threshold=max((e["threshold"] for e in clips), default=0.0),
        reductions=_count(since, "reduce"), schedules=_count(since, "schedule"),
    )  # fmt: skip


def _count(events: Sequence[Notes], kind: str) -> int:
    return sum(event["kind"] == kind for event in events)


def others(events: Sequence[Notes]) -> dict[int, frozenset[int]]:
    """Per optimizer, the lines whose backwards it never applies, where it applies those of another line.

    So it is with two networks that train each other: the generator's loss leaves gradients in the discriminator, which
    are cleared before its own.
    """
    given: dict[int, set[int]] = {}
    places: dict[int, list[int]] = {}
    for place, event in enumerate(events):
        if event["kind"] == "backward":
            given.setdefault(event["line"], set()).add(event["microbatch"])
            places.setdefault(event["line"], []).append(place)
    owned = {e["optimizer"]: set(e["parameters"]) for e in reversed(events) if e["kind"] == "step"}
    found: dict[int, frozenset[int]] = {}
    for optimizer, own in owned.items():
        kept: set[int] = set()
        pending: set[int] = set()
        for event in events:
            if event["kind"] == "backward":
                pending.add(event["line"])
            elif event["kind"] == "clear" and own.issubset(event["parameters"]):
                pending.clear()
            elif event["kind"] == "step" and event["optimizer"] == optimizer:
                kept |= pending
        found[optimizer] = frozenset(
            line
            for line in (given.keys() - kept if kept else ())
            # Of one optimizer, only what goes backward beside what it applies, or is a probe before all of it.
            if len(owned) > 1
            or any(given[line] & given[other] for other in kept)
            or all(max(places[line]) < min(places[other]) for other in kept)
        )
    return found


def _applied(window: Window) -> Vector:
    vector, owned = window.step["applied"], window.step["owned"]
    return vector if owned is None else [vector[i] for i in owned]


def _update(
    number: int, windows: Sequence[Window], steps: int, world: int, weighted: bool
) -> Update:
    vectors = [_applied(w) for w in windows]
    known = [*vectors, *(p.gradient for w in windows for p in w.parts.values())]
    if len(set(map(len, known))) > 1:
        raise Unmeasurable("the ranks know different parameters")
    first, own = windows[0], vectors[0]
    microbatches, targets, weights = _weights(windows, world)
    due = first.step.get("due") or reference(windows, weighted)
    size = norm(due)
    scale = dot(own, due) / size**2 if size else 0.0
    rest = norm([a - scale * b for a, b in zip(own, due, strict=True)])
    applied = norm(own)
    error = max(norm([a - b for a, b in zip(v, due, strict=True)]) for v in vectors)
    spread = max(norm([a - b for a, b in zip(v, own, strict=True)]) for v in vectors)
    factor = factor_of(
        scale,
        # A loop that writes its own number of steps has windows of that many.
        len(microbatches) if len(microbatches) > 1 else steps,
        world,
        sum(targets),
        next((p.scale for p in first.parts.values()), 1.0),
        # A clip adds to the norm that it divides by.
        near=1e-4 if first.clips else 1e-6,
        share=_share(windows),
    )
    return Update(
        number=number,
        optimizer=str(first.step["optimizer"]),
        epoch=first.step["epoch"],
        microbatches=microbatches,
        targets=targets,
        weights=weights,
        applied=applied,
        reference=size,
        error=error / size if size else math.nan,
        direction=rest / size / max(abs(scale), 1e-300) if size and scale else 1.0,
        cosine=dot(own, due) / (applied * size) if applied and size else 0.0,
        scale=scale,
        factor=factor,
        spread=spread / size if size else math.nan,
        reductions=first.reductions,
        clips=first.clips,
        schedules=first.schedules,
    )


def reference(windows: Sequence[Window], weighted: bool = False) -> Vector:
    """What an update should apply, from its window on every rank: the large batch's gradient, clipped where it is.

    `weighted`: a factor of the loss is one that it has on purpose, unless a number of steps, ranks or targets
    explains it.
    """
    mean = _mean(windows)
    if weighted:
        own = own_weight(windows)
        mean = [own * x for x in mean]
    if not windows[0].threshold:
        return mean
    most = windows[0].threshold / (norm(mean) + _CLIP_EPSILON)
    return [x * min(1.0, most) for x in mean]


def _mean(windows: Sequence[Window]) -> Vector:
    """The gradient of the mean over the window's targets on all ranks; several losses keep the user's proportions.

    Of a loss that is no plain sum over targets, it is the mean of the micro-batches' own gradients.
    """
    terms: dict[int, list[Part]] = {}
    for window in windows:
        for part in window.parts.values():
            terms.setdefault(part.term, []).append(part)
    if not terms:
        return [0.0] * len(_applied(windows[0]))
    leading: float | None = None
    total: Vector = []
    for parts in terms.values():
        share = _share_of(parts[0], windows)
        leading = leading or abs(share)
        proportion = share / leading if leading else 1.0
        if any(p.shaped for p in parts):
            units = [p.weight / p.scale / _share_of(p, windows) / len(parts) for p in parts]
        else:
            units = [1 / max(sum(p.count for p in parts), 1)] * len(parts)
        mean = [
            sum(x * unit for x, unit in zip(column, units, strict=True)) * proportion
            for column in zip(*(p.gradient for p in parts), strict=True)
        ]
        total = [a + b for a, b in zip(total, mean, strict=True)] if total else mean
    return total


def _share_of(part: Part, windows: Sequence[Window]) -> float:
    """What a part's targets weigh together; of one that is no plain sum, what its micro-batch is divided by.

    Raises:
        Unmeasurable: where some of its summands are divided by the window's size, and others are not.
    """
    if not part.shaped:
        return part.weight * part.count / part.scale
    found = divided(part.factors, _size(windows), part.steps, len(windows))
    if found is None:
        raise Unmeasurable(
            f"a part of the loss of micro-batch {part.microbatch} is divided by the window's size, and a part is not"
        )
    return 1 / found


def _size(windows: Sequence[Window]) -> int:
    return len({p.microbatch for p in windows[0].parts.values()})


def own_weight(windows: Sequence[Window]) -> float:
    """What a loss is multiplied with on purpose, as far as that can be told from what it is divided by."""
    parts = [part for window in windows for part in window.parts.values()]
    leading = [part for part in parts if parts and part.term == parts[0].term]
    if not leading or any(part.shaped for part in leading):
        return 1.0
    weight = sum(_share_of(part, windows) for part in leading) / len(windows)
    size = _size(windows)
    targets = sum(part.count for part in leading)
    name = factor_of(weight, size, len(windows), targets, parts[0].scale, share=_share(windows))
    found = divided(leading[0].factors, size, leading[0].steps, len(windows))
    if found is None or weight <= 0 or name.startswith("N") or name in ("1", SHARE):
        return 1.0
    if found > 1:
        twice = any(abs(x * found**2 - 1) < 1e-6 for f in leading[0].factors for x in products(f))
        return 1.0 if twice else weight
    return 1.0 if name else weight / size


def _weights(
    windows: Sequence[Window], world: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]:
    """The micro-batches of an update, their targets on all ranks, and what one weighs against the large batch."""
    leading = next((p.term for p in windows[0].parts.values()), None)
    by_microbatch: dict[int, list[Part]] = {}
    for window in windows:
        for part in window.parts.values():
            if part.term == leading:
                by_microbatch.setdefault(part.microbatch, []).append(part)
    everything = sum(p.count for parts in by_microbatch.values() for p in parts)
    targets = {m: sum(p.count for p in parts) for m, parts in by_microbatch.items()}
    weights = {
        m: sum(_share_of(p, windows) for p in parts) * everything / world / max(targets[m], 1)
        for m, parts in by_microbatch.items()
    }
    order = sorted(by_microbatch)
    return tuple(order), tuple(targets[m] for m in order), tuple(weights[m] for m in order)


def _share(windows: Sequence[Window]) -> float:
    """How many of the elements of a window's losses count."""
    parts = [part for window in windows for part in window.parts.values()]
    return sum(p.count for p in parts) / max(sum(p.elements for p in parts), 1)


def _totals(rank: _Rank) -> Iterator[Total]:
    for number, window in enumerate(rank.windows, 1):
        for total in window.step["totals"]:
            yield Total(total["name"], number, window.step["epoch"], total["value"], total["nodes"])
