"""The figures of each watched update: gradient norms, target weights, the difference between ranks."""

from __future__ import annotations

import math
from collections import Counter

from accumlint.common.observed import Observed
from accumlint.diagnostics.results.measured import Measured, Update, Weight
from accumlint.runtime import size_checks, vectors
from accumlint.runtime.answers import is_near
from accumlint.runtime.ledger import Moment
from accumlint.runtime.records import Event, Vector
from accumlint.runtime.windows import Share, Window, Windows


def measured(found: Windows) -> Measured:
    """The figures of an optimizer's updates."""
    due = _due(found)
    clips = _clips(found)
    files = Counter(window.step.event["file"] for window in found.windows)
    updates = [_update(found, window, clips.get(id(window.step)), due) for window in found.windows]
    elements = max((len(_applied(window) or ()) for window in found.windows), default=0)
    return Measured(
        found.history.name, files.most_common(1)[0][0], len(found.history.ranks), elements, tuple(updates)
    )  # fmt: skip


def _update(found: Windows, window: Window, clip: Moment | None, due: float | None) -> Update:
    key = str(found.history.optimizer)
    ranks = len(found.history.ranks)
    sharded = any(_gradients(found, m).get("sharded") for m in window.step.factors[0])
    return Update(
        int(window.step.event["line"]), window.size,
        applied=_norm(_applied(window)),
        unclipped=_norm(clip.event["before"][key]) if clip else None,
        wanted=_norm(_wanted(found, window, due)) if due else None,
        # The ranks of FSDP hold different elements.
        spread=window.step.spread if ranks > 1 and not sharded else None,
        weights=tuple(_weights(window)),
    )  # fmt: skip


def _applied(window: Window) -> Vector | None:
    """The recorded elements of what a step applies, without the scale that a fused step takes off."""
    vector = window.step.event.get("applied")
    scale = window.step.event.get("scale") or 1.0
    return [x / scale for x in vector] if vector else None


def _norm(vector: Vector | None) -> float | None:
    norm = vectors.norm(vector) if vector else math.inf
    return norm if math.isfinite(norm) else None


def _clips(found: Windows) -> dict[int, Moment]:
    """The first clip of each window's gradient norm or values, by the step that follows it."""
    clips: dict[int, Moment] = {}
    open_: Moment | None = None
    for moment in found.history.moments:
        if moment.kind == "clip":
            open_ = open_ or moment
        elif moment.kind == "step":
            if open_ and not open_.scaled:
                clips[id(moment)] = open_
            open_ = None
        elif moment.kind in ("clear", "gone", "skip"):
            open_ = None
    return clips


def _due(found: Windows) -> float | None:
    """The total weight that the targets of an update should have; None where that is not known."""
    if not found.weighed:
        return None
    if is_near(found.total, 1):
        return 1.0
    for answer in size_checks.answers(found):
        if answer.wrong and answer.confidence != "possible":
            return 1.0 if answer.observed is Observed.COUNT_RUNS_ON else found.total / answer.factor
    constant = size_checks.constant_weight(found)
    return constant if is_near(found.total, constant) else None


def _wanted(found: Windows, window: Window, due: float) -> Vector | None:
    """The gradient of the large batch, as a combination of what the micro-batches contributed.

    It is known where the update holds micro-batches of all ranks, each with one loss whose targets weigh the same
    within it. Micro-batches that an earlier step has applied are left out.
    """
    earlier = {number for _, number in window.step.again}
    shares = [share for share in window.main if share.microbatch[1] not in earlier]
    targets = sum(share.targets for share in shares)
    ranks = {share.microbatch[0] for share in shares}
    if not window.known or len(window.shares) != 1 or not targets or len(ranks) < found.world:
        return None
    parts: list[Vector] = []
    for share in shares:
        flow = _gradients(found, share.microbatch).get("flowed")
        if flow is None or not share.mass or not _is_even(share):
            return None
        factor = window.step.factors[0][share.microbatch] * due * share.targets / targets
        parts.append([x * factor / share.mass for x in flow])
    return vectors.added(parts)


def _is_even(share: Share) -> bool:
    return is_near(share.least, share.most)


def _gradients(found: Windows, microbatch: tuple[int, int]) -> Event:
    """What a backward recorded of the optimizer's gradients."""
    rank, number = microbatch
    backward = found.records[rank].backwards.get(number, {})
    return backward.get("gradients", {}).get(str(found.history.optimizer), {})


def _weights(window: Window) -> list[Weight]:
    numbers = sorted({number for _, number in window.step.factors[0]})
    return [
        Weight(
            share.microbatch[0], numbers.index(share.microbatch[1]) + 1, share.targets,
            share.mass / share.targets, share.least, share.most,
        )
        for share in window.main
        if all(map(math.isfinite, (share.mass, share.least, share.most)))
    ]  # fmt: skip
