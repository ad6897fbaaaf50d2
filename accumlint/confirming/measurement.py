"""Measures windows from the notes of all ranks: the applied gradient of each update and the large batch's.

The reference of an update is the gradient of the mean over all targets of its micro-batches on all ranks, clipped where
the loop clips. Vectors are short (about a hundred numbers), so plain Python suffices.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accumlint.common.frozen import frozen
from accumlint.confirming.factors import SHARE, divided, dot, factor_of, norm, products
from accumlint.confirming.result import Moment, Pass, Raised, Regime, Total, Update

Vector = list[float]
Notes = Mapping[str, Any]
# torch adds this to the norm in clipping.
_CLIP_EPSILON = 1e-6
# The smallest error of an update that lacks a micro-batch.
_WIPED = 0.05


class Unmeasurable(Exception):
    """The notes cannot be compared; the message says why."""


@frozen
class Part:
    """The contribution of one loss in one backward: its targets, their weight, the gradient of their sum.

    Parts with the same `term` are one term of the large batch's loss. `factors` are the constants by which each of its
    summands is multiplied. A `shaped` part is no plain sum over its targets, and counts as a whole.
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
    # The accumulation steps of the pass, 1 for none.
    steps: int = 1


@dataclass
class Window:
    """The events of one rank between two steps of an optimizer."""

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
    """A pass measured from the notes of every rank; `weighted` as for `reference`.

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
    """The windows of one rank, and the micro-batches that its epochs leave."""
    events: Sequence[Notes] = notes["notes"]["events"]
    ends = (index for index, event in enumerate(events) if event["kind"] == "epoch")
    is_script = notes["spec"]["regime"] == Regime.SCRIPT
    return _Rank(
        windows(events), tuple(left for end in ends if (left := _left(events, end, is_script)))
    )


def _completed(left: Sequence[int], updates: Sequence[Update]) -> bool:
    """True where the next epoch completes the micro-batches that one leaves to a regular window."""
    sizes = [len(u.microbatches) for u in updates]
    usual = max(sizes, key=sizes.count, default=0)
    after = next((u for u in updates if set(left) & set(u.microbatches)), None)
    return after is not None and len(after.microbatches) == usual and after.error < _WIPED


def windows(events: Sequence[Notes]) -> list[Window]:
    """The windows of one rank: for each optimizer, the events since its previous step."""
    found: list[Window] = []
    before: dict[int, int] = {}
    foreign = foreign_lines(events)
    for index, event in enumerate(events):
        if event["kind"] == "step":
            since = events[before.get(event["optimizer"], 0) : index + 1]
            before[event["optimizer"]] = index + 1
            found.append(_window(event, since, foreign.get(event["optimizer"], frozenset())))
    return found


def _left(events: Sequence[Notes], end: int, is_script: bool) -> tuple[int, ...]:
    """The micro-batches that an epoch leaves: no step applies them at its end or right after, nor does the run end."""
    after = next((e["kind"] for e in events[end:] if e["kind"] in ("step", "backward")), "")
    if after == "step" or not (after or is_script):
        return ()
    left: list[int] = []
    for event in reversed(events[:end]):
        if event["kind"] == "step":
            break
        if event["kind"] == "backward":
            left.extend(p["microbatch"] for p in event["contributions"])
    return tuple(sorted(set(left)))


def _window(step: Notes, since: Sequence[Notes], foreign: frozenset[int]) -> Window:
    """The window of a step. `foreign` are lines whose backwards serve another optimizer."""
    indices: Sequence[int] | None = step["owned"]
    parts: dict[int, Part] = {}
    terms: dict[int, dict[object, int]] = {}
    stepped = set(step["parameters"])
    for event in since:
        if event["kind"] != "backward" or event["line"] in foreign:
            continue
        nth: dict[int, int] = {}
        for found in event["contributions"]:
            gradient = found["gradient"]
            values = gradient if indices is None else [gradient[i] for i in indices]
            # A gradient that is not finite belongs to no mean.
            if stepped.isdisjoint(found["reached"]) or not all(map(math.isfinite, values)):
                continue
            if found["shaped"] and found.get("doubled"):
                # A composed loss counts without the control's factor.
                values = [x / 2 for x in values]
            line = found["loss"]
            nth[line] = nth.get(line, -1) + 1
            # Branches may differ between micro-batches, and a micro-batch may go backward in pieces: terms are numbered
            # by the order of their places.
            places = terms.setdefault(found["microbatch"], {})
            term = places.setdefault((event["line"], line, nth[line]), len(places))
            # A loss that goes backward twice is one loss of the large batch.
            part = Part(
                found["microbatch"], term, found["count"], found["elements"], found["weight"], event["scale"], values,
                found["factors"], found["shaped"], event["steps"],
            )  # fmt: skip
            parts.setdefault(found["number"], part)

    kinds = Counter(event["kind"] for event in since)
    clips = [e for e in since if e["kind"] == "clip" and stepped & set(e["parameters"])]
    return Window(
        step, parts, len(clips), threshold=max((e["threshold"] for e in clips), default=0.0),
        reductions=kinds["reduce"], schedules=kinds["schedule"],
    )  # fmt: skip


def foreign_lines(events: Sequence[Notes]) -> dict[int, frozenset[int]]:
    """Per optimizer, the lines whose backwards it never applies, where it applies those of another line.

    In adversarial training, the generator's loss leaves gradients in the discriminator, which are cleared before its
    own backward.
    """
    microbatches: dict[int, set[int]] = {}
    places: dict[int, list[int]] = {}
    for place, event in enumerate(events):
        if event["kind"] == "backward":
            microbatches.setdefault(event["line"], set()).add(event["microbatch"])
            places.setdefault(event["line"], []).append(place)
    parameters = {
        e["optimizer"]: set(e["parameters"]) for e in reversed(events) if e["kind"] == "step"
    }
    found: dict[int, frozenset[int]] = {}
    for optimizer, params in parameters.items():
        applied: set[int] = set()
        pending: set[int] = set()
        for event in events:
            if event["kind"] == "backward":
                pending.add(event["line"])
            elif event["kind"] == "clear" and params.issubset(event["parameters"]):
                pending.clear()
            elif event["kind"] == "step" and event["optimizer"] == optimizer:
                applied |= pending
        found[optimizer] = frozenset(
            line
            for line in (microbatches.keys() - applied if applied else ())
            # With one optimizer, only a backward of the same micro-batches, or a probe before all others.
            if len(parameters) > 1
            or any(microbatches[line] & microbatches[used] for used in applied)
            or all(max(places[line]) < min(places[used]) for used in applied)
        )
    return found


def _applied(window: Window) -> Vector:
    vector, indices = window.step["applied"], window.step["owned"]
    return vector if indices is None else [vector[i] for i in indices]


def _update(
    number: int, windows: Sequence[Window], steps: int, world: int, weighted: bool
) -> Update:
    vectors = [_applied(w) for w in windows]
    known = [*vectors, *(p.gradient for w in windows for p in w.parts.values())]
    if len(set(map(len, known))) > 1:
        raise Unmeasurable("the ranks know different parameters")
    first, vector = windows[0], vectors[0]
    microbatches, targets, weights = _weights(windows, world)
    expected = first.step.get("reference") or reference(windows, weighted)
    size = norm(expected)
    scale = dot(vector, expected) / size**2 if size else 0.0
    rest = norm([a - scale * b for a, b in zip(vector, expected, strict=True)])
    applied = norm(vector)
    error = max(norm([a - b for a, b in zip(v, expected, strict=True)]) for v in vectors)
    spread = max(norm([a - b for a, b in zip(v, vector, strict=True)]) for v in vectors)
    factor = factor_of(
        scale,
        # A loop with a literal number of steps has windows of that size.
        len(microbatches) if len(microbatches) > 1 else steps,
        world,
        sum(targets),
        next((p.scale for p in first.parts.values()), 1.0),
        # Clipping adds an epsilon to the norm.
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
        cosine=dot(vector, expected) / (applied * size) if applied and size else 0.0,
        scale=scale,
        factor=factor,
        spread=spread / size if size else math.nan,
        reductions=first.reductions,
        clips=first.clips,
        schedules=first.schedules,
    )


def reference(windows: Sequence[Window], weighted: bool = False) -> Vector:
    """The gradient that an update should apply, from its window on every rank: the large batch's, clipped as the loop
    clips.

    `weighted`: a constant factor of the loss is intended, unless a number of steps, ranks or targets explains it.
    """
    mean = _mean(windows)
    if weighted:
        weight = intended_weight(windows)
        mean = [weight * x for x in mean]
    if not windows[0].threshold:
        return mean
    most = windows[0].threshold / (norm(mean) + _CLIP_EPSILON)
    return [x * min(1.0, most) for x in mean]


def _mean(windows: Sequence[Window]) -> Vector:
    """The gradient of the mean over all targets; for a composed loss, the mean of the micro-batches' gradients."""
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
    """The total weight of a part's targets; for a composed loss, the inverse of the window's divisor.

    Raises:
        Unmeasurable: where only some of its summands are divided by the window's size.
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


def intended_weight(windows: Sequence[Window]) -> float:
    """The intended constant factor of a loss, as far as its divisors reveal it."""
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
    """The micro-batches of an update, their targets on all ranks, and the weight of one relative to the large batch."""
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
    """The share of elements in a window's losses that are targets."""
    parts = [part for window in windows for part in window.parts.values()]
    return sum(p.count for p in parts) / max(sum(p.elements for p in parts), 1)


def _totals(rank: _Rank) -> Iterator[Total]:
    for number, window in enumerate(rank.windows, 1):
        for total in window.step["totals"]:
            yield Total(total["name"], number, window.step["epoch"], total["value"], total["nodes"])
