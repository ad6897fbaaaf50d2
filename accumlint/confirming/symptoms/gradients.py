"""Questions about the gradients that are applied: their size, their direction, what each target weighs in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from accumlint.confirming.evidence import Evidence, Undecided, is_expected
from accumlint.confirming.factors import SHARE, norm
from accumlint.confirming.measurement import Part, own_weight
from accumlint.confirming.result import Update
from accumlint.confirming.symptoms.answers import (
    Answer,
    compared,
    decide,
    furthest,
    is_empty,
    listed,
    updates_of,
    worth,
)
from accumlint.confirming.symptoms.microbatch_weights import (
    alone,
    as_alone,
    first_parts,
    is_as_alone,
    is_shaped,
    named,
)


def gradient(evidence: Evidence, key: str = "equal") -> Answer:
    updates = compared(updates_of(evidence.get(key)))
    if key == "equal" and "trailing" in evidence.passes:
        # What is never reduced may be only a partial window.
        updates = [*updates, *(u for u in evidence.get("trailing").updates if is_empty(u))]
    if evidence.made_up:
        updates = [_whatever_its_loss(u, evidence, key) for u in updates]
    worst = furthest(updates)
    low = max(evidence.low, _CLIPPING) if "pressure" in key else evidence.low
    if key == "equal" and (sized := _sized(updates, evidence)):
        return sized
    # What lies below is rounding.
    shows = not worst.error <= low and decide(worst.error, evidence, "the relative error")
    if shows and key == "equal":
        if meant := _meant(updates, evidence, ("", SHARE)):
            return meant
        # Nor is the claim about sums that are divided by nothing.
        _explained(updates, evidence, ("", "N"))
    figures: dict[str, float | int | str] = {
        "relative error": worst.error, "cosine": worst.cosine, "scale": worst.scale, "update": worst.number,
    }  # fmt: skip
    if worst.factor:
        figures["factor"] = worst.factor
    return Answer(shows, worst.error, _said(worst, evidence, low), figures)


def _explained(
    updates: Sequence[Update], evidence: Evidence, meant: tuple[str, ...] = ("",)
) -> None:
    """Refuses sums that are off by a factor which no number of steps, ranks or targets explains.

    Raises:
        Undecided: where all updates are one such multiple, since what a sum is to be divided by may be on purpose.
    """
    if evidence.summed and (off := _same_multiple(updates, evidence, meant)):
        raise Undecided(f"{_said(off, evidence)}, which may be an intended weight of the loss")


def _same_multiple(
    updates: Sequence[Update], evidence: Evidence, factors: tuple[str, ...]
) -> Update | None:
    """The first of updates that are all the same multiple of the large batch's, with a factor of one of these names."""
    scales = [u.scale for u in updates]
    same = min(scales) > 0 and max(scales) - min(scales) <= evidence.low * max(scales)
    plain = all(
        u.error > evidence.low and u.direction < evidence.low and u.factor in factors
        for u in updates
    )
    return updates[0] if same and plain else None


# The share of one of several losses, in a sum over the window, may be as many times too large by chance.
_BY_TARGETS = ("N", "N/K", "N/W", "N/(K·W)")


def _meant(
    updates: Sequence[Update], evidence: Evidence, factors: tuple[str, ...]
) -> Answer | None:
    """Where all updates are the same multiple, and so is the gradient of a micro-batch alone: the loss is meant so.

    What a sum is to be divided by is another question.

    Raises:
        Undecided: where the loss is as small as the mean of its parts, which says nothing of its window.
    """
    if evidence.summed:
        return None
    terms = len(first_parts(evidence, "equal"))
    off = _same_multiple(updates, evidence, factors)
    if off is None and terms > 1 and (off := _same_multiple(updates, evidence, _BY_TARGETS)):
        if abs(off.scale * terms / len(off.microbatches) - 1) > evidence.low:
            return None
        off = replace(off, factor="")
    if off is None:
        return None
    if terms > 1 and not off.factor and abs(off.scale * terms - 1) < evidence.low:
        if is_as_alone(evidence):
            return named(alone(evidence), evidence)
        raise Undecided(f"{_said(off, evidence)}, which may be the mean of its {terms} losses")
    if round(1 / off.scale, 6) in evidence.numbers:
        # What is divided by a number of the source's may be divided by its steps.
        return _by_constants(off, evidence, numbered=True)
    try:
        answer = alone(evidence)
    except Undecided:
        return _by_constants(off, evidence, numbered=False)
    return named(answer, evidence)


