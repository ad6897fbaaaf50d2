"""Questions about the time and number of events, and about retained state."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from accumlint.confirming.evidence import Evidence, Undecided, is_expected
from accumlint.confirming.result import Pass, Update
from accumlint.confirming.symptoms.answers import Answer, updates_of
from accumlint.confirming.symptoms.gradients import gradient
from accumlint.diagnostics.results.diagram import ranges


def reductions(evidence: Evidence, key: str = "equal") -> Answer:
    found = evidence.get(key)
    updates = updates_of(found)
    if key == "equal mute":
        return Answer(False, 0.0, "gradients are never all-reduced", {})
    if found.ranks < 2 or not any(u.reductions for u in updates):
        raise Undecided("nothing was reduced over the ranks in this run")
    most, pieces = max(
        zip(updates, _sizes(found, updates), strict=True), key=lambda pair: pair[0].reductions
    )
    # Several losses of a micro-batch may go backward.
    size = len(most.microbatches) if len(most.microbatches) > 1 else pieces
    shows = most.reductions > 1
    times = "once" if most.reductions == 1 else f"{most.reductions} times"
    of = "1 micro-batch" if size == 1 else f"{size} micro-batches"
    sentence = f"gradients are all-reduced {times} for update {most.number}, of {of}"
    return Answer(
        shows, float(most.reductions), sentence,
        {"all-reduces per update": most.reductions, "relative error": most.error},
    )  # fmt: skip


def _in_turn(updates: Sequence[Update]) -> Iterator[tuple[Update, Update]]:
    """Consecutive updates of the same optimizer."""
    for name in dict.fromkeys(u.optimizer for u in updates):
        yield from pairwise([u for u in updates if u.optimizer == name])


def left(evidence: Evidence, key: str = "trailing") -> Answer:
    found = evidence.get(key)
    # Another optimizer may step without a gradient.
    updates = [u for u in found.updates if u.microbatches]
    first = _in_first_epoch(updates) if updates else ()
    later = [u for u in updates if u not in first]
    sizes = [len(u.microbatches) for u in first]
    usual = max(sizes, key=sizes.count, default=0)
    # The rest of an epoch leaked into the next update if that is a multiple of their common mean.
    leaked = next(
        (u for u in later[:1] if len(u.microbatches) > usual and u.direction < evidence.high), None
    )
    kinds = [m.kind for m in found.moments]
    # Epochs before training do not count.
    began = kinds.index("backward") if "backward" in kinds else 0
    if not found.left and "epoch" not in kinds[began:]:
        raise Undecided(f"no epoch came to its end{_ended(found)}")
    if not found.left:
        pairs = _in_turn(updates)
        short = any(len(u.microbatches) < usual and u.epoch == then.epoch for u, then in pairs)
        # The control that steps at the end of an epoch makes short windows itself.
        if short and not key.endswith("flush"):
            raise Undecided(
                "a short window at the beginning of each epoch takes what would be left at its end"
            )
        none = "no epoch leaves micro-batches that are dropped or leak into other windows"
        return Answer(False, 0.0, none, {"left": 0})
    names, one = ranges(found.left), len(found.left) == 1
    went = f"micro-batch {names} goes" if one else f"micro-batches {names} go"
    consequence = f"and no update of that epoch applies {'it' if one else 'them'}"
    if leaked:
        consequence = (
            f"and {'leaks' if one else 'leak'} into update {leaked.number} of the next epoch"
        )
    return Answer(
        True, float(len(found.left)), f"{went} backward {consequence}", {"left": len(found.left)}
    )


def _ended(found: Pass) -> str:
    """The exception that ended a pass, as the end of a sentence."""
    raised = found.raised
    return f": line {raised.line} raised {raised.kind}: {raised.message}" if raised else ""


def sizes(evidence: Evidence, key: str = "equal") -> Answer:
    found = evidence.get(key)
    sizes = [len(u.microbatches) for u in _in_first_epoch(updates_of(found))]
    if not evidence.mentions_steps:
        return _uneven_first_window(sizes, key)
    odd = next((s for s in sizes if s != found.steps), None)
    shows = odd is not None
    sentence = (
        f"windows hold {', '.join(map(str, sizes))} micro-batches where {found.steps} were asked for"
        if shows
        else f"every window holds {found.steps} micro-batches"
    )
    return Answer(shows, float(shows), sentence, {"window sizes": ", ".join(map(str, sizes))})


def _in_first_epoch(updates: Sequence[Update]) -> Sequence[Update]:
    """The updates of the first epoch that has any; all of them if windows continue across epochs."""
    first = [u for u in updates if u.epoch <= max(1, updates[0].epoch)]
    across = updates[0].epoch > 1 and len({u.epoch for u in updates}) == len(updates)
    return updates if across else first


def _uneven_first_window(sizes: Sequence[int], key: str) -> Answer:
    """Whether the first window differs in size from the rest, where the source requests no size."""
    if len(sizes) < 3 and key != "equal regular":
        raise Undecided("the loop took fewer than three steps")
    first, later = sizes[0], set(sizes[1:])
    shows = len(later) == 1 and first not in later
    if not shows and key == "equal":
        raise Undecided("nothing in the loop asks for windows of several micro-batches")
    listed = ", ".join(map(str, sizes))
    sentence = (
        f"windows hold {listed} micro-batches" if shows else "windows hold as many throughout"
    )
    return Answer(shows, float(shows), sentence, {"window sizes": listed})


def _sizes(found: Pass, updates: Sequence[Update]) -> list[int]:
    """The number of micro-batches of each update, counting pieces of a batch."""
    backwards = [0]
    for moment in found.moments:
        if moment.kind == "backward":
            backwards[-1] += 1
        elif moment.kind == "step":
            backwards.append(0)
    pieces = dict(enumerate(backwards, 1))
    return [max(len(u.microbatches), pieces.get(u.number, 0)) for u in updates]


def steps(evidence: Evidence, key: str = "equal") -> Answer:
    found = evidence.get(key)
    updates = updates_of(found)
    sizes = _sizes(found, updates)
    mean = sum(sizes) / len(sizes)
    shows = mean < found.steps
    sentence = (
        f"the optimizer steps after {mean:.3g} micro-batches where {found.steps} were asked for"
    )
    figures: dict[str, float | int | str] = {
        "micro-batches per update": mean,
        "asked for": found.steps,
    }
    return Answer(shows, found.steps - mean, sentence, figures)


def schedules(evidence: Evidence, key: str = "equal") -> Answer:
    updates = updates_of(evidence.get(key))
    inner = updates[1:] or updates
    most = max(inner, key=lambda u: u.schedules)
    if not any(u.schedules for u in updates):
        raise Undecided("the scheduler did not step in this run")
    shows = most.schedules > 1
    times = "once" if most.schedules == 1 else f"{most.schedules} times"
    return Answer(
        shows, float(most.schedules), f"the scheduler moves {times} for one update",
        {"scheduler steps per update": most.schedules},
    )  # fmt: skip


def attached(evidence: Evidence, key: str = "equal") -> Answer:
    totals = evidence.get(key).totals
    if not totals:
        raise Undecided("the running total was not found while the loop ran")
    first, last = totals[0], max(totals, key=lambda x: x.nodes)
    kept = [x.nodes for x in totals if x.nodes]
    # A total that is reset in every window only retains that window's graph.
    shows = bool(kept) and max(kept) > min(kept)
    sentence = (
        f"`{last.name}` keeps {last.nodes} graph nodes at update {last.update}, and {min(kept)} at another"
        if shows
        else f"`{first.name}` keeps no graph of an earlier window"
    )
    return Answer(shows, float(last.nodes), sentence, {"graph nodes": last.nodes})


def growing(evidence: Evidence, key: str = "equal") -> Answer:
    totals = evidence.get(key).totals
    if len(totals) < 2:
        raise Undecided("the running total was not found while the loop ran")
    values = [x.value for x in totals if x.name == totals[0].name]
    grown = all(b > a for a, b in pairwise(values))
    name = totals[0].name
    grows = f"`{name}` grows from {values[0]:.4g} to {values[-1]:.4g} over {len(values)} updates"
    sentence = f"{grows} and is never set back" if grown else f"`{name}` is set back"
    return Answer(grown, values[-1], sentence, {"first": values[0], "last": values[-1]})


def stuck(evidence: Evidence, key: str = "overflow") -> Answer:
    answer = _stuck(evidence, key)
    if key == "overflow" and not answer.shows and "overflow undefined" in evidence.passes:
        # A guard may check for NaN only.
        other = _stuck(evidence, "overflow undefined")
        sentence = other.sentence.replace("an overflow", "a gradient that is no number", 1)
        answer = replace(other, sentence=sentence) if other.shows else answer
    if answer.shows or key != "overflow" or "overflow large" not in evidence.passes:
        return answer
    # A guard may ignore infinities and stop at a large gradient.
    found = evidence.get("overflow large")
    whole = len(evidence.get("equal").updates)
    if found.raised is None or not is_expected(found.raised.message) or not whole:
        return answer
    sentence = (
        f"after a gradient that is too large the loop raises {found.raised.kind} at line {found.raised.line}:"
        f" {found.raised.message}"
    )
    return Answer(True, 1.0, sentence, {"updates": len(found.updates)})


def _stuck(evidence: Evidence, key: str) -> Answer:
    found = evidence.get(key)
    before = evidence.raw[key]["notes"]["initial_scale"]
    # A disabled scaler has the scale 1, which it never lowers.
    before = before if before > 1 else 0.0
    steps = len(found.updates)
    whole = len(evidence.get("equal").updates)
    lowered = not before or any(s < before for s in found.scales)
    finite = [u for u in found.updates if math.isfinite(u.applied) and u.applied > 0]
    shows = not lowered or steps < whole / 2
    sentence = (
        f"after an overflow the loss scale stays at {before:g}: the next overflow will be met with it again"
        if shows
        else f"after an overflow the loss scale falls to {min(found.scales, default=before):g} and training goes on"
        if before
        else "after an overflow training goes on"
    )
    if shows and lowered:
        sentence = f"after an overflow {steps} steps are taken where there are {whole} without one"
    if "overflow" not in key:
        shows = not finite
        sentence = "without an overflow every step is taken"
    scale = min(found.scales, default=before)
    return Answer(shows, scale, sentence, {"scale before": before, "updates": steps})


def missed(evidence: Evidence, key: str = "equal") -> Answer:
    found = evidence.get(key)
    backwards = {m.microbatch for m in found.moments if m.kind == "backward"}
    if not found.updates and len(backwards) >= 2 * found.steps:
        return Answer(
            True, 1.0, f"{len(backwards)} micro-batches go backward, and the optimizer never steps",
            {"micro-batches": len(backwards), "updates": 0},
        )  # fmt: skip
    answer = gradient(evidence, key)
    if answer.shows or key in ("equal one", "equal mend"):
        return answer
    early = steps(evidence, key)
    return early if early.shows else answer


def averages(evidence: Evidence, key: str = "equal") -> Answer:
    most = count = 0
    for moment in evidence.get(key).moments:
        if moment.kind == "average":
            count += 1
        elif moment.kind == "step":
            most, count = max(most, count), 0
    # Events after the last update belong to it.
    most = max(most, count)
    if not most:
        raise Undecided("the running average was not updated in this run")
    times = "once" if most == 1 else f"{most} times"
    return Answer(
        most > 1, float(most), f"the running average of the weights moves {times} for one update",
        {"averages per update": most},
    )  # fmt: skip


def retained_graphs(evidence: Evidence, key: str = "equal") -> Answer:
    evidence.get(key)
    most = int(evidence.raw[key]["notes"]["graphs"])
    if not most:
        raise Undecided("no loss of this run kept a graph")
    what = "graph of one micro-batch is" if most == 1 else f"graphs of {most} micro-batches are"
    return Answer(most > 1, float(most), f"the {what} kept at once", {"graphs kept": most})
