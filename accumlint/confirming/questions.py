"""The symptoms, each a question to the passes.

`key` names the pass that is asked; a control asks the same of another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from accumlint.confirming.evidence import Evidence, Undecided, is_expected
from accumlint.confirming.result import Pass, Update
from accumlint.rule import Symptom


@dataclass(frozen=True)
class Answer:
    """What a symptom's question gave: whether it shows, the figure that decides, a sentence and the figures."""

    shows: bool
    value: float
    sentence: str
    figures: dict[str, float | int | str]


Question = Callable[..., Answer]


def _whole(found: Pass) -> list[Update]:
    updates = [u for u in found.updates if u.reference >= 1e-9 or u.applied >= 1e-9]
    if not updates:
        raise Undecided("no update could be compared")
    return updates


def _compared(updates: list[Update]) -> list[Update]:
    lost = next((u for u in updates if math.isnan(u.error)), None)
    if lost is not None:
        raise Undecided(f"update {lost.number} has no large batch to be compared with")
    return updates


def _is_empty(u: Update) -> bool:
    """True for an update that applies nothing of what went backward for it."""
    return u.reference >= 1e-9 and u.applied < 1e-12


def _worst(updates: Sequence[Update]) -> Update:
    return max(updates, key=lambda u: u.error if math.isfinite(u.error) else math.inf)


def _decide(value: float, evidence: Evidence, what: str) -> bool:
    if math.isnan(value) or evidence.low < value < evidence.high:
        raise Undecided(f"{what} is {value:.1e}, between rounding and a real difference")
    return value >= evidence.high


def _gradient(evidence: Evidence, key: str = "equal") -> Answer:
    updates = _compared(_whole(evidence.get(key)))
    if key == "equal" and evidence.has("trailing"):
        # What is never reduced may be only a partial window.
        updates = [*updates, *(u for u in evidence.get("trailing").updates if _is_empty(u))]
    if evidence.made_up:
        updates = [_whatever_its_loss(u, evidence, key) for u in updates]
    worst = _worst(updates)
    low = max(evidence.low, _CLIPPING) if "pressure" in key else evidence.low
    # What lies below is rounding.
    shows = not worst.error <= low and _decide(worst.error, evidence, "the relative error")
    if shows and key == "equal":
        _explained(updates, evidence)
    figures: dict[str, float | int | str] = {
        "relative error": worst.error, "cosine": worst.cosine, "scale": worst.scale, "update": worst.number,
    }  # fmt: skip
    if worst.factor:
        figures["factor"] = worst.factor
    return Answer(shows, worst.error, _said(worst, evidence, low), figures)


def _explained(updates: Sequence[Update], evidence: Evidence) -> None:
    """Refuses sums that are off by a factor which no number of steps, ranks or targets explains.

    Raises:
        Undecided: where all that are off are such multiples, since what a sum is to be divided by may be on purpose.
    """
    if not evidence.summed:
        return
    off = [u for u in updates if not u.error <= evidence.low]
    if all(u.direction < evidence.low and u.scale > 0 and not u.factor for u in off):
        raise Undecided(
            f"{_said(off[0], evidence)}, which may be a weight that the loss has on purpose"
        )


def _whatever_its_loss(u: Update, evidence: Evidence, key: str) -> Update:
    """An update as far as it does not depend on what the loss is: a factor on all its micro-batches may be lost.

    Raises:
        Undecided: where its micro-batches may be meant to weigh differently, or where that factor may decide.
    """
    weights = u.weights or (1.0,)
    if len(set(u.targets)) > 1 or max(weights) - min(weights) > evidence.low * max(weights):
        raise Undecided(
            "a stand-in reached the loss, and nobody knows what each micro-batch weighs"
        )
    factor = weights[0]
    if abs(factor - 1) <= evidence.low or _is_empty(u):
        return u
    if "pressure" in key and u.direction < evidence.high:
        raise Undecided("a stand-in reached the loss, and a factor of it may be lost")
    scale = u.scale / factor
    return replace(u, error=max(u.direction, abs(scale - 1)), factor="", scale=scale)


