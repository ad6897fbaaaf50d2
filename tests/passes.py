"""What made-up confirmations are made of: updates, passes, moments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from accumlint.confirming.result import (
    Confirmation,
    Moment,
    Pass,
    Raised,
    Regime,
    Total,
    Update,
    Verdict,
)

FAKES = (
    "`model` is a network of two linear layers, in float64",
    "`loader` is a list of 8 batches of 6 to 16 targets",
    "`optimizer` is SGD(lr=0.05)",
)
UPDATE = Update(
    number=1,
    optimizer="optimizer",
    epoch=1,
    microbatches=(1, 2, 3, 4),
    targets=(16, 16, 16, 16),
    weights=(1.0, 1.0, 1.0, 1.0),
    applied=0.1172,
    reference=0.1172,
    error=3.1e-16,
    direction=2.9e-16,
    cosine=1.0,
    scale=1.0,
    factor="",
    spread=0.0,
    reductions=0,
    clips=0,
    schedules=1,
)
SECOND = replace(
    UPDATE, number=2, microbatches=(5, 6, 7, 8), applied=0.1093, reference=0.1093, error=2.7e-16
)
PASS = Pass(
    regime=Regime.EQUAL,
    steps=4,
    ranks=1,
    updates=(UPDATE, SECOND),
    left=(),
    raised=None,
    reached=True,
    moments=(),
    totals=(),
    scales=(),
    pressure=0.0,
)


RAISED = Raised("RuntimeError", "unscale_() has already been called\non this one.", 51)
TOTAL = Total("total", 1, 1, 2.3026, 12)


def moments(timeline: str, lines: dict[str, int]) -> tuple[Moment, ...]:
    """Moments from a timeline: a number begins a micro-batch, a word happens in it."""
    return tuple(_moments(timeline.split(), lines))


def _moments(words: Sequence[str], lines: dict[str, int]) -> Iterator[Moment]:
    microbatch = 0
    for word in words:
        if word.isdigit():
            microbatch = int(word)
        else:
            yield Moment(word, microbatch, lines.get(word, 0))


def finding(code: str, name: str, line: int, reason: str, **changes: object) -> Confirmation:
    """A confirmed finding in `train.py`, with what is particular to it."""
    one = Confirmation(
        file="train.py",
        line=line,
        column=9,
        code=code,
        name=name,
        claim="gradient",
        message="",
        verdict=Verdict.CONFIRMED,
        reason=reason,
        measured={},
        control=None,
        passes=(),
        fakes=FAKES,
        also=(),
    )
    # The tests that call it name fields and give their values.
    return replace(one, **changes)  # pyright: ignore[reportArgumentType]
