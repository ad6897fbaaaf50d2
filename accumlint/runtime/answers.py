"""The answer of a run to one check: a defect with its place and figures, or a correct measurement."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TypeAlias

from accumlint.common.frozen import frozen
from accumlint.common.observed import Observed
from accumlint.runtime.records import Event, Spot, spot

# Places with a description of the event there.
Annotations: TypeAlias = "tuple[tuple[Spot, str], ...]"


@frozen
class Answer:
    """One observation. `figures` describes a correct measurement; the further fields describe a defect.

    `factor` is the factor by which a quantity is too large. `severity` "" means the rule's own. `spots` are places of
    the observed loop.
    """

    observed: Observed
    wrong: bool
    figures: str
    spots: tuple[Spot, ...] = ()
    message: str = ""
    applied: str = ""
    expected: str = ""
    window: Annotations = ()
    related: Annotations = ()
    confidence: str = "certain"
    severity: str = ""
    factor: float = 1.0

    @property
    def place(self) -> Spot:
        """The place of the defect."""
        return self.spots[0]


def right(observed: Observed, figures: str, *events: Event) -> Answer:
    """A correct measurement."""
    return Answer(observed, False, figures, tuple(spot(event) for event in events))


def is_near(value: float, wanted: float) -> bool:
    """Equal within two per cent."""
    return wanted != 0 and abs(value / wanted - 1) < 0.02


# Larger denominators, as in 235/59, are written as decimals.
_PLAIN = 16


def number(value: float) -> str:
    """A number as a fraction or decimal: 1/4, 3, 0.137, 3.98."""
    close = Fraction(value).limit_denominator(64)
    plain = close.numerator == 1 or close.denominator <= _PLAIN
    if close and plain and abs(float(close) / value - 1) < 1e-4:
        return str(close)
    return f"{value:.3g}"


def times(value: float) -> str:
    """A factor in words: "4 times too large", "1/4 of what it should be"."""
    return (
        f"{number(value)} times too large" if value > 1 else f"{number(value)} of what it should be"
    )


def distinct(answers: Iterator[Answer]) -> list[Answer]:
    """The answers, with each defect once for each observation and place."""
    seen: dict[tuple[Observed, bool, object], Answer] = {}
    for answer in answers:
        seen.setdefault(
            (answer.observed, answer.wrong, answer.place if answer.wrong else 0), answer
        )
    return list(seen.values())
