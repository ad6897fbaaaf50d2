"""Questions about applied gradients: their size, their direction, the weight of each target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from accumlint.confirming.evidence import Evidence, Undecided, is_expected
from accumlint.confirming.factors import SHARE, norm
from accumlint.confirming.measurement import Part, intended_weight
from accumlint.confirming.result import Update
from accumlint.confirming.symptoms import microbatch_weights
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


def gradient(evidence: Evidence, key: str = "equal") -> Answer:
    updates = compared(updates_of(evidence.get(key)))
    if key == "equal" and "trailing" in evidence.passes:
        # Only a partial window may lack its reduction.
        updates = [*updates, *(u for u in evidence.get("trailing").updates if is_empty(u))]
    if evidence.loss_unknown:
        updates = [_whatever_its_loss(u, evidence, key) for u in updates]
    worst = furthest(updates)
    low = max(evidence.low, _CLIPPING) if "pressure" in key else evidence.low
    if key == "equal" and (sized := _sized(updates, evidence)):
        return sized
    # Smaller errors are rounding.
    shows = not worst.error <= low and decide(worst.error, evidence, "the relative error")
    if shows and key == "equal":
        if meant := _intended(updates, evidence, ("", SHARE)):
            return meant
        # Undivided sums are another claim.
        _explained(updates, evidence, ("", "N"))
    figures: dict[str, float | int | str] = {
        "relative error": worst.error, "cosine": worst.cosine, "scale": worst.scale, "update": worst.number,
    }  # fmt: skip
    if worst.factor:
        figures["factor"] = worst.factor
    return Answer(shows, worst.error, _describe(worst, evidence, low), figures)


def _explained(
    updates: Sequence[Update], evidence: Evidence, meant: tuple[str, ...] = ("",)
) -> None:
    """Rejects sums whose factor is explained by no number of steps, ranks or targets.

    Raises:
        Undecided: where all updates have one such factor, since the divisor of a sum may be intended.
    """
    if evidence.summed and (off := _same_multiple(updates, evidence, meant)):
        raise Undecided(f"{_describe(off, evidence)}, which may be an intended weight of the loss")


def _same_multiple(
    updates: Sequence[Update], evidence: Evidence, factors: tuple[str, ...]
) -> Update | None:
    """The first update, where all are the same multiple of the large batch's, with a factor of one of these names."""
    scales = [u.scale for u in updates]
    same = min(scales) > 0 and max(scales) - min(scales) <= evidence.low * max(scales)
    plain = all(
        u.error > evidence.low and u.direction < evidence.low and u.factor in factors
        for u in updates
    )
    return updates[0] if same and plain else None


# In a sum over the window, the share of one of several losses may equal such a factor by chance.
_BY_TARGETS = ("N", "N/K", "N/W", "N/(K·W)")


def _intended(
    updates: Sequence[Update], evidence: Evidence, factors: tuple[str, ...]
) -> Answer | None:
    """The answer where all updates are the same multiple, and so is a single micro-batch: the factor is intended.

    The divisor of a sum is another question.

    Raises:
        Undecided: where the loss is the mean of its parts, which says nothing about its window.
    """
    if evidence.summed:
        return None
    terms = len(microbatch_weights.first_parts(evidence, "equal"))
    off = _same_multiple(updates, evidence, factors)
    if off is None and terms > 1 and (off := _same_multiple(updates, evidence, _BY_TARGETS)):
        if abs(off.scale * terms / len(off.microbatches) - 1) > evidence.low:
            return None
        off = replace(off, factor="")
    if off is None:
        return None
    if terms > 1 and not off.factor and abs(off.scale * terms - 1) < evidence.low:
        if microbatch_weights.has_fair_share(evidence):
            return microbatch_weights.named(microbatch_weights.relative_weight(evidence), evidence)
        raise Undecided(f"{_describe(off, evidence)}, which may be the mean of its {terms} losses")
    if round(1 / off.scale, 6) in evidence.numbers:
        # A constant of the source may stand for its steps.
        return _by_constants(off, evidence, numbered=True)
    try:
        answer = microbatch_weights.relative_weight(evidence)
    except Undecided:
        return _by_constants(off, evidence, numbered=False)
    return microbatch_weights.named(answer, evidence)


