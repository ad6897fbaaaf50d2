"""The passes over a loop: their data, and their controls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from accumlint.common.frozen import frozen
from accumlint.rule import Symptom

STEPS = 4
# Two epochs of two windows, and two further updates; a control needs fewer.
UPDATES = 6
FEWER = 4


@frozen
class Spec:
    """One pass: its data, the accumulation steps that free counts become, and its control.

    `pressure`: clip where the user clips, at a threshold that takes effect. `unscaled`: GradScalers are disabled.
    `growing`: the loss scale grows with every update. `inject` is the micro-batch whose gradient is made infinite, only
    very `large`, or `undefined`; `poison` the one whose loss is NaN, in which memory runs out (`exhausts`), or in whose
    place the loader yields None (`withholds`).
    `sabotage` is the control of the recorder that breaks the loop ("double", "forget", "part", "hurry", "void",
    "seldom", "schedule", "sync", "keep", "retain") or corrects it ("mend", "average", "regular", "free", "drop",
    "mute", "even", "flush").
    """

    regime: str
    steps: int = STEPS
    updates: int = UPDATES
    pressure: bool = False
    unscaled: bool = False
    growing: bool = False
    inject: int = 0
    large: bool = False
    undefined: bool = False
    poison: int = 0
    exhausts: bool = False
    withholds: bool = False
    sabotage: str = ""


@frozen
class Overrides:
    """The user's overrides: ranks, accumulation steps, number of updates."""

    ranks: int | None = None
    steps: int = STEPS
    updates: int = UPDATES


def passes(symptom: Symptom, overrides: Overrides) -> Iterator[Spec]:
    """The passes for a symptom, with the user's steps and updates where a pass has the usual ones."""
    for spec in _usual(symptom):
        steps = overrides.steps if spec.steps == STEPS else spec.steps
        updates = overrides.updates if spec.updates == UPDATES else spec.updates
        poison = spec.poison and spec.poison + steps - STEPS
        yield replace(spec, steps=steps, updates=updates, poison=poison)


# Controls that break the loop, for the answer that no defect shows.
_BROKEN = {
    Symptom.WEIGHTS: Spec("ragged", sabotage="double"),
    Symptom.CLIPPED: Spec("equal", pressure=True, sabotage="forget"),
    Symptom.RAISES: Spec("equal", sabotage="keep"),
    Symptom.SPREAD: Spec("equal", sabotage="part"),
    Symptom.REDUCTIONS: Spec("equal", sabotage="sync"),
    Symptom.LEFT: Spec("trailing", sabotage="void"),
    Symptom.PARTIAL: Spec("trailing", sabotage="double"),
    Symptom.SIZES: Spec("equal", sabotage="hurry"),
    Symptom.STEPS: Spec("equal", sabotage="hurry"),
    Symptom.SCHEDULES: Spec("equal", sabotage="schedule"),
    Symptom.AVERAGES: Spec("equal", sabotage="seldom"),
    Symptom.HELD: Spec("equal", sabotage="retain"),
    Symptom.STUCK: Spec("overflow", inject=3, updates=8, sabotage="void"),
}


def _usual(symptom: Symptom) -> Iterator[Spec]:
    """The three regimes, the symptom's own passes, and its controls."""
    # A total may be reset once per epoch.
    yield Spec("equal", updates=20) if symptom is Symptom.GROWING else Spec("equal")
    yield Spec("ragged")
    yield Spec("trailing")
    if symptom in (Symptom.CLIPPED, Symptom.RAISES):
        yield Spec("equal", pressure=True)
    if symptom is Symptom.STUCK:
        yield Spec("overflow", inject=3, updates=8)
        yield Spec("overflow", inject=3, large=True, updates=8)
        yield Spec("overflow", inject=3, undefined=True, updates=8)
    if symptom is Symptom.SKIPPED:
        yield Spec("overflow", poison=STEPS - 1)
        yield Spec("overflow", poison=STEPS)
    if symptom is Symptom.RAISES:
        yield Spec("equal", growing=True)
    # Used where the GradScaler raises.
    yield Spec("equal", unscaled=True)
    if symptom in (Symptom.LEFT, Symptom.PARTIAL):
        yield Spec("trailing", unscaled=True)
    # Corrected loops: no accumulation, no scaling, or the right gradient.
    if symptom is Symptom.CLIPPED:
        yield Spec("equal", steps=1, updates=FEWER, pressure=True)
        yield Spec("equal", updates=FEWER, pressure=True, sabotage="mend")
        yield Spec("equal", unscaled=True, pressure=True)
        yield Spec("equal", updates=FEWER, unscaled=True, pressure=True, sabotage="mend")
    else:
        yield Spec("equal", steps=1, updates=FEWER)
        yield Spec("equal", updates=FEWER, sabotage="mend")
        yield Spec("equal", updates=FEWER, unscaled=True, sabotage="mend")
    if symptom is Symptom.WEIGHTS:
        yield Spec("ragged", sabotage="even")
    if symptom is Symptom.LEFT:
        yield Spec("trailing", sabotage="flush")
    if symptom is Symptom.HELD:
        yield Spec("equal", sabotage="free")
        yield Spec("equal", sabotage="drop")
    if symptom in (Symptom.SIZES, Symptom.STEPS, Symptom.MISSED):
        yield Spec("equal", sabotage="regular")
    if symptom is Symptom.SPREAD:
        yield Spec("equal", sabotage="average")
    if symptom is Symptom.REDUCTIONS:
        yield Spec("equal", sabotage="mute")
    yield _BROKEN.get(symptom, Spec("equal", updates=FEWER, sabotage="double"))
