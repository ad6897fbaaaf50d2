"""Checks that all ranks apply the same gradient, reduced once per update."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.common.observed import Observed
from accumlint.runtime.answers import Answer, right
from accumlint.runtime.records import Event, Spot, spot
from accumlint.runtime.size_checks import control
from accumlint.runtime.windows import Window, Windows

_DIFFERENCES = (Observed.UNSYNCED, Observed.FLAG_LATE, Observed.BYPASSED, Observed.UNWRAPPED)


def answers(found: Windows) -> Iterator[Answer]:
    """The answers about the ranks of a run."""
    if found.world < 2 or found.history.diverged or len(found.history.ranks) < 2:
        return
    sharded = any(
        gradients.get("sharded")
        for event in found.first.of("backward")
        for key, gradients in event["gradients"].items()
        if key == str(found.history.optimizer)
    )
    if sharded:
        yield from _shards(found)
        return
    yield from _differing(found)
    yield from _reductions(found)
    yield from _by_hand(found)


def _differing(found: Windows) -> Iterator[Answer]:
    if found.averages_weights:
        return
    windows = [w for w in found.windows if w.backwards]
    differing = [w for w in windows if w.step.spread > _tolerance(found)]
    if not differing:
        if windows:
            figures = f"all {len(found.history.ranks)} ranks apply the same in {len(windows)} steps"
            event = windows[-1].step.event
            yield from (
                right(kind, figures, event, found.backward(windows[-1].backwards[-1]))
                for kind in _DIFFERENCES
            )
        return
    window = differing[-1]
    kind, what, place = _cause_of_difference(found, window)
    yield Answer(
        kind, True, "", (place, spot(window.step.event), *(spot(found.backward(n)) for n in window.backwards)),
        message=f"{what}: the ranks apply different gradients",
        applied=f"step at line {window.step.event['line']} applies gradients that are {window.step.spread:.2g} apart",
        expected=(
            f"all {len(found.history.ranks)} ranks are to apply the same; "
            f"seen in {len(differing)} of {len(windows)} steps, {control(found)}"
        ),
    )  # fmt: skip


def _tolerance(found: Windows) -> float:
    precise = all(
        gradients.get("precise", True)
        for event in found.first.of("backward")
        for gradients in event["gradients"].values()
    )
    return 1e-5 if precise else 1e-2


def _cause_of_difference(found: Windows, window: Window) -> tuple[Observed, str, Spot]:
    event = found.backward(window.backwards[-1])
    place = spot(event)
    if not event.get("ddp"):
        return Observed.UNWRAPPED, "nothing reduces the gradients", place
    forwards = [flag for n in window.backwards for flag in found.backward(n)["forwards"]]
    if not event["forwards"] and not forwards:
        return Observed.BYPASSED, "the forward bypasses DDP", place
    used: Event = event.get("no_sync") or {}
    if not used:
        return Observed.FLAG_LATE, "require_backward_grad_sync is set after the forward", place
    return Observed.UNSYNCED, "the window's last forward runs in no_sync", spot(used)


def _reductions(found: Windows) -> Iterator[Answer]:
    """The number of reducing backwards in a window."""
    if found.usual < 2:
        return
    steady = [w for w in found.steady if all(found.backward(n)["forwards"] for n in w.backwards)]
    if not steady:
        return
    event = found.backward(steady[-1].backwards[0])
    counts = [sum(any(found.backward(n)["forwards"]) for n in w.backwards) for w in steady]
    most = max(counts)
    if most < found.usual or event.get("static"):
        if most == 1:
            figures = f"one all-reduce per update in {len(steady)} windows"
            yield right(Observed.REDUCED_EACH_TIME, figures, event)
            yield right(Observed.ARMED_FORWARD, figures, event)
        return
    inside = any(found.backward(n).get("inside") for w in steady for n in w.backwards)
    used = event.get("no_sync")
    place = spot(used if inside and used else event)
    yield Answer(
        Observed.ARMED_FORWARD if inside else Observed.REDUCED_EACH_TIME, True, "",
        (place, *(spot(found.backward(n)) for n in steady[-1].backwards)),
        message=(
            "only the backward runs in no_sync, which the forward decides"
            if inside
            else f"gradients are reduced over the ranks {most} times per update"
        ),
        applied=f"{most} all-reduces in a window of {found.usual} micro-batches",
        expected=f"one is due; seen in {len(steady)} windows, control: DDP's own flag at each forward",
    )  # fmt: skip


def _by_hand(found: Windows) -> Iterator[Answer]:
    """Gradients that the loop reduces manually on every micro-batch."""
    reduced = [e for e in found.first.of("reduce") if e["what"] == "gradient"]
    mixed = [w for w in found.steady if w.is_mixed and w.size > 1]
    if not reduced or not mixed:
        return
    window = mixed[-1]
    factors = [
        f"{factor:.3g}"
        for (rank, _), factor in sorted(window.step.factors[0].items())
        if rank == found.first.rank
    ]
    yield Answer(
        Observed.GRADIENT_SUMMED, True, "", (spot(reduced[-1]), *(spot(found.backward(n)) for n in window.backwards)),
        message="gradients that were reduced already are reduced again with the next micro-batch",
        applied=f"the step applies the micro-batches with the factors {', '.join(factors)}",
        expected=f"each with 1, {control(found)}",
    )  # fmt: skip


def _shards(found: Windows) -> Iterator[Answer]:
    steps = found.history.steps
    lacking = [m for m in steps if m.pending]
    if not lacking:
        figures = f"FSDP reduced every window in {len(steps)} steps"
        yield right(Observed.SHARDS_UNSYNCED, figures, steps[-1].event)
        return
    moment = lacking[-1]
    rank, last = moment.pending[-1]
    event = found.first.backwards[last] if rank == found.first.rank else moment.event
    switch: Event = event.get("fsdp_switch") or moment.event
    yield Answer(
        Observed.SHARDS_UNSYNCED, True, "", (spot(switch), spot(moment.event), spot(event)),
        message=f"the step applies nothing of {len(moment.pending)} micro-batches that FSDP did not reduce",
        applied=f"step at line {moment.event['line']} applies {len(moment.factors[0])} micro-batches",
        expected=(
            f"all of the window; seen in {len(lacking)} of {len(steps)} steps, "
            "control: FSDP's own flag at each backward"
        ),
    )  # fmt: skip
