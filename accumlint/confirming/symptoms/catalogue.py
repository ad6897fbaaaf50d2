"""The question of each symptom.

`key` names the pass; a control asks the same question of another pass.
"""

from __future__ import annotations

from accumlint.confirming.symptoms import gradients, partial_windows, timing
from accumlint.confirming.symptoms.answers import Question
from accumlint.rule import Symptom

QUESTIONS: dict[Symptom, Question] = {
    Symptom.GRADIENT: gradients.gradient,
    Symptom.SCALE: gradients.scale,
    Symptom.WEIGHTS: gradients.weights,
    Symptom.CLIPPED: gradients.clipped,
    Symptom.RAISES: gradients.raises,
    Symptom.SPREAD: gradients.spread,
    Symptom.REDUCTIONS: timing.reductions,
    Symptom.LEFT: timing.left,
    Symptom.PARTIAL: partial_windows.partial,
    Symptom.SIZES: timing.sizes,
    Symptom.STEPS: timing.steps,
    Symptom.SCHEDULES: timing.schedules,
    Symptom.ATTACHED: timing.attached,
    Symptom.GROWING: timing.growing,
    Symptom.STUCK: timing.stuck,
    Symptom.SKIPPED: gradients.skipped,
    Symptom.MISSED: timing.missed,
    Symptom.AVERAGES: timing.averages,
    Symptom.HELD: timing.retained_graphs,
}
