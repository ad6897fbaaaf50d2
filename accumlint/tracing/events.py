"""The events of an abstract run: every call that matters to a gradient, and what lies in `.grad` there."""

from __future__ import annotations

from dataclasses import field
from fractions import Fraction

from accumlint.common.frozen import frozen
from accumlint.reading.frameworks import CONTRACTS
from accumlint.reading.ir import Call, Const, Node
from accumlint.reading.names import is_weight

# Why the count behind a mean varies where a model makes its own loss from the labels that it is given.
OF_A_MODEL = "labels of -100 are left out"
MARKED = "labels of -1 are left out"
# A fixed factor against underflow, the same for every window.
FIXED = "* loss_scaling"
# How `varies` begins for what a mask picks.
PICKED = "picked by"
_AVERAGING = {
    "ddp": "DDP", "fsdp": "FSDP", "fsdp2": "FSDP", **{row.framework: row.title for row in CONTRACTS.values()},
}  # fmt: skip
# Their `weight_decay` is L2 regularisation, a part of the gradient.
_COUPLED = {"adam", "adamax", "nadam", "radam", "adagrad", "rmsprop", "adam8bit"}
_SCALE_FREE = (
    "ada", "lamb", "lion", "muon", "novograd", "prodigy", "prop", "ranger", "shampoo", "soap", "sophia",
)  # fmt: skip


@frozen(eq=False)
class TrainingObject:
    """An object with a role in training: one optimizer, one model, one scaler …

    `role` is the field's word ("model", "optimizer", "scaler", "scheduler", "accelerator", "engine", "fabric" …),
    `text` the user's first name for it, `kind` the class that built it as written ("AdamW"; "" when it was never seen
    being built), `node` where that happened. `certain` is False when only its name told the role.
    """

    role: str
    text: str
    kind: str
    node: Node
    certain: bool

    @property
    def is_scale_free(self) -> bool:
        """True for Adam and its like, whose update hardly changes when all gradients are multiplied.

        A weight decay that is added to the gradient (Adam's, not AdamW's) changes its share in the update.
        """
        kind = self.kind.rpartition(".")[2].lower()
        decay = self.node.keyword("weight_decay") if isinstance(self.node, Call) else None
        off = decay is None or (isinstance(decay, Const) and not decay.value)
        scales = kind == "adadelta" or (kind in _COUPLED and not off)
        return not scales and any(part in kind for part in _SCALE_FREE)


@frozen
class Divisor:
    """The count that a sum over a micro-batch's elements was divided by.

    `kind`: "elements" (all of a tensor's), "rows" (one of its sides), "some" (those that a mask leaves in), "" when not
    known. `over`: "sum" or "mean" when it was reduced over ranks, "" for this rank's own. `leaves_out`: what tells that
    the sum leaves elements out ("" when nothing does). `shifted`: the labels that it counts include the first of each
    row, which the loss has no prediction for.
    """

    text: str
    kind: str
    over: str
    leaves_out: str
    shifted: bool


@frozen
class Contribution:
    """One micro-batch's gradient as a backward added it to a network's `.grad`.

    `weight` is the factor on the micro-batch's own loss (1/4 for `loss / 4`), None when it could not be followed;
    `symbols` are further unknown factors as written ("* args.alpha", "/ norm"; ". weights" where they weigh the
    elements that a mean is taken of). `reduction` tells how the loss was
    reduced over the micro-batch: "mean", "sum", "window" (divided by a count of the whole window), "unknown".
    `varies` holds the reason why the count behind the mean differs between micro-batches ("" when nothing shows it).
    `scaled` is True while it is multiplied by a GradScaler's scale. `synced` tells whether DDP reduced it (None: no
    DDP here). `origin` is the forward's or loss's name, the same for the same line of code in every micro-batch.
    `forward` is the model call that the gradient came through, where seen; `spans` are the micro-batches of all the
    model calls in its graph. `wrapper` averages it over ranks ("ddp", "fsdp", "fsdp2", "fabric", "accelerate",
    "deepspeed"; "" when none is known). `ranks` is the power of the number of ranks among the factors, `over` how the
    loss itself was reduced over ranks before ("sum" and "mean" change its value alone, "sum with gradient" and "mean
    with gradient" the gradient, too), `divisor` the count that it was divided by.
    `made` is the expression that made the loss.
    """

    microbatch: int
    backward: Backward
    network: str
    weight: Fraction | None
    symbols: tuple[str, ...]
    reduction: str
    varies: str
    scaled: bool
    synced: bool | None
    origin: str
    forward: Forward | None = field(default=None, compare=False, repr=False)
    spans: tuple[int, ...] = field(default=(), compare=False, repr=False)
    wrapper: str = ""
    ranks: int = 0
    over: str = ""
    divisor: Divisor | None = None
    made: Node | None = field(default=None, compare=False, repr=False)

    @property
    def unknown_factors(self) -> frozenset[str]:
        """The factors of a loss that could not be followed; weights, of the elements of a mean too, are none."""
        return frozenset(
            symbol
            for symbol in self.symbols
            if not symbol.startswith(ELEMENTS)
            and not (symbol.startswith("* ") and is_weight(symbol[2:]))
        )

    @property
    def has_other_factors(self) -> bool:
        """True when the loss has factors that nobody knows, besides powers of the world size."""
        factors = [s for s in self.symbols if not s.startswith(ELEMENTS)]
        return self.weight is None or len(factors) != abs(self.ranks)

    @property
    def is_mean_of_picked(self) -> bool:
        """True for `losses[losses != 0].mean()`: its count is that of what a mask picks, whatever else is left out."""
        picked = self.varies.startswith(PICKED)
        return picked and self.divisor is not None and self.divisor.text == "mean()"

    @property
    def averaged_by(self) -> str:
        """Who averages a contribution over ranks, "" where nobody is known to."""
        return _AVERAGING.get(self.wrapper, "")

    @property
    def is_wrapped(self) -> bool:
        """True when there is a wrapper for several ranks, not only a framework that also trains on one."""
        return self.wrapper in ("ddp", "fsdp", "fsdp2")

    @property
    def due_ranks(self) -> int | None:
        """The power of the world size that the loss needs where ranks are averaged; None where that cannot be told.

        A mean over this rank's elements needs none, a sum over the count of all ranks is still to be multiplied by it.
        """
        if self.divisor is None:
            return 0 if self.reduction == "mean" else None
        if self.divisor.over in ("sum", "mean"):
            return int(self.divisor.over == "sum")
        return 0 if self.divisor.kind else None


