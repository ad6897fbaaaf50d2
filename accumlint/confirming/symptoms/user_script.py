"""A rule's question put to what a user's own script did with its own data.

The questions are those of the default door; here they have to say as well where this data cannot answer.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from accumlint.confirming.controls import counted
from accumlint.confirming.evidence import LIMITS, Evidence, Undecided, key_of
from accumlint.confirming.launch import Launched
from accumlint.confirming.measurement import Unmeasurable
from accumlint.confirming.result import Control, Pass, Update
from accumlint.confirming.symptoms.answers import Answer, listed
from accumlint.confirming.symptoms.catalogue import QUESTIONS
from accumlint.confirming.user_script import CONTROLS
from accumlint.confirming.user_script_measurement import Measured, measured
from accumlint.rule import Symptom

# The pass in which nothing is disturbed.
OWN = "own"
# The one in which a loss or a gradient is no number.
OVERFLOW = "own overflow"
# The pass that a symptom is looked for in, where that is another.
_ASKED = {
    Symptom.CLIPPED: "own pressure", Symptom.STUCK: OVERFLOW, Symptom.SKIPPED: OVERFLOW,
}  # fmt: skip
_Question = Callable[["OwnEvidence", str], Answer]


class OwnEvidence(Evidence):
    """The passes over a script, as seen from a line of one of its files."""

    def __init__(self, launched: Launched, file: str, line: int) -> None:
        self.notes = launched.ranks
        self.passes: dict[str, Pass] = {}
        self.failures: dict[str, str] = {}
        self.raw: dict[str, Mapping[str, Any]] = {}
        self.measured: dict[str, Measured] = {}
        # Nothing is made up here, and what a sum is divided by is compared otherwise.
        self.made_up = self.summed = False
        count = min(len(rank["passes"]) for rank in self.notes)
        for index in range(count):
            ranks = [rank["passes"][index] for rank in self.notes]
            key = key_of(ranks[0]["spec"])
            self.raw[key] = ranks[0]
            try:
                self.measured[key] = measured(ranks, file, line)
                self.passes[key] = self.measured[key].done
            except Unmeasurable as reason:
                self.failures[key] = str(reason)
        self.high, self.low = LIMITS[self.raw[OWN]["dtype"]]


def answered(evidence: OwnEvidence, symptom: Symptom) -> tuple[Answer, Control]:
    """What the script's run says to a claim, and the control.

    Raises:
        Undecided: where it says nothing, or nothing shows that it could have said otherwise.
    """
    question = _QUESTIONS[symptom]
    if symptom in _OF_AN_OPTIMIZER:
        evidence = _about(evidence)
    answer = question(evidence, _ASKED.get(symptom, OWN))
    control = _control(question, evidence, answer.shows, symptom)
    if control is None:
        raise Undecided(f"{answer.sentence}, but no control could show that this check can fail")
    return answer, control


# What each of several optimizers may do otherwise than the others.
_OF_AN_OPTIMIZER = {Symptom.GRADIENT, Symptom.SCALE, Symptom.CLIPPED, Symptom.PARTIAL}


def _about(evidence: OwnEvidence) -> OwnEvidence:
    """The evidence on the optimizers that the finding's line is about: two networks that train each other have two."""
    concerned = evidence.measured[OWN].concerned if OWN in evidence.measured else frozenset[str]()
    if not concerned:
        return evidence
    own = copy.copy(evidence)
    own.passes = {
        key: replace(done, updates=tuple(u for u in done.updates if u.optimizer in concerned))
        for key, done in evidence.passes.items()
    }
    return own


def _control(
    question: _Question, evidence: OwnEvidence, shows: bool, symptom: Symptom
) -> Control | None:
    if symptom in (Symptom.ATTACHED, Symptom.GROWING):
        return counted(evidence, shows, OWN)
    if symptom is Symptom.STUCK:
        key = OWN if shows else f"{OWN} overflow void"
    else:
        mended, broken = CONTROLS[symptom]
        key = f"{OWN} {mended if shows else broken}".rstrip()
    if not evidence.has(key):
        return None
    try:
        answer = question(evidence, key)
    except Undecided:
        return None
    if answer.shows == shows:
        return None
    return Control(f"{_CHANGED[key]}: {answer.sentence}", answer.shows, answer.value)