# torch adds 1e-6 to the norm that it divides by, which weighs more on a small gradient than on K times it.
_CLIPPING = 1e-5


def _said(u: Update, evidence: Evidence, low: float = 0.0) -> str:
    if u.error <= max(low, evidence.low):
        return f"every update applies the large batch's gradient (relative error {u.error:.1e})"
    if u.direction < evidence.low and u.factor:
        return f"update {u.number} applies {u.factor} times the large batch's gradient"
    if u.direction < evidence.low:
        return f"update {u.number} applies {u.scale:.4g} times the large batch's gradient"
    if u.applied < 1e-12:
        return f"update {u.number} applies nothing; the large batch's gradient has norm {u.reference:.3g}"
    return (
        f"update {u.number} applies a gradient with relative error {u.error:.2g} and cosine {u.cosine:.3f}"
        f" to the large batch's"
    )


def _scale(evidence: Evidence, key: str = "equal") -> Answer:
    updates = _compared(_whole(evidence.get(key)))
    off = max(updates, key=lambda u: abs(u.scale - 1))
    shows = _decide(abs(off.scale - 1), evidence, "the scale's difference from 1")
    if shows and key == "equal":
        _explained(updates, evidence)
    figures: dict[str, float | int | str] = {
        "scale": off.scale, "factor": off.factor or "none", "direction error": off.direction, "update": off.number,
    }  # fmt: skip
    return Answer(shows, abs(off.scale - 1), _said(off, evidence), figures)


def _weights(evidence: Evidence, key: str = "ragged") -> Answer:
    worst, ratio = None, 1.0
    for u in _whole(evidence.get(key)):
        if len(u.weights) > 1 and min(u.weights) > 0:
            found = max(u.weights) / min(u.weights)
            if found >= ratio:
                worst, ratio = u, found
    if worst is None:
        raise Undecided("no update has several micro-batches with a loss")
    shows = _decide(ratio - 1, evidence, "the ratio of weights less 1")
    if shows:
        sentence = (
            f"with {listed(worst.targets)} targets, one target weighs up to {ratio:.3g} times another of the same"
            f" window (relative error {worst.error:.2g})"
        )
    else:
        sentence = "every target of a window weighs the same, however many its micro-batch has"
    return Answer(
        shows,
        ratio - 1,
        sentence,
        {
            "weight ratio": ratio,
            "relative error": worst.error,
            "cosine": worst.cosine,
            "update": worst.number,
        },
    )


def listed(numbers: Sequence[int]) -> str:
    """Numbers side by side: "4/12/9"."""
    return "/".join(str(n) for n in numbers)


def _clipped(evidence: Evidence, key: str = "equal pressure") -> Answer:
    if not evidence.has(key):
        raise Undecided("nothing was clipped")
    found = evidence.get(key)
    if not any(u.clips for u in found.updates):
        raise Undecided("nothing was clipped")
    answer = _gradient(evidence, key)
    sentence = answer.sentence.replace(
        "the large batch's gradient", "the clipped gradient of the large batch"
    )
    return Answer(
        answer.shows, answer.value, f"clipped at {found.pressure:.3g}, {sentence}", answer.figures
    )


def _raises(evidence: Evidence, key: str = "equal") -> Answer:
    for name in (key, f"{key} pressure", f"{key} growing"):
        if not evidence.has(name):
            continue
        raised = evidence.get(name).raised
        if raised is not None:
            where = f" at line {raised.line}" if raised.line else ""
            if not is_expected(raised.message):
                raise Undecided(
                    f"the loop raised something else{where}: {raised.kind}: {raised.message}"
                )
            return Answer(
                True,
                1.0,
                f"the loop raises {raised.kind}{where}: {raised.message}",
                {"exception": raised.message},
            )
    answer = _gradient(evidence, key)
    if answer.shows:
        return answer
    if evidence.has(f"{key} growing"):
        growing = _gradient(evidence, f"{key} growing")
        if growing.shows:
            return replace(growing, sentence=f"while the loss scale grows, {growing.sentence}")
    return Answer(False, answer.value, f"nothing is raised, and {answer.sentence}", answer.figures)


