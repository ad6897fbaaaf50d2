"""What confirming gives: for every finding a verdict, and the measured windows behind it."""

from __future__ import annotations

from enum import Enum

from accumlint.common.frozen import frozen


class Verdict(str, Enum):
    """What the run says about a finding's claim."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


class Regime(str, Enum):
    """The data that a pass is fed with.

    EQUAL: every micro-batch counts the same number of targets, whole windows only. RAGGED: counts differ between
    micro-batches and ranks. TRAILING: equal counts, and epochs that end inside a window. OVERFLOW: as EQUAL, with a
    gradient in the middle of the run that is not finite. OWN: a script's own data, whatever it is.
    """

    EQUAL = "equal"
    RAGGED = "ragged"
    TRAILING = "trailing"
    OVERFLOW = "overflow"
    OWN = "own"


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
    """An exception that ended a pass, and the user's line that it came from (0 when none)."""

    kind: str
    message: str
    line: int


@frozen
class Moment:
    """Something that happened, for the timeline.

    `kind` is "backward", "reduce", "unscale", "clip", "step", "update", "clear" or "schedule"; `line` is the
    user's line (0 where it is not his).
    """

    kind: str
    microbatch: int
    line: int


@frozen
class Total:
    """A running total at one update: its value, and the graph nodes that it keeps (0 when detached)."""

    name: str
    update: int
    epoch: int
    value: float
    nodes: int


@frozen
class Pass:
    """One run of the loop under one regime.

    `steps` are the accumulation steps asked for, `ranks` the world size. `left` are micro-batches that went backward
    and were never applied. `reached`: the flagged line was executed. `pressure` is the clipping threshold that was put
    in the user's place (0 when nothing clipped). `scales` is the GradScaler's scale after each of its updates.
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
    """The run that shows that the check could have come out the other way.

    `what` says in one sentence what was changed; `detected` is what the check said of it; `value` the figure that
    decided.
    """

    what: str
    detected: bool
    value: float


@frozen
class Confirmation:
    """A finding with its verdict.

    `file` is as shown to the user, `line` and `column` from 1. `reason` is one sentence with the numbers; `measured`
    are the figures that the verdict rests on, by name. `fakes` tells what was put in place of what, `also` what
    else was seen. Of what is undecided, `setup` is a set-up file to fill in and `advice` what else would decide it, ""
    where nothing would. `arm` is "found" for the source as it is, "fixed" for its fixed text.
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