def _by_constants(off: Update, evidence: Evidence, numbered: bool) -> Answer | None:
    """The answer from the constants in the graph of a loss, where no single micro-batch was measured.

    Raises:
        Undecided: where the window's size is one of them and the others explain the multiple.
    """
    if off.factor:
        return None
    size = len(off.microbatches)
    weight = intended_weight(evidence.windows("equal")[:1])
    if abs(off.scale - weight) < evidence.low * weight:
        raise Undecided(f"{_describe(off, evidence)}, which may be an intended weight of the loss")
    if numbered or abs(off.scale / weight - size) > evidence.low * size:
        return None
    off = replace(off, scale=off.scale / weight, factor="K")
    figures: dict[str, float | int | str] = {
        "scale": off.scale, "factor": off.factor, "direction error": off.direction, "update": off.number,
    }  # fmt: skip
    return Answer(True, abs(off.scale - 1), _describe(off, evidence), figures)


def _sized(updates: Sequence[Update], evidence: Evidence) -> Answer | None:
    """The answer for a composed loss: a micro-batch's weight in the window relative to a window of its own.

    Raises:
        Undecided: where the gradient is a multiple of the large batch's, and no single micro-batch was measured.
    """
    if not microbatch_weights.is_shaped(evidence, "equal"):
        return None
    worst = furthest(updates)
    if worst.direction > evidence.high:
        # Lost or repeated micro-batches show whatever the loss is.
        return None
    return microbatch_weights.named(microbatch_weights.relative_weight(evidence), evidence)


def _whatever_its_loss(u: Update, evidence: Evidence, key: str) -> Update:
    """An update as far as it is independent of an unknown loss: a common factor of its micro-batches is removed.

    Raises:
        Undecided: where different weights may be intended, or where that factor decides.
    """
    weights = u.weights or (1.0,)
    if len(set(u.targets)) > 1 or max(weights) - min(weights) > evidence.low * max(weights):
        raise Undecided(
            "the loss is computed from what is not known here, so the weight of each micro-batch is unknown"
        )
    factor = weights[0]
    # The gradient that a control inserts lacks no factor.
    if abs(factor - 1) <= evidence.low or is_empty(u) or "mend" in key:
        return u
    if "pressure" in key and u.direction < evidence.high:
        raise Undecided(
            "the loss is computed from what is not known here, and a factor of it may be lost"
        )
    scale = u.scale / factor
    return replace(u, error=max(u.direction, abs(scale - 1)), factor="", scale=scale)


# torch adds 1e-6 to the norm in clipping, which matters more for a small gradient than for K times it.
_CLIPPING = 1e-5


_SIGNS = {"K": "accumulation steps", "W": "ranks", "N": "targets"}


def _describe(u: Update, evidence: Evidence, low: float = 0.0) -> str:
    if u.error <= max(low, evidence.low):
        return f"every update applies the large batch's gradient (relative error {u.error:.2g})"
    if u.direction < evidence.low:
        legend = ", ".join(f"{sign}: {what}" for sign, what in _SIGNS.items() if sign in u.factor)
        named = f" ({u.factor}{'; ' if legend else ''}{legend})" if u.factor else ""
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
    if shows and evidence.loss_unknown and not off.factor and key == "equal":
        raise Undecided(
            "the loss is computed from what is not known here, so the weight of each micro-batch is unknown"
        )
    if shows and key == "equal":
        if meant := _intended(updates, evidence, ("",)):
            return meant
        _explained(updates, evidence)
    if not shows and key == "equal" and (beside := _beside(evidence)):
        return beside
    figures: dict[str, float | int | str] = {
        "scale": off.scale, "factor": off.factor or "none", "direction error": off.direction, "update": off.number,
    }  # fmt: skip
    return Answer(shows, abs(off.scale - 1), _describe(off, evidence), figures)