def _by_constants(off: Update, evidence: Evidence, numbered: bool) -> Answer | None:
    """What the constants in its graph tell of a loss that is a multiple, where no micro-batch is seen alone.

    Raises:
        Undecided: where one of them is the window's size and the others explain the multiple.
    """
    if off.factor:
        return None
    size = len(off.microbatches)
    own = own_weight(evidence.windows("equal")[:1])
    if abs(off.scale - own) < evidence.low * own:
        raise Undecided(f"{_said(off, evidence)}, which may be an intended weight of the loss")
    if numbered or abs(off.scale / own - size) > evidence.low * size:
        return None
    off = replace(off, scale=off.scale / own, factor="K")
    figures: dict[str, float | int | str] = {
        "scale": off.scale, "factor": off.factor, "direction error": off.direction, "update": off.number,
    }  # fmt: skip
    return Answer(True, abs(off.scale - 1), _said(off, evidence), figures)


def _sized(updates: Sequence[Update], evidence: Evidence) -> Answer | None:
    """Where the loss is no plain sum over targets: its size is what a micro-batch weighs in a window of its own.

    Raises:
        Undecided: where the large batch's gradient is its multiple, and no micro-batch is seen alone.
    """
    if not is_shaped(evidence, "equal"):
        return None
    worst = furthest(updates)
    if worst.direction > evidence.high:
        # What is lost or comes too often is seen whatever the loss is.
        return None
    return named(alone(evidence), evidence)


def _whatever_its_loss(u: Update, evidence: Evidence, key: str) -> Update:
    """An update as far as it does not depend on what the loss is: a factor on all its micro-batches may be lost.

    Raises:
        Undecided: where its micro-batches may be meant to weigh differently, or where that factor may decide.
    """
    weights = u.weights or (1.0,)
    if len(set(u.targets)) > 1 or max(weights) - min(weights) > evidence.low * max(weights):
        raise Undecided(
            "the loss is computed from what is not known here, so the weight of each micro-batch is unknown"
        )
    factor = weights[0]
    # What a control has put in place lacks no factor.
    if abs(factor - 1) <= evidence.low or is_empty(u) or "mend" in key:
        return u
    if "pressure" in key and u.direction < evidence.high:
        raise Undecided(
            "the loss is computed from what is not known here, and a factor of it may be lost"
        )
    scale = u.scale / factor
    return replace(u, error=max(u.direction, abs(scale - 1)), factor="", scale=scale)


# torch adds 1e-6 to the norm that it divides by, which weighs more on a small gradient than on K times it.
_CLIPPING = 1e-5


_SIGNS = {"K": "accumulation steps", "W": "ranks", "N": "targets"}


def _said(u: Update, evidence: Evidence, low: float = 0.0) -> str:
    if u.error <= max(low, evidence.low):
        return f"every update applies the large batch's gradient (relative error {u.error:.2g})"
    if u.direction < evidence.low:
        told = ", ".join(f"{sign}: {what}" for sign, what in _SIGNS.items() if sign in u.factor)
        named = f" ({u.factor}{'; ' if told else ''}{told})" if u.factor else ""
        return f"update {u.number} applies {u.scale:.4g} times the large batch's gradient{named}"
    if u.applied < 1e-12:
        return f"update {u.number} applies nothing; the large batch's gradient has norm {u.reference:.3g}"
    return (
        f"update {u.number} applies a gradient with relative error {u.error:.2g} and cosine {u.cosine:.3f}"
        f" to the large batch's"
    )


def scale(evidence: Evidence, key: str = "equal") -> Answer:
    updates = compared(updates_of(evidence.get(key)))
    if key == "equal" and (sized := _sized(updates, evidence)):
        return sized
    if key == "equal" and (against := _against_one(updates, evidence)):
        return against
    off = max(updates, key=lambda u: abs(u.scale - 1))
    shows = decide(abs(off.scale - 1), evidence, "the scale's difference from 1")
    if shows and evidence.made_up and not off.factor and key == "equal":
        raise Undecided(
            "the loss is computed from what is not known here, so the weight of each micro-batch is unknown"
        )
    if shows and key == "equal":
        if meant := _meant(updates, evidence, ("",)):
            return meant
        _explained(updates, evidence)
    if not shows and key == "equal" and (beside := _beside(evidence)):
        return beside
    figures: dict[str, float | int | str] = {
        "scale": off.scale, "factor": off.factor or "none", "direction error": off.direction, "update": off.number,
    }  # fmt: skip
    return Answer(shows, abs(off.scale - 1), _said(off, evidence), figures)