_CHANGED = {
    "own": "nothing made infinite or no number",
    "own overflow void": "every step kept from happening",
    "own seldom": "every other step kept from happening",
    "own mend": "the window's own gradient put in place right before each step",
    "own pressure mend": "the window's own gradient, clipped, put in place right before each step",
    "own even": "every target made to weigh the same",
    "own average": "gradients averaged over the ranks before each step",
    "own mute": "no backward made to reduce",
    "own flush": "a step taken where an epoch ends",
    "own regular": "a step after as many micro-batches as were asked for, and no other",
    "own still": "the scheduler kept from moving",
    "own unscaled": "the GradScaler switched off",
    "own free": "every graph freed in its backward",
    "own forget": "every other micro-batch's gradient thrown away",
    "own pressure forget": "every other micro-batch's gradient thrown away",
    "own double": "every fifth loss doubled",
    "own part": "the gradients of every rank but the first made half as large again",
    "own sync": "every backward made to reduce",
    "own void": "every step kept from happening",
    "own hurry": "a step after every micro-batch",
    "own schedule": "the scheduler moved once more after every backward",
    "own keep": "`GradScaler.update` made to do nothing",
    "own retain": "every graph kept",
}


def _known_factor(symptom: Symptom) -> _Question:
    """A question about a gradient that is another multiple than it should be: by a factor that a window explains."""

    def ask(evidence: OwnEvidence, key: str) -> Answer:
        answer = QUESTIONS[symptom](evidence, key)
        if answer.shows and key in (OWN, "own pressure"):
            off = [u for u in evidence.get(key).updates if not u.error <= evidence.high]
            if off and all(_is_plain_multiple(u, evidence) and not u.factor for u in off):
                before = evidence.measured[key].unclipped
                worst = max(off, key=lambda u: u.error)
                if not before[worst.number]:
                    raise Undecided(
                        f"{answer.sentence}, which may be an intended weight of the loss"
                    )
                sentence = (
                    f"the gradient of update {worst.number} is {before[worst.number]} times the large batch's before"
                    f" it is clipped, and {worst.scale:.3g} times it then"
                )
                figures = {**answer.figures, "factor before clipping": before[worst.number]}
                return replace(answer, sentence=sentence, figures=figures)
        return answer

    return ask


def _is_plain_multiple(u: Update, evidence: OwnEvidence) -> bool:
    return u.direction < evidence.high and u.scale > 0


def _weights(evidence: OwnEvidence, key: str) -> Answer:
    evidence.get(key)
    ratios = evidence.measured[key].ratios
    if evidence.measured[key].shaped:
        raise Undecided(
            "the loss is not a plain sum over its targets, so the right weight of each is unknown"
        )
    if not ratios:
        raise Undecided(
            "every micro-batch of a window counts as many targets on this data, so that a difference cannot show"
        )
    number = max(ratios, key=lambda n: ratios[n])
    updates = evidence.measured[key].by_targets.updates
    worst = next(u for u in updates if u.number == number)
    ratio = ratios[number]
    if math.isnan(ratio) or evidence.low < ratio - 1 < evidence.high:
        raise Undecided(f"the ratio of weights is {ratio:.6g}, between rounding and a difference")
    shows = ratio - 1 >= evidence.high
    sentence = (
        f"with {listed(worst.targets)} targets, one target weighs up to {ratio:.3g} times another of the same window"
        f" (relative error {worst.error:.2g})"
        if shows
        else f"every target of a window weighs the same, with {listed(worst.targets)} targets too"
    )
    return Answer(
        shows,
        ratio - 1,
        sentence,
        {"weight ratio": ratio, "relative error": worst.error, "update": number},
    )