def _against_one(updates: Sequence[Update], evidence: Evidence) -> Answer | None:
    """The answer relative to a single micro-batch, where a weight of the loss is as large as a division would be.

    Raises:
        Undecided: where the source contains the number of steps, which may be that weight.
    """
    steps = evidence.get("equal").steps
    one = evidence.passes.get("equal one")
    single = [u.scale * steps for u in one.updates if len(u.microbatches) == 1] if one else []
    if steps == 1 or not single or any(abs(x - 1) > evidence.low for x in single):
        return None
    if steps in evidence.numbers:
        raise Undecided(
            f"the loss of a micro-batch alone is multiplied by 1/{steps}, which may be its weight or stand for the"
            f" division by {steps} accumulation steps"
        )
    return microbatch_weights.named(
        microbatch_weights.weight_answer(furthest(updates).scale * steps, steps, evidence), evidence
    )


def _beside(evidence: Evidence) -> Answer | None:
    """The answer for a part of the loss whose weight relative to the rest depends on the number of micro-batches."""
    if "equal one" not in evidence.passes:
        return None
    first, single = (
        microbatch_weights.first_parts(evidence, key) for key in ("equal", "equal one")
    )
    several, single_shares = _shares(first), _shares(single)
    if len(several) < 2 or len(several) != len(single_shares) or not all(single_shares):
        return None
    if first[0].gradient != single[0].gradient:
        # A piece of a smaller batch has other rows.
        return None
    ratio = max(
        (a / b for a, b in zip(several, single_shares, strict=True)), key=lambda r: abs(r - 1)
    )
    if abs(ratio - 1) <= evidence.low or not decide(abs(ratio - 1), evidence, "the ratio less 1"):
        return None
    steps = evidence.get("equal").steps
    names = {steps: "K", 1 / steps: "1/K"}
    times = next(
        (name for k, name in names.items() if abs(ratio - k) < 1e-6),
        f"{ratio:.4g}",
    )
    sentence = f"a part of the loss weighs {times} times as much beside the rest as in a window of one micro-batch"
    return Answer(True, abs(ratio - 1), sentence, {"weight of the part": ratio, "factor": times})


def _shares(parts: Sequence[Part]) -> list[float]:
    """The contribution of each term of a micro-batch, relative to the weight of a target of the first."""
    return [abs(part.weight / parts[0].weight) * norm(part.gradient) for part in parts]


def weights(evidence: Evidence, key: str = "ragged") -> Answer:
    if microbatch_weights.is_shaped(evidence, key):
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
    """Whether a term has different target counts in one window of the first rank; ranks may compensate for others."""
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
    """Whether clipping changes the gradient's direction, as when its parts are clipped separately."""
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
        # Only a partial window may lack its reduction.
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


def _applies_remainder(u: Update, evidence: Evidence) -> bool:
    """Whether an update applies the sum over its micro-batches, possibly divided as if a skipped one were there."""
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
        if not evidence.raw[name]["notes"]["struck"]:
            raise Undecided("no micro-batch failed as the guard expects it")
        broken = next((u for u in updates if not math.isfinite(u.applied)), None)
        if broken is not None:
            sentence = f"update {broken.number} applies a gradient that is not finite"
            answer = Answer(True, math.inf, sentence, {"update": broken.number})
        else:
            left = compared(updates_of(evidence.get(name)))
            answer = Answer(False, 0.0, "every update applies what is left of its window", {})
            if evidence.shortens or not all(_applies_remainder(u, evidence) for u in left):
                answer = gradient(evidence, name)
            whole = whole and all(u.error < evidence.low for u in left)
        spec = evidence.raw[name]["spec"]
        what = f"memory runs out {which}" if spec["exhausts"] else f"a loss {which} is no number"
        what = f"a micro-batch {which} is None" if spec["withholds"] else what
        answers.append(replace(answer, sentence=f"where {what}, {answer.sentence}"))
    shown = next((a for a in answers if a.shows), None)
    if shown is None and not whole:
        raise Undecided(
            f"{answers[0].sentence}, divided as if it were whole, which may be intended"
        )
    return shown or answers[0]
