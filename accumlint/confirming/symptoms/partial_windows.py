"""The question about partial windows at the end of an epoch: what they apply of their own mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from accumlint.confirming.evidence import Evidence, Undecided
from accumlint.confirming.result import Pass, Update
from accumlint.confirming.symptoms.answers import Answer, decide, updates_of, worth


def partial(evidence: Evidence, key: str = "trailing") -> Answer:
    found = evidence.get(key)
    updates = updates_of(found)
    sizes = _sizes(found, updates)
    usual = max(sizes.values(), key=[*sizes.values()].count)
    partial = [u for u in updates if 0 < sizes[u.number] < usual]
    whole = [u for u in updates if sizes[u.number] >= usual]
    equal = evidence.passes.get("equal")
    if not partial and key.startswith("trailing") and equal and worth(equal):
        # If all windows are partial, the whole ones are those of other data.
        usual_sizes = _sizes(equal, worth(equal))
        usual = max(usual_sizes.values(), key=[*usual_sizes.values()].count)
        partial = [u for u in updates if 0 < sizes[u.number] < usual]
        whole = [u for u in worth(equal) if usual_sizes[u.number] >= usual]
    if not partial:
        if key != "trailing" and updates:
            return Answer(False, 0.0, "no window is partial", {"scale": 1.0})
        raise Undecided("no step at the end of an epoch applied a partial window")
    if evidence.loss_unknown:
        # The weights of micro-batches are known for an unknown loss.
        partial, whole = (
            [replace(u, scale=max(u.weights, default=0.0)) for u in group]
            for group in (partial, whole)
        )
        if any(abs(u.scale - 1) > evidence.low for u in whole):
            raise Undecided(
                "the loss is computed from what is not known here, and a factor of it may be lost"
            )
    # A factor of all windows is not a defect of partial ones.
    common = _common([u.scale for u in whole], evidence.low)
    worst = max(partial, key=lambda u: abs(u.scale / common - 1))
    shows = decide(abs(worst.scale / common - 1), evidence, "the scale's difference from 1")
    size = sizes[worst.number]
    of = f"of {size} micro-batch{'es' if size > 1 else ''}"
    sentence = "partial windows apply their own mean"
    if shows:
        sentence = f"the partial window {of} applies {worst.scale:.3g} times its gradient"
        if common != 1:
            sentence += f", and whole windows {common:.3g} times theirs"
    elif common != 1:
        sentence = f"partial windows apply {common:.3g} times their own mean, as whole ones do"
    off = abs(worst.scale / common - 1)
    return Answer(shows, off, sentence, {"scale": worst.scale, "micro-batches": size})


def _common(scales: Sequence[float], near: float) -> float:
    """The common factor of updates, 1 for none."""
    first = next(iter(scales), 1.0)
    alike = first > 0 and all(abs(scale / first - 1) <= near for scale in scales)
    return first if alike and abs(first - 1) > near else 1.0


def _sizes(found: Pass, updates: Sequence[Update]) -> dict[int, int]:
    """The number of micro-batches of each update, or the number of pieces where a batch is cut."""
    whole = {u.number: len(u.microbatches) for u in updates}
    if set(whole.values()) != {1}:
        return whole
    pieces: dict[int, int] = {}
    count = number = 0
    stepped = False
    for moment in found.moments:
        if moment.kind == "backward":
            count = 1 if stepped else count + 1
            stepped = False
        elif moment.kind == "step":
            # Optimizers that step in parallel apply the same.
            stepped = True
            number += 1
            pieces[number] = count
    return {n: pieces.get(n, 0) for n in whole}
