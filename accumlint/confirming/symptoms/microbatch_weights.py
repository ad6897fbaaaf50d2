"""What a micro-batch weighs in a window, against what it weighs in a window of its own."""

from __future__ import annotations

from dataclasses import replace

from accumlint.confirming.evidence import Evidence, Undecided
from accumlint.confirming.factors import dot, norm, products
from accumlint.confirming.measurement import Part
from accumlint.confirming.symptoms.answers import Answer, decide


def divided(evidence: Evidence, before: Evidence) -> bool:
    """Whether a mended text gives its micro-batches the share in a window that the text `before` does not."""
    return is_as_alone(evidence) and not is_as_alone(before)


def is_as_alone(evidence: Evidence) -> bool:
    try:
        return not alone(evidence).shows
    except Undecided:
        return False


def alone(evidence: Evidence, key: str = "equal") -> Answer:
    """Whether micro-batches weigh something else in a window than their share of what they weigh in one of their own.

    That holds whatever the loss is, with weights that its targets have on purpose too.
    """
    steps = evidence.get(key).steps
    answer = as_alone(_ratio(evidence, key, steps), steps, evidence)
    if answer.shows and steps in evidence.numbers and _divides(evidence, "equal one", steps):
        # Code of another file may divide by the same number, and there it stays what it is.
        raise Undecided(
            f"{answer.sentence}, but one that is alone is divided by {steps} all the same"
        )
    return answer


def as_alone(ratio: float, steps: int, evidence: Evidence) -> Answer:
    """The answer where a micro-batch weighs `ratio` times its share of what it weighs alone."""
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
    """An answer with the name of the factor."""
    steps = evidence.get("equal").steps
    name = "K" if abs(float(answer.figures["share"]) - steps) < 1e-6 * steps else "none"
    return replace(answer, figures={**answer.figures, "factor": name})


def is_shaped(evidence: Evidence, key: str) -> bool:
    """Whether a loss is no plain sum of its targets' losses, as a focal one, or one with weights of its own."""
    made = evidence.raw.get(key)
    events = made["notes"]["events"] if made else ()
    return any(part["shaped"] for event in events for part in event.get("contributions", ()))


def first_parts(evidence: Evidence, key: str) -> list[Part]:
    """The terms of the first micro-batch, as it takes part in the first update."""
    parts = [part for window in evidence.windows(key)[:1] for part in window.parts.values()]
    return [part for part in parts if part.microbatch == parts[0].microbatch]


def _ratio(evidence: Evidence, key: str, steps: int) -> float:
    """How many times its share of what it weighs alone a micro-batch weighs, of all the one that is furthest off."""
    if is_shaped(evidence, key):
        first, other = (_brought(evidence, name) for name in (key, "equal one"))
        if len(first) != len(other) or not norm(other):
            raise Undecided(
                "no loss of a micro-batch alone can be compared with the same one's in a window"
            )
        return dot(first, other) / norm(other) ** 2 * steps
    apart = _weighed(evidence, "equal one")
    shares = [w * steps / apart[m] for m, w in _weighed(evidence, key).items() if apart.get(m)]
    if not shares:
        raise Undecided("no micro-batch is seen both in a window and alone")
    return max(shares, key=lambda share: abs(share - 1))


def _divides(evidence: Evidence, key: str, number: int) -> bool:
    """Whether the losses of a pass are divided by a number on their way to what goes backward."""
    parts = [part for window in evidence.windows(key) for part in window.parts.values()]
    constants = (x for part in parts for own in part.factors for x in products(own))
    return any(abs(x * number - 1) < 1e-6 for x in constants)


def _brought(evidence: Evidence, key: str) -> list[float]:
    """What the first micro-batch brings to the first update, before which parameters are the same in all passes."""
    several = {p.microbatch for window in evidence.windows(key)[:1] for p in window.parts.values()}
    if key.endswith(" one") and len(several) > 1:
        raise Undecided("the loop has a window's size of its own, so no micro-batch is seen alone")
    own = first_parts(evidence, key)
    columns = zip(*(part.gradient for part in own), strict=True)
    return [sum(x * p.weight / p.scale for x, p in zip(c, own, strict=True)) for c in columns]


def _weighed(evidence: Evidence, key: str) -> dict[int, float]:
    """What each micro-batch weighs in the first update that it is part of, by its first loss."""
    found: dict[int, float] = {}
    for window in evidence.windows(key):
        for part in window.parts.values():
            found.setdefault(part.microbatch, part.weight * part.count / part.scale)
    return found