def _epochs(evidence: OwnEvidence, key: str) -> None:
    """Raises where no epoch has ended."""
    found = evidence.get(key)
    if not evidence.measured[key].ended_epochs:
        updates, length = len(found.updates), evidence.raw[key]["epoch"]
        more = "--windows lets more be seen"
        if length:
            # One of the next epoch shows what this one has left.
            enough = -(-length // max(found.steps, 1)) + 1
            more = f"an epoch has {length:,} micro-batches, and --windows {enough} lets its end be seen"
        if found.raised is not None:
            more = "which is where the script ended"
        raise Undecided(f"no epoch ended within {updates} updates; {more}")


def _left(evidence: OwnEvidence, key: str) -> Answer:
    _epochs(evidence, key)
    answer = QUESTIONS[Symptom.LEFT](evidence, key)
    found = evidence.get(key)
    kinds = [m.kind for m in found.moments]
    held = len(
        {m.microbatch for m in found.moments[: kinds.index("epoch")] if m.kind == "backward"}
    )
    if key == OWN and not answer.shows and held % max(found.steps, 1) == 0:
        raise Undecided(
            f"an epoch of this data holds {held} micro-batches, which makes whole windows, so nothing could be left"
        )
    return answer


def _partial(evidence: OwnEvidence, key: str) -> Answer:
    _epochs(evidence, key)
    sizes = [len(u.microbatches) for u in evidence.get(key).updates]
    if len(set(sizes)) < 2:
        raise Undecided("no window was partial on this data")
    answer = QUESTIONS[Symptom.PARTIAL](evidence, key)
    scales = [u.scale for u in evidence.get(key).updates if len(u.microbatches) == max(sizes)]
    if key == OWN and answer.shows and any(abs(s - 1) > evidence.high for s in scales):
        raise Undecided(f"whole windows apply {scales[0]:.4g} times their gradient as well")
    return answer


def _told_steps(symptom: Symptom) -> _Question:
    """A question that compares with the accumulation steps that the script was told."""

    def ask(evidence: OwnEvidence, key: str) -> Answer:
        found = evidence.get(key)
        if not evidence.raw[OWN]["asked"]:
            raise Undecided("the accumulation steps that the script was told could not be read")
        if symptom is Symptom.MISSED and key == "own regular":
            return QUESTIONS[Symptom.GRADIENT](evidence, key)
        if symptom is not Symptom.SIZES:
            return QUESTIONS[symptom](evidence, key)
        # The last window of an epoch may well be partial.
        pairs = zip(found.updates, found.updates[1:], strict=False)
        sizes = [len(u.microbatches) for u, after in pairs if after.epoch == u.epoch]
        if not sizes:
            raise Undecided("too few windows were seen")
        shows = any(size != found.steps for size in sizes)
        told = ", ".join(map(str, sizes))
        sentence = (
            f"windows hold {told} micro-batches where {found.steps} were asked for"
            if shows
            else f"every window holds {found.steps} micro-batches"
        )
        return Answer(shows, float(shows), sentence, {"window sizes": told})

    return ask


def _tampered(symptom: Symptom) -> _Question:
    """A question about what a script makes of a loss or a gradient that is no number."""

    def ask(evidence: OwnEvidence, key: str) -> Answer:
        if symptom is Symptom.STUCK and evidence.raw[OWN]["notes"]["initial_scale"] <= 1:
            raise Undecided("no GradScaler was in use")
        if key == OVERFLOW and not evidence.raw[OVERFLOW]["notes"]["tampered"]:
            raise Undecided("no loss of torch's was seen that could be made infinite")
        return QUESTIONS[symptom](evidence, key)

    return ask


def _silenced(symptom: Symptom, silent: str, sentence: str) -> _Question:
    """A question about how often something happens; where a control keeps it from happening, it does not."""

    def ask(evidence: OwnEvidence, key: str) -> Answer:
        if key == silent:
            evidence.get(key)
            return Answer(False, 0.0, sentence, {})
        return QUESTIONS[symptom](evidence, key)

    return ask


_QUESTIONS: dict[Symptom, _Question] = {
    Symptom.GRADIENT: _known_factor(Symptom.GRADIENT),
    Symptom.SCALE: _known_factor(Symptom.SCALE),
    Symptom.WEIGHTS: _weights,
    Symptom.CLIPPED: QUESTIONS[Symptom.CLIPPED],
    Symptom.RAISES: QUESTIONS[Symptom.RAISES],
    Symptom.SPREAD: QUESTIONS[Symptom.SPREAD],
    Symptom.REDUCTIONS: _silenced(
        Symptom.REDUCTIONS, "own mute", "gradients are never all-reduced"
    ),
    Symptom.LEFT: _left,
    Symptom.PARTIAL: _partial,
    Symptom.SIZES: _told_steps(Symptom.SIZES),
    Symptom.STEPS: _told_steps(Symptom.STEPS),
    Symptom.MISSED: _told_steps(Symptom.MISSED),
    Symptom.SCHEDULES: _silenced(Symptom.SCHEDULES, "own still", "the scheduler never moves"),
    Symptom.ATTACHED: QUESTIONS[Symptom.ATTACHED],
    Symptom.GROWING: QUESTIONS[Symptom.GROWING],
    Symptom.HELD: QUESTIONS[Symptom.HELD],
    Symptom.AVERAGES: QUESTIONS[Symptom.AVERAGES],
    Symptom.STUCK: _tampered(Symptom.STUCK),
    Symptom.SKIPPED: _tampered(Symptom.SKIPPED),
}