@frozen(eq=False)
class Event:
    """Something that matters to the gradient, at a place of the source.

    `index` orders the events of a run; `microbatch` is the number (from 1) of the micro-batch being worked on, 0
    before the first; `epoch` counts passes over the loader (from 1); `subject` is the receiver as written.
    """

    node: Node
    index: int
    microbatch: int
    epoch: int
    subject: str


@frozen(eq=False)
class Forward(Event):
    """A call of a model that leads to a loss.

    `armed`: DDP will reduce in the backward of this forward (its sync flag was on); None without DDP.
    `bypassed`: called as `wrapped.module(...)` or through the unwrapped model although a wrapper exists.
    """

    model: TrainingObject
    armed: bool | None
    bypassed: bool
    wrapper: str


@frozen(eq=False)
class Backward(Event):
    """A backward pass. `via` is "tensor", "scaler", "accelerator", "engine", "fabric", "lightning", "apex", "trainer".

    That of a "trainer" has no call in the program: it stands at the `return` of what goes backward.

    `contributions` are what it added (empty where no network is known), `silenced`: it ran inside a `no_sync`
    context; `accumulating`: inside `accelerator.accumulate`; `lost`: the loss could not be followed;
    `divided`: the factor by which the framework divided by itself (1 when it did not, None when not known).
    `forwards` are the model calls whose graph it goes through; `autocast`: it ran inside an autocast context.
    """

    via: str
    loss: str
    contributions: tuple[Contribution, ...] = field(default=(), compare=False)
    silenced: bool = False
    accumulating: bool = False
    retains_graph: bool = False
    lost: bool = False
    divided: int | None = 1
    scaler: TrainingObject | None = None
    forwards: tuple[Forward, ...] = field(default=(), repr=False)
    autocast: bool = False

    @property
    def microbatches(self) -> tuple[int, ...]:
        """The micro-batches that it takes backward: one, unless their losses were summed before."""
        return tuple(dict.fromkeys(c.microbatch for c in self.contributions)) or (self.microbatch,)


@frozen(eq=False)
class SyncFlag(Event):
    """DDP's or FSDP's gradient synchronisation switched by hand (`require_backward_grad_sync = …`).

    `networks` are those that it is switched for.
    """

    on: bool | None
    wrapper: str
    after_forward: bool
    networks: frozenset[str] = frozenset()


@frozen(eq=False)
class NoSync(Event):
    """A `no_sync` context entered (`entered`) or left."""

    entered: bool
    wrapper: str


@frozen(eq=False)
class Unscale(Event):
    scaler: TrainingObject
    optimizer: TrainingObject | None
    pending: tuple[Contribution, ...]


@frozen(eq=False)
class Clip(Event):
    """Gradients clipped. `pending` is what was in `.grad` then; `scaled`: still multiplied by the scaler's scale.

    `via` is "torch", "accelerator", "fabric", "lightning" or "engine"; `networks` are those that are clipped (empty:
    not known).
    """

    pending: tuple[Contribution, ...]
    scaled: bool
    via: str
    networks: frozenset[str] = frozenset()


