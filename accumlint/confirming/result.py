"""The results of `confirm`: a verdict for every finding, and the measured windows behind it."""

from __future__ import annotations

from enum import Enum

from accumlint.common.frozen import frozen


class Verdict(str, Enum):
    """The result of a run for a finding's claim."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


class Regime(str, Enum):
    """The data of a pass.

    EQUAL: every micro-batch has the same number of targets, whole windows only. RAGGED: target counts differ between
    micro-batches and ranks. TRAILING: equal counts, and epochs that end inside a window. OVERFLOW: as EQUAL, with a
    gradient in the middle of the run that is not finite. SCRIPT: the data of the user's script.
    """

    EQUAL = "equal"
    RAGGED = "ragged"
    TRAILING = "trailing"
    OVERFLOW = "overflow"
    SCRIPT = "own"


@frozen
class Update:
    """One optimizer step: what it applied, and what the large batch would have applied.

    `microbatches` went backward since the optimizer's previous step, numbered from 1 over the whole pass. `targets`
    are the targets counted in each, over all ranks; `weights` what one target of it weighs, as a multiple of its
    weight in the large batch (1.0 when right). `applied` and `reference` are gradient norms, `error` the norm of their
    difference and `direction` the same after the best rescaling, both relative to the reference; `cosine` is between
    the two; `scale` is the best factor from reference to applied, `factor` its name ("K", "1/W" …, "" for none).
    `spread` is the largest difference between ranks, relative to the reference. `reductions` counts all-reduces,
    `clips` clippings and `schedules` scheduler steps since the previous update.
    """

    number: int
    optimizer: str
    epoch: int
    microbatches: tuple[int, ...]
    targets: tuple[int, ...]
    weights: tuple[float, ...]
    applied: float
    reference: float
    error: float
    direction: float
    cosine: float
    scale: float
    factor: str
    spread: float
    reductions: int
    clips: int
    schedules: int


@frozen
class Raised:
    """An exception that ended a pass, and the user's line that raised it (0 for none)."""

    kind: str
    message: str
    line: int


@frozen
class Moment:
    """An event in the timeline.

    `kind` is "backward", "reduce", "unscale", "clip", "step", "update", "clear" or "schedule"; `line` is the
    user's line (0 outside of the user's code).
    """

    kind: str
    microbatch: int
    line: int


@frozen
class Total:
    """A running total at one update: its value, and the graph nodes that it retains (0 when detached)."""

    name: str
    update: int
    epoch: int
    value: float
    nodes: int


@frozen
class Pass:
    """One run of the loop under one regime.

    `steps` are the requested accumulation steps, `ranks` the world size. `left` are micro-batches that went backward
    and were never applied. `reached`: the flagged line was executed. `pressure` is the clipping threshold that replaced
    the user's (0 when nothing clipped). `scales` is the GradScaler's scale after each of its updates.
    The `moments` are those of the first rank.
    """

    regime: Regime
    steps: int
    ranks: int
    updates: tuple[Update, ...]
    left: tuple[int, ...]
    raised: Raised | None
    reached: bool
    moments: tuple[Moment, ...]
    totals: tuple[Total, ...]
    scales: tuple[float, ...]
    pressure: float


@frozen
class Control:
    """A run in which the check gives the other answer: `what` was changed, what it `detected`, the decisive figure."""

    what: str
    detected: bool
    value: float


@frozen
class Confirmation:
    """A finding with its verdict.

    `file` is the displayed name, `line` and `column` count from 1. `reason` is one sentence with the numbers;
    `measured` are the figures that the verdict rests on, by name. `fakes` lists the names with fakes, `also` further
    observations. For an undecided finding, `setup` is a set-up file to complete and `advice` another suggestion, "" for
    none. `arm` is "found" for the source, "fixed" for its fixed text.
    """

    file: str
    line: int
    column: int
    code: str
    name: str
    claim: str
    message: str
    verdict: Verdict
    reason: str
    measured: dict[str, float | int | str]
    control: Control | None
    passes: tuple[Pass, ...]
    fakes: tuple[str, ...]
    also: tuple[str, ...]
    setup: str = ""
    advice: str = ""
    arm: str = "found"