def _against_one(updates: Sequence[Update], evidence: Evidence) -> Answer | None:
    """Where a weight of the loss is as large as a division would be: what a micro-batch weighs against one alone.

    Raises:
        Undecided: where the source has the number of steps, which that weight may be made of.
    """
    steps = evidence.get("equal").steps
    one = evidence.passes.get("equal one")
    apart = [u.scale * steps for u in one.updates if len(u.microbatches) == 1] if one else []
    if steps == 1 or not apart or any(abs(x - 1) > evidence.low for x in apart):
        return None
    if steps in evidence.numbers:
        raise Undecided(
            f"the loss of a micro-batch alone is multiplied by 1/{steps}, which may be its weight or stand for the"
            f" division by {steps} accumulation steps"
        )
    return named(as_alone(furthest(updates).scale * steps, steps, evidence), evidence)


def _beside(evidence: Evidence) -> Answer | None:
    """Whether a part of the loss weighs more or less beside the rest where there is more than one micro-batch."""
    if "equal one" not in evidence.passes:
        return None
    first, apart = (first_parts(evidence, key) for key in ("equal", "equal one"))
    several, alone = _shares(first), _shares(apart)
    if len(several) < 2 or len(several) != len(alone) or not all(alone):
        return None
    if first[0].gradient != apart[0].gradient:
        # A piece of a batch has other rows where the batch has fewer.
        return None
    ratio = max((a / b for a, b in zip(several, alone, strict=True)), key=lambda r: abs(r - 1))
    if abs(ratio - 1) <= evidence.low or not decide(abs(ratio - 1), evidence, "the ratio less 1"):
        return None
    steps = evidence.get("equal").steps
    named = {steps: "K", 1 / steps: "1/K"}
    times = next((name for k, name in named.items() if abs(ratio - k) < 1e-6), f"{ratio:.4g}")
    sentence = f"a part of the loss weighs {times} times as much beside the rest as in a window of one micro-batch"
    return Answer(True, abs(ratio - 1), sentence, {"weight of the part": ratio, "factor": times})


def _shares(parts: Sequence[Part]) -> list[float]:
    """What each term of a micro-batch brings to an update, against what a target of the first weighs."""
    return [abs(part.weight / parts[0].weight) * norm(part.gradient) for part in parts]


def weights(evidence: Evidence, key: str = "ragged") -> Answer:
    if is_shaped(evidence, key):
        raise Undecided(
            "the loss is not a plain sum over its targets, so the right weight of each is unknown"
        )
    worst, ratio = None, 1.0
    for u in updates_of(evidence.get(key)):
        if len(u.weights) > 1 and min(u.weights) > 0:
            found = max(u.weights) / min(u.weights)
            if found >= ratio:
                worst, ratio = u, found
    if worst is None:
        raise Undecided("no update of this run sums the losses of several micro-batches")
    if key == "ragged" and not _differ(evidence):
        raise Undecided("every micro-batch counts as many targets here, however many its data has")
    shows = decide(ratio - 1, evidence, "the ratio of weights less 1")
    if shows:
        sentence = (
            f"with {listed(worst.targets)} targets, one target weighs up to {ratio:.3g} times another of the same"
            f" window (relative error {worst.error:.2g})"
        )
    else:
        sentence = "every target of a window weighs the same, however many its micro-batch has"
    figures: dict[str, float | int | str] = {
        "weight ratio": ratio, "relative error": worst.error, "cosine": worst.cosine, "update": worst.number,
    }  # fmt: skip
    return Answer(shows, ratio - 1, sentence, figures)


def _differ(evidence: Evidence) -> bool:
    """Whether a term counted different numbers of targets in one window of the first rank, since ranks may make up for
    each other."""
    for window in evidence.windows("ragged"):
        counts: dict[int, set[int]] = {}
        for part in window.parts.values():
            counts.setdefault(part.term, set()).add(part.count)
        if any(len(found) > 1 for found in counts.values()):
            return True
    return False


def clipped(evidence: Evidence, key: str = "equal pressure") -> Answer:
    found = evidence.passes.get(key)
    if found is None or not any(u.clips for u in found.updates):
        raise Undecided("nothing was clipped")
    answer = gradient(evidence, key)
    sentence = answer.sentence.replace(
        "the large batch's gradient", "the clipped gradient of the large batch"
    )
    return replace(answer, sentence=f"clipped at {found.pressure:.3g}, {sentence}")