def _spread(evidence: Evidence, key: str = "equal") -> Answer:
    updates = _whole(evidence.get(key))
    if key == "equal" and evidence.has("trailing"):
        # A partial window may be the one that nobody synchronises.
        updates = [*updates, *_whole(evidence.get("trailing"))]
    if evidence.get(key).ranks < 2:
        raise Undecided("one rank has nobody to differ from")
    worst = max(updates, key=lambda u: u.spread)
    shows = _decide(worst.spread, evidence, "the spread over ranks")
    sentence = (
        f"at update {worst.number} the ranks apply gradients that differ by {worst.spread:.2g} of the large batch's"
        if shows
        else "all ranks apply the same gradient"
    )
    return Answer(
        shows, worst.spread, sentence,
        {"spread": worst.spread, "relative error": worst.error, "all-reduces per update": worst.reductions},
    )  # fmt: skip


def _reductions(evidence: Evidence, key: str = "equal") -> Answer:
    found = evidence.get(key)
    updates = _whole(found)
    if key == "equal mute":
        return Answer(False, 0.0, "gradients are never all-reduced", {})
    if found.ranks < 2 or not any(u.reductions for u in updates):
        raise Undecided("nothing was reduced over ranks")
    most = max(updates, key=lambda u: u.reductions)
    shows = most.reductions > 1
    times = "once" if most.reductions == 1 else f"{most.reductions} times"
    sentence = f"gradients are all-reduced {times} for update {most.number}, of {len(most.microbatches)} micro-batches"
    return Answer(
        shows, float(most.reductions), sentence,
        {"all-reduces per update": most.reductions, "relative error": most.error},
    )  # fmt: skip


def _left(evidence: Evidence, key: str = "trailing") -> Answer:
    found = evidence.get(key)
    later = [u for u in found.updates if u.epoch > 1]
    sizes = [len(u.microbatches) for u in found.updates if u.epoch <= 1]
    usual = max(sizes, key=sizes.count, default=0)
    # What an epoch left is part of the next update where that one is a multiple of their common mean.
    leaked = next(
        (u for u in later[:1] if len(u.microbatches) > usual and u.direction < evidence.high), None
    )
    if not found.left and not any(m.kind == "epoch" for m in found.moments):
        raise Undecided("no epoch ended")
    if not found.left:
        return Answer(False, 0.0, "every micro-batch of an epoch is applied in it", {"left": 0})
    names = listed(found.left)
    fate = "and no update of that epoch applies them"
    if leaked:
        fate = f"and leak into update {leaked.number} of the next epoch"
    return Answer(
        True,
        float(len(found.left)),
        f"micro-batches {names} go backward {fate}",
        {"left": len(found.left)},
    )


