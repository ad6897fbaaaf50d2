"""Compares the weight of a micro-batch in a window with its weight in a window of its own."""

from __future__ import annotations

from dataclasses import replace

from accumlint.confirming.evidence import Evidence, Undecided
from accumlint.confirming.factors import dot, norm, products
from accumlint.confirming.measurement import Part
from accumlint.confirming.symptoms.answers import Answer, decide


def divided(evidence: Evidence, before: Evidence) -> bool:
    """Whether a fixed text gives micro-batches the share in a window that the text `before` does not."""
    return has_fair_share(evidence) and not has_fair_share(before)


def has_fair_share(evidence: Evidence) -> bool:
    try:
        return not relative_weight(evidence).shows
    except Undecided:
        return False


def relative_weight(evidence: Evidence, key: str = "equal") -> Answer:
    """Whether the weight of micro-batches in a window differs from their share of the weight in one of their own.

    That is independent of the loss and of intended weights of its targets.
    """
    steps = evidence.get(key).steps
    answer = weight_answer(_ratio(evidence, key, steps), steps, evidence)
    if answer.shows and steps in evidence.numbers and _divides(evidence, "equal one", steps):
        # Code of another file may divide by the same literal, which passes do not change.
        raise Undecided(
            f"{answer.sentence}, but one that is alone is divided by {steps} all the same"
        )
    return answer


def weight_answer(ratio: float, steps: int, evidence: Evidence) -> Answer:
    """The answer for a micro-batch that weighs `ratio` times its share of its single weight."""
    shows = decide(abs(ratio - 1), evidence, "the ratio less 1")
    whole = abs(ratio - steps) < 1e-6 * steps
    much = "as much as it weighs alone" if whole else f"{ratio / steps:.3g} of what it weighs alone"
    sentence = (
        f"in a window of {steps}, a micro-batch weighs {much}, instead of 1/{steps} of that"
        if shows
        else f"in a window of {steps}, every micro-batch weighs 1/{steps} of what it weighs alone"
    )
    return Answer(shows, abs(ratio - 1), sentence, {"share": ratio})


def named(answer: Answer, evidence: Evidence) -> Answer:
    """An answer with the name of its factor."""
    steps = evidence.get("equal").steps
    name = "K" if abs(float(answer.figures["share"]) - steps) < 1e-6 * steps else "none"
    return replace(answer, figures={**answer.figures, "factor": name})


def is_shaped(evidence: Evidence, key: str) -> bool:
    """Whether a loss is composed, such as a focal loss or one with sample weights."""
    made = evidence.raw.get(key)
    events = made["notes"]["events"] if made else ()
    return any(part["shaped"] for event in events for part in event.get("contributions", ()))


def first_parts(evidence: Evidence, key: str) -> list[Part]:
    """The terms of the first micro-batch in the first update."""
    parts = [part for window in evidence.windows(key)[:1] for part in window.parts.values()]
    return [part for part in parts if part.microbatch == parts[0].microbatch]


def _ratio(evidence: Evidence, key: str, steps: int) -> float:
    """The weight of a micro-batch relative to its share of its single weight; the one that is furthest off."""
    if is_shaped(evidence, key):
        first, other = (_brought(evidence, name) for name in (key, "equal one"))
        if len(first) != len(other) or not norm(other):
            raise Undecided(
                "no loss of a micro-batch alone can be compared with the same one's in a window"
            )
        return dot(first, other) / norm(other) ** 2 * steps
    single = _weighed(evidence, "equal one")
    shares = [w * steps / single[m] for m, w in _weighed(evidence, key).items() if single.get(m)]
    if not shares:
        raise Undecided("no micro-batch is seen both in a window and alone")
    return max(shares, key=lambda share: abs(share - 1))


def _divides(evidence: Evidence, key: str, number: int) -> bool:
    """Whether the losses of a pass are divided by a number before the backward."""
    parts = [part for window in evidence.windows(key) for part in window.parts.values()]
    constants = (x for part in parts for constants in part.factors for x in products(constants))
    return any(abs(x * number - 1) < 1e-6 for x in constants)


def _brought(evidence: Evidence, key: str) -> list[float]:
    """The contribution of the first micro-batch to the first update, when parameters are equal in all passes."""
    several = {p.microbatch for window in evidence.windows(key)[:1] for p in window.parts.values()}
    if key.endswith(" one") and len(several) > 1:
        raise Undecided("the loop has a window's size of its own, so no micro-batch is seen alone")
    parts = first_parts(evidence, key)
    columns = zip(*(part.gradient for part in parts), strict=True)
    return [sum(x * p.weight / p.scale for x, p in zip(c, parts, strict=True)) for c in columns]


def _weighed(evidence: Evidence, key: str) -> dict[int, float]:
    """The weight of each micro-batch in its first update, by its first loss."""
    found: dict[int, float] = {}
    for window in evidence.windows(key):
        for part in window.parts.values():
            found.setdefault(part.microbatch, part.weight * part.count / part.scale)
    return found