def clipped_whole(evidence: Evidence, key: str = "equal pressure") -> Answer:
    """Whether the direction of a clipped gradient is another, as where its parts are clipped."""
    updates = compared(updates_of(evidence.get(key)))
    worst = max(updates, key=lambda u: u.direction)
    shows = worst.direction > _CLIPPING and decide(worst.direction, evidence, "the direction error")
    sentence = (
        f"update {worst.number} points away from the large batch's gradient, by {worst.direction:.2g} of it"
        if shows
        else f"every update points where the large batch's gradient does (direction error {worst.direction:.2g})"
    )
    return Answer(shows, worst.direction, sentence, {"direction error": worst.direction})


def raises(evidence: Evidence, key: str = "equal") -> Answer:
    for name in (key, f"{key} pressure", f"{key} growing"):
        if name not in evidence.passes:
            continue
        raised = evidence.get(name).raised
        if raised is not None:
            where = f" at line {raised.line}" if raised.line else ""
            if not is_expected(raised.message):
                raise Undecided(
                    f"the loop raised something else{where}: {raised.kind}: {raised.message}"
                )
            sentence = f"the loop raises {raised.kind}{where}: {raised.message}"
            return Answer(True, 1.0, sentence, {"exception": raised.message})
    answer = gradient(evidence, key)
    if answer.shows:
        return answer
    if f"{key} growing" in evidence.passes:
        growing = gradient(evidence, f"{key} growing")
        if growing.shows:
            return replace(growing, sentence=f"while the loss scale grows, {growing.sentence}")
    return replace(answer, sentence=f"nothing is raised, and {answer.sentence}")


def spread(evidence: Evidence, key: str = "equal") -> Answer:
    updates = updates_of(evidence.get(key))
    if key == "equal" and "trailing" in evidence.passes:
        # A partial window may be the one that nobody synchronises.
        updates = [*updates, *worth(evidence.get("trailing"))]
    if evidence.get(key).ranks < 2:
        raise Undecided("one rank alone has no other to differ from")
    worst = max(updates, key=lambda u: u.spread)
    shows = decide(worst.spread, evidence, "the spread over ranks")
    sentence = (
        f"at update {worst.number} the ranks apply gradients that differ by {worst.spread:.2g} times the large batch's"
        if shows
        else "all ranks apply the same gradient"
    )
    if shows and key == "equal" and evidence.averages(key):
        raise Undecided(f"{sentence}, and later average their parameters, which may be intended")
    return Answer(
        shows, worst.spread, sentence,
        {"spread": worst.spread, "relative error": worst.error, "all-reduces per update": worst.reductions},
    )  # fmt: skip


def _is_what_is_left(u: Update, evidence: Evidence) -> bool:
    """Whether an update applies the sum over its micro-batches, divided by one more where one was given up."""
    left = len(u.microbatches)
    share = abs(u.scale - left / (left + 1)) < evidence.low and u.direction < evidence.low
    return u.error < evidence.low or share


def skipped(evidence: Evidence, key: str = "overflow") -> Answer:
    if not key.endswith("overflow"):
        return gradient(evidence, key)
    answers: list[Answer] = []
    whole = True
    for name, which in ((key, "inside a window"), (f"{key} last", "at a window's end")):
        updates = evidence.get(name).updates
        broken = next((u for u in updates if not math.isfinite(u.applied)), None)
        if broken is not None:
            sentence = f"update {broken.number} applies a gradient that is not finite"
            answer = Answer(True, math.inf, sentence, {"update": broken.number})
        else:
            left = compared(updates_of(evidence.get(name)))
            answer = Answer(False, 0.0, "every update applies what is left of its window", {})
            if not all(_is_what_is_left(u, evidence) for u in left):
                answer = gradient(evidence, name)
            whole = whole and all(u.error < evidence.low for u in left)
        exhausted = evidence.raw[name]["spec"]["exhausts"]
        what = f"memory runs out {which}" if exhausted else f"a loss {which} is no number"
        answers.append(replace(answer, sentence=f"where {what}, {answer.sentence}"))
    shown = next((a for a in answers if a.shows), None)
    if shown is None and not whole:
        raise Undecided(
            f"{answers[0].sentence}, divided as if it were whole, which may be intended"
        )
    return shown or answers[0]