def _partial(evidence: Evidence, key: str = "trailing") -> Answer:
    found = evidence.get(key)
    updates = _whole(found)
    sizes = [len(u.microbatches) for u in updates]
    usual = max(sizes, key=sizes.count)
    partial = [u for u in updates if 0 < len(u.microbatches) < usual]
    if not partial:
        whole = updates if key != "trailing" else []
        if whole:
            return Answer(False, 0.0, "no window is partial", {"scale": 1.0})
        raise Undecided("no partial window was stepped")
    if evidence.made_up:
        # What each micro-batch weighs is known, whatever ranks apply of it.
        updates = [replace(u, scale=max(u.weights, default=0.0)) for u in updates]
        partial = [u for u in updates if 0 < len(u.microbatches) < usual]
        if any(abs(u.scale - 1) > evidence.low for u in updates if u not in partial):
            raise Undecided("a stand-in reached the loss, and a factor of it may be lost")
    worst = max(partial, key=lambda u: abs(u.scale - 1))
    shows = _decide(abs(worst.scale - 1), evidence, "the scale's difference from 1")
    sentence = (
        f"the partial window of {len(worst.microbatches)} micro-batches applies {worst.scale:.3g} times its gradient"
        if shows
        else "partial windows apply their own mean"
    )
    return Answer(
        shows,
        abs(worst.scale - 1),
        sentence,
        {"scale": worst.scale, "micro-batches": len(worst.microbatches)},
    )


def _sizes(evidence: Evidence, key: str = "equal") -> Answer:
    found = evidence.get(key)
    sizes = [
        len(u.microbatches) for u in _whole(found) if u.epoch <= 1 or found.updates[-1].epoch == 0
    ]
    odd = next((s for s in sizes if s != found.steps), None)
    shows = odd is not None
    sentence = (
        f"windows hold {', '.join(map(str, sizes))} micro-batches where {found.steps} were asked for"
        if shows
        else f"every window holds {found.steps} micro-batches"
    )
    return Answer(shows, float(shows), sentence, {"window sizes": ", ".join(map(str, sizes))})


def _steps(evidence: Evidence, key: str = "equal") -> Answer:
    found = evidence.get(key)
    updates = _whole(found)
    backwards = [0]
    for moment in found.moments:
        if moment.kind == "backward":
            backwards[-1] += 1
        elif moment.kind == "step":
            backwards.append(0)
    # What comes in one piece may be cut into micro-batches.
    sizes = [
        max(len(u.microbatches), backwards[u.number - 1] if u.number <= len(backwards) else 0)
        for u in updates
    ]
    mean = sum(sizes) / len(sizes)
    shows = mean < found.steps
    sentence = (
        f"the optimizer steps after {mean:.3g} micro-batches where {found.steps} were asked for"
    )
    return Answer(
        shows,
        found.steps - mean,
        sentence,
        {"micro-batches per update": mean, "asked for": found.steps},
    )


def _schedules(evidence: Evidence, key: str = "equal") -> Answer:
    updates = _whole(evidence.get(key))
    inner = updates[1:] or updates
    most = max(inner, key=lambda u: u.schedules)
    if not any(u.schedules for u in updates):
        raise Undecided("the scheduler never moved")
    shows = most.schedules > 1
    times = "once" if most.schedules == 1 else f"{most.schedules} times"
    return Answer(
        shows, float(most.schedules), f"the scheduler moves {times} for one update",
        {"scheduler steps per update": most.schedules},
    )  # fmt: skip


def _attached(evidence: Evidence, key: str = "equal") -> Answer:
    totals = evidence.get(key).totals
    if not totals:
        raise Undecided("the running total was not found while the loop ran")
    first, last = totals[0], max(totals, key=lambda x: x.nodes)
    shows = last.nodes > 0
    sentence = (
        f"`{last.name}` keeps {last.nodes} graph nodes at update {last.update}"
        if shows
        else f"`{first.name}` keeps no graph"
    )
    return Answer(shows, float(last.nodes), sentence, {"graph nodes": last.nodes})


def _growing(evidence: Evidence, key: str = "equal") -> Answer:
    totals = evidence.get(key).totals
    if len(totals) < 2:
        raise Undecided("the running total was not found while the loop ran")
    values = [x.value for x in totals if x.name == totals[0].name]
    grown = all(b > a for a, b in pairwise(values))
    name = totals[0].name
    sentence = f"`{name}` is set back"
    if grown:
        sentence = (
            f"`{name}` grows from {values[0]:.4g} to {values[-1]:.4g} over {len(values)} updates"
            " and is never set back"
        )
    return Answer(grown, values[-1], sentence, {"first": values[0], "last": values[-1]})


