"""The answer of a symptom's question, and helpers that questions share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from accumlint.common.frozen import frozen
from accumlint.confirming.evidence import Evidence, Undecided
from accumlint.confirming.result import Pass, Update


@frozen
class Answer:
    """The answer of a question: whether the symptom shows, the decisive figure, a sentence and further figures."""

    shows: bool
    value: float
    sentence: str
    figures: dict[str, float | int | str]


Question = Callable[..., Answer]


def updates_of(found: Pass) -> list[Update]:
    """The updates of a pass that apply a gradient, or should.

    Raises:
        Undecided: where there is none.
    """
    updates = worth(found)
    if not updates:
        raise Undecided("no step of this run applied a gradient")
    return updates


def worth(found: Pass) -> list[Update]:
    """The updates of a pass that apply a gradient, or should."""
    return [u for u in found.updates if u.reference >= 1e-9 or u.applied >= 1e-9]


def compared(updates: list[Update]) -> list[Update]:
    """The updates, all of which have a reference.

    Raises:
        Undecided: where one has none.
    """
    lost = next((u for u in updates if math.isnan(u.error)), None)
    if lost is not None:
        raise Undecided(
            f"update {lost.number} applies a gradient although no loss went backward for it that was seen"
        )
    return updates


def is_empty(u: Update) -> bool:
    """True for an update that applies nothing although it has a reference."""
    return u.reference >= 1e-9 and u.applied < 1e-12


def furthest(updates: Sequence[Update]) -> Update:
    """The update with the largest error."""
    return max(updates, key=lambda u: u.error if math.isfinite(u.error) else math.inf)


def decide(value: float, evidence: Evidence, what: str) -> bool:
    """Whether a difference is real.

    Raises:
        Undecided: where it may be rounding.
    """
    if math.isnan(value) or evidence.low < value < evidence.high:
        raise Undecided(f"{what} is {value:.2g}, between rounding and a real difference")
    return value >= evidence.high


def listed(numbers: Sequence[int]) -> str:
    """Numbers separated by slashes: "4/12/9"."""
    return "/".join(str(n) for n in numbers)