@frozen(eq=False)
class Norm(Event):
    """The size of the gradients is measured. `held` is what lies in `.grad` then, applied before or not."""

    held: tuple[Contribution, ...]


@frozen(eq=False)
class Rescale(Event):
    """Gradients multiplied or divided by hand (`p.grad /= n`), or reduced over ranks by hand (`reduced`).

    `factor` is the number they are multiplied by (None: not known), `ranks` the power of the number of ranks in it: 1
    for a sum over ranks, 0 for a mean, -1 for a division by their number.
    """

    pending: tuple[Contribution, ...]
    by: str
    reduced: bool = False
    factor: Fraction | None = None
    ranks: int = 0


@frozen(eq=False)
class Step(Event):
    """An optimizer step that really happens (a step that Accelerate skips is not an event).

    `applied` is what was in `.grad`, contributions of earlier windows included when nothing cleared them.
    `scaler` is the GradScaler through which it was taken; `scaled`: the applied gradients were still scaled and no
    scaler took it; `closes`: it is known to end the window of the framework (DeepSpeed, Accelerate).
    `owned`: the optimizer's networks were seen where it was built, or it is the only one, so `applied` leaves out
    nothing of its own and holds nothing of another's.
    """

    optimizer: TrainingObject
    applied: tuple[Contribution, ...]
    scaler: TrainingObject | None
    scaled: bool
    owned: bool
    gated: bool = False


@frozen(eq=False)
class Update(Event):
    scaler: TrainingObject


@frozen(eq=False)
class Clear(Event):
    """Gradients set to zero or None. `wiped` had not been applied by any step yet."""

    optimizer: TrainingObject | None
    wiped: tuple[Contribution, ...]
    applied: tuple[Contribution, ...]


@frozen(eq=False)
class Schedule(Event):
    """A learning-rate scheduler moves. `gated`: Accelerate lets it move with the optimizer only.

    `placed`: the call says where the schedule shall be, so that it does not count the calls.
    """

    scheduler: TrainingObject
    gated: bool
    per_epoch: bool
    placed: bool


@frozen(eq=False)
class Average(Event):
    """A running average of the weights takes the current ones in. `certain`: its class or function is a known one."""

    certain: bool


@frozen(eq=False)
class Accumulate(Event):
    """`accelerator.accumulate` entered (`entered`) or left.

    `steps` are those that Accelerate was given. `waits`: it was given a model whose reduction it leaves out.
    """

    accelerator: TrainingObject
    steps: int
    entered: bool
    waits: bool


@frozen(eq=False)
class EngineCall(Event):
    """A call of DeepSpeed's `engine.step()`, whether it steps or only counts. `steps` as configured, None unknown."""

    engine: TrainingObject
    steps: int | None


@frozen(eq=False)
class Add(Event):
    """Something is added to a running total. `attached`: with the graph; `counts`: it is a count, not a loss.

    `unread`: it is no loss as far as is known, or came of something that nobody read and may have left its graph there.
    """

    total: str
    attached: bool
    counts: bool
    unread: bool = False


@frozen(eq=False)
class Put(Event):
    """A number is put into a tensor that was made before, which takes in its graph when it is `attached`."""

    attached: bool


@frozen(eq=False)
class Reset(Event):
    total: str


@frozen(eq=False)
class Read(Event):
    """A running total is used: as a divisor of the loss or the gradients (`divides`), or reported."""

    total: str
    divides: bool
    added: tuple[int, ...]


@frozen(eq=False)
class Reduce(Event):
    """`all_reduce` over ranks. `what` is "loss" (attached, later backwarded or not), "gradients", "count", "other"."""

    what: str
    averaged: bool


# The symbol of a number that was summed over the ranks.
OVER_RANKS = "* ranks"
ELEMENTS = ". "


@frozen
class Share:
    """One micro-batch's part of a number: `factor` times its loss, times the unknown `symbols` as written."""

    microbatch: int
    factor: Fraction | None
    symbols: tuple[str, ...]


@frozen(eq=False)
class Report(Event):
    """A loss is printed or logged. `shares` are the losses that the number (`subject`) is made of."""

    shares: tuple[Share, ...]


@frozen(eq=False)
class EpochEnd(Event):
    """A pass over the loader ends. `pending` has been neither applied nor cleared; `length` micro-batches passed."""

    pending: tuple[Contribution, ...]
    length: int


@frozen(eq=False)
class Skip(Event):
    """A guard on the data (NaN, inf, out of memory) leaves the window early; the rest of the body does not run."""

    guard: str
    jump: str


@frozen(eq=False)
class SkippedStep(Event):
    """The code learns that the scaler has left out its last step, and takes `guard` to be so."""

    guard: str


@frozen
class Unread:
    """A call that could not be followed and received the loss, a model, an optimizer or a scaler.

    `inside`: it stands in a training loop, where it may do something for every window.
    """

    node: Node
    callee: str
    received: frozenset[str]
    inside: bool
