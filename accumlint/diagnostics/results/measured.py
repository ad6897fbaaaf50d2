"""What a run measured of the updates of an optimizer: plain values for the output formats."""

from __future__ import annotations

from accumlint.common.frozen import frozen


@frozen
class Weight:
    """The weight of one target of a micro-batch in an update: on average, and from `least` to `most`."""

    rank: int
    microbatch: int
    targets: float
    weight: float
    least: float
    most: float


@frozen
class Update:
    """One step: its line, its micro-batches, and norms over the recorded elements of the gradient, None where unknown.

    `applied` is the norm of what the step applies, `unclipped` that before clipping, `wanted` that of the large batch.
    `spread` is the largest relative difference between the gradients of two ranks.
    """

    row: int
    microbatches: int
    applied: float | None
    unclipped: float | None
    wanted: float | None
    spread: float | None
    weights: tuple[Weight, ...]


@frozen
class Measured:
    """The updates of an optimizer, which steps in `file`; `elements` numbers of its gradient were recorded."""

    optimizer: str
    file: str
    ranks: int
    elements: int
    updates: tuple[Update, ...]