def _stuck(evidence: Evidence, key: str = "overflow") -> Answer:
    found = evidence.get(key)
    before = evidence.raw[key]["notes"]["initial_scale"]
    # A scaler that is switched off multiplies by 1, and has nothing to lower.
    before = before if before > 1 else 0.0
    steps = len(found.updates)
    whole = len(evidence.get("own" if key.startswith("own") else "equal").updates)
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
    return Answer(
        shows,
        min(found.scales, default=before),
        sentence,
        {"scale before": before, "updates": steps},
    )


def _skipped(evidence: Evidence, key: str = "overflow") -> Answer:
    if not key.endswith("overflow"):
        return _gradient(evidence, key)
    answers: list[Answer] = []
    for name, which in ((key, "inside a window"), (f"{key} last", "at a window's end")):
        updates = evidence.get(name).updates
        broken = next((u for u in updates if not math.isfinite(u.applied)), None)
        if broken is not None:
            sentence = f"update {broken.number} applies a gradient that is no number"
            answer = Answer(True, math.inf, sentence, {"update": broken.number})
        else:
            answer = _gradient(evidence, name)
        sentence = f"where a loss {which} is no number, {answer.sentence}"
        answers.append(Answer(answer.shows, answer.value, sentence, answer.figures))
    return next((a for a in answers if a.shows), answers[0])


def _missed(evidence: Evidence, key: str = "equal") -> Answer:
    found = evidence.get(key)
    backwards = {m.microbatch for m in found.moments if m.kind == "backward"}
    if not found.updates and len(backwards) >= 2 * found.steps:
        return Answer(
            True, 1.0, f"{len(backwards)} micro-batches go backward, and the optimizer never steps",
            {"micro-batches": len(backwards), "updates": 0},
        )  # fmt: skip
    answer = _gradient(evidence, key)
    if answer.shows or key in ("equal one", "equal mend"):
        return answer
    early = _steps(evidence, key)
    return early if early.shows else answer


def _averages(evidence: Evidence, key: str = "equal") -> Answer:
    most = count = 0
    for moment in evidence.get(key).moments:
        if moment.kind == "average":
            count += 1
        elif moment.kind == "step":
            most, count = max(most, count), 0
    if not most:
        raise Undecided("the running average never moved")
    times = "once" if most == 1 else f"{most} times"
    return Answer(
        most > 1, float(most), f"the running average of the weights moves {times} for one update",
        {"averages per update": most},
    )  # fmt: skip


def _held(evidence: Evidence, key: str = "equal") -> Answer:
    evidence.get(key)
    most = int(evidence.raw[key]["notes"]["graphs"])
    if not most:
        raise Undecided("no graph was seen")
    what = "one micro-batch is" if most == 1 else f"{most} micro-batches are"
    return Answer(
        most > 1, float(most), f"the graphs of {what} kept at once", {"graphs kept": most}
    )


QUESTIONS: dict[Symptom, Question] = {
    Symptom.GRADIENT: _gradient,
    Symptom.SCALE: _scale,
    Symptom.WEIGHTS: _weights,
    Symptom.CLIPPED: _clipped,
    Symptom.RAISES: _raises,
    Symptom.SPREAD: _spread,
    Symptom.REDUCTIONS: _reductions,
    Symptom.LEFT: _left,
    Symptom.PARTIAL: _partial,
    Symptom.SIZES: _sizes,
    Symptom.STEPS: _steps,
    Symptom.SCHEDULES: _schedules,
    Symptom.ATTACHED: _attached,
    Symptom.GROWING: _growing,
    Symptom.STUCK: _stuck,
    Symptom.SKIPPED: _skipped,
    Symptom.MISSED: _missed,
    Symptom.AVERAGES: _averages,
    Symptom.HELD: _held,
}
