"""The symptoms, each a question to the passes.

`key` names the pass that is asked; a control asks the same of another.
"""

from __future__ import annotations

from accumlint.confirming import of_gradients, of_moments
from accumlint.confirming.answers import Question
from accumlint.rule import Symptom

QUESTIONS: dict[Symptom, Question] = {
    Symptom.GRADIENT: of_gradients.gradient,
    Symptom.SCALE: of_gradients.scale,
    Symptom.WEIGHTS: of_gradients.weights,
    Symptom.CLIPPED: of_gradients.clipped,
    Symptom.RAISES: of_gradients.raises,
    Symptom.SPREAD: of_gradients.spread,
    Symptom.REDUCTIONS: of_moments.reductions,
    Symptom.LEFT: of_moments.left,
    Symptom.PARTIAL: of_gradients.partial,
    Symptom.SIZES: of_moments.sizes,
    Symptom.STEPS: of_moments.steps,
    Symptom.SCHEDULES: of_moments.schedules,
    Symptom.ATTACHED: of_moments.attached,
    Symptom.GROWING: of_moments.growing,
    Symptom.STUCK: of_moments.stuck,
    Symptom.SKIPPED: of_gradients.skipped,
    Symptom.MISSED: of_moments.missed,
    Symptom.AVERAGES: of_moments.averages,
    Symptom.HELD: of_moments.held,
}
