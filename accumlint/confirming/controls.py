"""Control runs: on a loop that is corrected or broken on purpose, the question of a finding must change its answer."""

from __future__ import annotations

from accumlint.confirming.evidence import Evidence, Undecided
from accumlint.confirming.result import Control
from accumlint.confirming.symptoms.answers import Question
from accumlint.rule import Symptom

_MENDED = {
    "equal one": "one micro-batch per window, so that nothing accumulates",
    "equal one pressure": "one micro-batch per window, clipped at the same threshold",
    "equal unscaled": "the GradScaler switched off",
    "equal unscaled pressure": "the GradScaler switched off, clipped at the same threshold",
    "equal average": "gradients averaged over the ranks before each step",
    "equal regular": "a step after as many micro-batches as were asked for, and no other",
    "equal mute": "no backward made to reduce",
    "equal free": "every graph freed in its backward",
    "equal drop": "what earlier micro-batches left released at each new one",
    "equal": "equal numbers of targets, whole windows",
    "equal unscaled mend": "the window's own gradient put in place right before each step, the GradScaler switched off",
    "equal unscaled pressure mend": "the window's own gradient, clipped, put in place right before each step,"
    " the GradScaler switched off",
    "ragged even": "every target made to weigh the same",
    "trailing flush": "a step taken where an epoch ends",
    "equal mend": "the window's own gradient put in place right before each step",
    "equal pressure mend": "the window's own gradient, clipped, put in place right before each step",
}
_BROKEN = {
    "equal double": "every fifth loss doubled",
    "equal pressure forget": "every other micro-batch's gradient thrown away",
    "ragged double": "every fifth loss doubled",
    "trailing double": "every fifth loss doubled",
    "trailing void": "every step kept from happening",
    "equal hurry": "a step after every micro-batch",
    "equal part": "the gradients of every rank but the first made half as large again",
    "equal seldom": "every other step kept from happening",
    "equal retain": "every graph kept",
    "equal schedule": "the scheduler moved once more after every backward",
    "equal sync": "every backward made to reduce",
    "equal keep": "`GradScaler.update` made to do nothing",
    "overflow void": "every step kept from happening",
}


def control(
    question: Question, evidence: Evidence, shows: bool, symptom: Symptom
) -> Control | None:
    """The control whose answer differs from the measured one, None where no control run gives another answer."""
    if symptom in (Symptom.ATTACHED, Symptom.GROWING):
        return _counted(evidence, shows)
    for key, what in (_MENDED if shows else _BROKEN).items():
        if key not in evidence.passes or ("pressure" in key) != (symptom is Symptom.CLIPPED):
            continue
        if "unscaled" in key and symptom is Symptom.WEIGHTS:
            # Its targets are equally many, and that alone makes them weigh the same.
            continue
        try:
            answer = question(evidence, key)
        except Undecided:
            continue
        if answer.shows != shows:
            return Control(f"{what}: {answer.sentence}", answer.shows, answer.value)
    return None


def _counted(evidence: Evidence, shows: bool) -> Control | None:
    """Running totals have no control run; that reading them works shows in a value that changes between updates."""
    values = [x.value for x in evidence.get("equal").totals]
    different = len(set(values))
    if different < 2:
        return None
    what = f"read at {len(values)} updates, the total has {different} different values"
    return Control(what, shows, float(different))
