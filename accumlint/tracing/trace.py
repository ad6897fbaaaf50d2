"""What happened to the gradients: the events of an abstract run, and the windows seen in them.

Rules read this module and nothing below it. A `Trace` is one path through a training loop (one choice for every
unknown flag), run a few times with different accumulation steps and loader lengths. Each `Run` is the list of its
events in order; a `Window` is the part of a run that ends with one optimizer step.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from fractions import Fraction
from functools import cached_property
from operator import attrgetter
from typing import TypeVar, cast

from accumlint.common.frozen import frozen
from accumlint.reading.hooks import Driven
from accumlint.reading.ir import Function, Node
from accumlint.reading.program import Program

# Why the count behind a mean varies where a model makes its own loss from the labels that it is given.
OF_A_MODEL = "labels of -100 are left out"
MARKED = "labels of -1 are left out"
# A fixed factor against underflow, the same for every window.
FIXED = "* loss_scaling"
# How `varies` begins for what a mask picks.
PICKED = "picked by"


@frozen(eq=False)
class Thing:
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

    model: Thing
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
    scaler: Thing | None = None
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
    scaler: Thing
    optimizer: Thing | None
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

    optimizer: Thing
    applied: tuple[Contribution, ...]
    scaler: Thing | None
    scaled: bool
    owned: bool
    gated: bool = False


@frozen(eq=False)
class Update(Event):
    scaler: Thing


@frozen(eq=False)
class Clear(Event):
    """Gradients set to zero or None. `wiped` had not been applied by any step yet."""

    optimizer: Thing | None
    wiped: tuple[Contribution, ...]
    applied: tuple[Contribution, ...]


@frozen(eq=False)
class Schedule(Event):
    """A learning-rate scheduler moves. `gated`: Accelerate lets it move with the optimizer only.

    `placed`: the call says where the schedule shall be, so that it does not count the calls.
    """

    scheduler: Thing
    gated: bool
    per_epoch: bool
    placed: bool


@frozen(eq=False)
class Average(Event):
    """A running average of the weights takes the current ones in. `certain`: its class or function is a known one."""

    certain: bool


@frozen(eq=False)
class Accumulate(Event):
    """`accelerator.accumulate` entered (`entered`) or left. `steps` are those that Accelerate was given."""

    accelerator: Thing
    steps: int
    entered: bool


@frozen(eq=False)
class EngineCall(Event):
    """A call of DeepSpeed's `engine.step()`, whether it steps or only counts. `steps` as configured, None unknown."""

    engine: Thing
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


@frozen
class Window:
    """The events up to one step of one optimizer, and the gradient that the step applies."""

    step: Step
    number: int
    between: tuple[Event, ...]

    @property
    def contributions(self) -> tuple[Contribution, ...]:
        return self.step.applied

    @cached_property
    def microbatches(self) -> tuple[int, ...]:
        """The micro-batches whose gradients the step applies, in order."""
        return tuple(dict.fromkeys(c.microbatch for c in self.step.applied))

    @cached_property
    def backwards(self) -> tuple[Backward, ...]:
        """The backwards since the optimizer's previous step, in order."""
        return tuple(e for e in self.between if isinstance(e, Backward))

    @cached_property
    def backwarded(self) -> tuple[int, ...]:
        """The micro-batches that went backward since the optimizer's previous step, wiped or not."""
        return tuple(dict.fromkeys(n for b in self.backwards for n in b.microbatches))

    def of(self, kind: type[E]) -> tuple[E, ...]:
        return cast("tuple[E, ...]", self._by_kind.get(kind, ()))

    @cached_property
    def _by_kind(self) -> Mapping[type[Event], tuple[Event, ...]]:
        return _by_kind(self.between)

    def weight(self, microbatch: int) -> Fraction | None:
        """The summed factor of one micro-batch's loss, None when any part of it could not be followed."""
        return _sum(self._weights.get(microbatch, []))

    @cached_property
    def _weights(self) -> dict[int, list[Fraction | None]]:
        found: dict[int, list[Fraction | None]] = {}
        for c in self.step.applied:
            found.setdefault(c.microbatch, []).append(c.weight)
        return found

    @cached_property
    def total(self) -> Fraction | None:
        """The summed factor of all micro-batches: 1 for the large batch's mean, per origin of the loss.

        None where losses differ in it, or where they take turns: each makes a part of the window.
        """
        found = set(self.totals.values())
        return found.pop() if len(found) == 1 else None

    @cached_property
    def totals(self) -> dict[tuple[str, str], Fraction | None]:
        """The summed factor of each loss, by its origin and network; nothing where losses take turns."""
        by_origin: dict[tuple[str, str], dict[int, list[Fraction | None]]] = {}
        for c in self.step.applied:
            factors = by_origin.setdefault((c.origin, c.network), {})
            factors.setdefault(c.microbatch, []).append(c.weight)
        whole = {c.microbatch for c in self.step.applied}
        if any(factors.keys() != whole for factors in by_origin.values()):
            return {}
        return {
            loss: _sum([w for ws in factors.values() for w in ws])
            for loss, factors in by_origin.items()
        }


@frozen
class Tail:
    """What was left when a pass over the loader ended, and its fate.

    `fate`: "stepped" (alone, as a partial window), "cleared", "again" (applied with what was applied before and never
    cleared), "leaked" (applied in a window of another size than the
    steady one), "crossed" (applied in a window of the right size: counting goes on across epochs), "lost" (the run
    ended), "unknown".
    """

    end: EpochEnd
    pending: tuple[Contribution, ...]
    fate: str
    by: Event | None


E = TypeVar("E", bound=Event)
_index = attrgetter("index")


def _by_kind(events: Iterable[Event]) -> Mapping[type[Event], tuple[Event, ...]]:
    """Events by their kind: rules ask for each of them, of every window."""
    found: dict[type[Event], list[Event]] = {}
    for event in events:
        found.setdefault(type(event), []).append(event)
    return {kind: tuple(of_kind) for kind, of_kind in found.items()}


@frozen
class Run:
    """One execution: `steps` is the accumulation steps tried, `length` the loader's; `literal` the window that the
    code writes as a number (None when the accumulation steps are free).

    `asked` tells whether the accumulation steps were asked for at all, `guessed` that they only stand for the unknown
    length of an inner loop; `stopped` is why the run ended early ("" if not), `raised` what raised the exception that
    ended it. `barred` are the guards of a step that were worked out, and false, every time.
    `written`: the accumulation steps that the file has in the place of `steps`, None where it has none or several.
    """

    steps: int
    length: int
    asked: bool
    events: tuple[Event, ...]
    unread: tuple[Unread, ...]
    stopped: str
    literal: int | None = None
    guessed: bool = False
    barred: tuple[Node, ...] = ()
    raised: Node | None = None
    written: int | None = None

    def in_file(self, length: int) -> int:
        """A number of micro-batches near a full window's, as it is with the accumulation steps that the file has."""
        return length if self.written is None else length + self.written - self.steps

    def of(self, kind: type[E]) -> tuple[E, ...]:
        """The events of a kind, in their order."""
        return cast("tuple[E, ...]", self._by_kind.get(kind, ()))

    def between(self, kind: type[E], after: int, before: int) -> tuple[E, ...]:
        """The events of a kind after one index and before another, both left out."""
        events = self.of(kind)
        first, end = (bisect_left(events, i, key=_index) for i in (after + 1, before))
        return events[first:end]

    def next(self, kind: type[E], after: int) -> E | None:
        """The first event of a kind after an index."""
        events = self.of(kind)
        place = bisect_right(events, after, key=_index)
        return events[place] if place < len(events) else None

    @cached_property
    def _by_kind(self) -> Mapping[type[Event], tuple[Event, ...]]:
        return _by_kind(self.events)

    @cached_property
    def optimizers(self) -> tuple[Thing, ...]:
        return tuple(dict.fromkeys(e.optimizer for e in self.of(Step)))

    @cached_property
    def applying(self) -> Mapping[Contribution, tuple[Step, ...]]:
        """The steps that apply each contribution, in their order."""
        found: dict[Contribution, list[Step]] = {}
        for step in self.of(Step):
            for contribution in step.applied:
                found.setdefault(contribution, []).append(step)
        return {contribution: tuple(steps) for contribution, steps in found.items()}

    @cached_property
    def moving(self) -> Mapping[str, frozenset[Thing]]:
        """The optimizers whose steps apply gradients of each network."""
        found: dict[str, set[Thing]] = {}
        for contribution, steps in self.applying.items():
            found.setdefault(contribution.network, set()).update(s.optimizer for s in steps)
        return {network: frozenset(optimizers) for network, optimizers in found.items()}

    @cached_property
    def through(self) -> Mapping[Forward, tuple[Backward, ...]]:
        """The backwards that go through the graph of each forward, in their order."""
        found: dict[Forward, list[Backward]] = {}
        for backward in self.of(Backward):
            for forward in dict.fromkeys(backward.forwards):
                found.setdefault(forward, []).append(backward)
        return {forward: tuple(backwards) for forward, backwards in found.items()}

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """Every step with what led to it, per optimizer, in the order of the steps."""
        found: list[Window] = []
        since: dict[Thing, int] = {}
        number: dict[Thing, int] = {}
        for step in self.of(Step):
            start = since.get(step.optimizer, 0)
            between = self.events[self._first(start) : self._first(step.index + 1)]
            found.append(Window(step, number.get(step.optimizer, 0), between))
            since[step.optimizer] = step.index + 1
            number[step.optimizer] = number.get(step.optimizer, 0) + 1
        return tuple(found)

    def _first(self, index: int) -> int:
        """Where the events from an index on begin: some are not kept, so that their places may be smaller."""
        return bisect_left(self.events, index, key=_index)

    def windows_of(self, optimizer: Thing) -> tuple[Window, ...]:
        return self._windows_of.get(optimizer, ())

    @cached_property
    def _windows_of(self) -> Mapping[Thing, tuple[Window, ...]]:
        found: dict[Thing, list[Window]] = {}
        for window in self.windows:
            found.setdefault(window.step.optimizer, []).append(window)
        return {optimizer: tuple(windows) for optimizer, windows in found.items()}

    def steady(self, optimizer: Thing) -> Window | None:
        """A window of the size that comes back: never a partial one, and the first only where no other is whole."""
        return self._steady.get(optimizer)

    @cached_property
    def _steady(self) -> Mapping[Thing, Window | None]:
        return {optimizer: self._steady_of(optimizer) for optimizer in self.optimizers}

    def _steady_of(self, optimizer: Thing) -> Window | None:
        windows = self.windows_of(optimizer)
        ends = [e.index for e in self.of(EpochEnd)]
        # What is stepped right before or after an epoch's end is perhaps a partial window.
        inner = [
            w
            for w in windows[1:]
            if bisect_left(ends, w.between[0].index) == bisect_right(ends, w.step.index + 3)
        ]
        candidates = inner or list(windows[1:])
        whole = self.literal or (self.steps if self.asked else None)
        clean = [w for w in candidates if len(w.backwarded) == whole == len(w.microbatches)]
        for window in clean or [w for w in candidates if len(w.backwarded) == whole] or windows:
            if len(window.backwarded) == whole:
                return window
        sizes = [len(w.backwarded) for w in candidates]
        common = max(sizes, key=Counter(sizes).__getitem__, default=0)
        return next((w for w in candidates if len(w.backwarded) == common > 0), None)

    @cached_property
    def tails(self) -> tuple[Tail, ...]:
        """What each epoch left behind, and what became of it."""
        return tuple(self._tails())

    def _tails(self) -> Iterator[Tail]:
        for end in self.of(EpochEnd):
            if not end.pending:
                continue
            left = frozenset((c.microbatch, c.network) for c in end.pending)
            fate, by = "lost", None
            for event in self.events[end.index + 1 :]:
                if not isinstance(event, Clear | Step):
                    continue
                gone = event.wiped if isinstance(event, Clear) else event.applied
                if any((c.microbatch, c.network) in left for c in gone):
                    fate = "cleared" if isinstance(event, Clear) else self._applied(event, left)
                    by = event
                    break
            yield Tail(end, end.pending, fate, by)

    def _applied(self, step: Step, left: frozenset[tuple[int, str]]) -> str:
        if all((c.microbatch, c.network) in left for c in step.applied):
            return "stepped"
        if any(self.applying[c][0].index < step.index for c in step.applied):
            return "again"
        steady = self.steady(step.optimizer)
        window = next(w for w in self.windows if w.step is step)
        if steady is None or len(steady.microbatches) == len(window.microbatches):
            return "crossed"
        # A network's last loss may come after its step: then every window but the first has it.
        ends = [e.index for e in self.of(EpochEnd)]
        inner = [
            len(w.microbatches)
            for w in self.windows_of(step.optimizer)
            if not any(w.between[0].index <= end <= w.step.index for end in ends)
        ]
        return "crossed" if inner.count(len(window.microbatches)) > 1 else "leaked"

    def hides(self, *roles: str) -> bool:
        """True when a call of the loop that could not be followed received one of `roles` ("loss", "model" …)."""
        return bool(self.stopped) or any(u.inside and u.received & set(roles) for u in self.unread)


@frozen
class Entry:
    """Where a run starts: the module itself (None), or a function with its parameters unknown.

    `owner` is the class whose instance runs a method, which may be another than the one that defines it.
    `maker` is the function whose call makes it, for a nested one. `calls` tells how its framework calls it: "once",
    "twice" (an epoch each) or "microbatch" (again and again, with one micro-batch each). `driven` is the contract of
    the trainer that calls it and goes backward, steps and clears around it, where one does.
    """

    function: Function | None
    maker: Function | None = None
    calls: str = "once"
    owner: str = ""
    driven: Driven | None = None


@frozen
class Trace:
    """One path through one training loop, run a few times.

    `runs[0]` has 4 accumulation steps and a loader of 10 (two windows and a half); `runs[1]`, where the accumulation
    steps were asked for, has 2 and 5; the others have other lengths. `assumptions` are the flags decided on this path
    ("args.amp is true"). `exceptional`: on this path a guard on the data fires once (a NaN in a middle micro-batch);
    only rules about such guards may look at it. `entry` is where it starts. `remote`: it leads through a guard
    that ordinary windows do not open. `told` is False where its loop stands in another file, whose check tells what is
    wrong. `single`: a run with 1 accumulation step, and the setting that leaves them at it unless somebody chooses
    otherwise.
    """

    program: Program
    runs: tuple[Run, ...]
    assumptions: tuple[tuple[str, str], ...]
    exceptional: bool
    entry: Entry = Entry(None)
    remote: bool = False
    told: bool = True
    single: tuple[str, Run] | None = None

    @property
    def main(self) -> Run:
        return self.runs[0]

    def twin(self, optimizer: Thing) -> Window | None:
        """An optimizer's steady window with other accumulation steps; None where nobody asks for them."""
        if len(self.runs) < 2 or not self.main.asked or self.main.guessed:
            return None
        other = self.runs[1]
        same = (o for o in other.optimizers if (o.text, o.node) == (optimizer.text, optimizer.node))
        return next(map(other.steady, same), None)

    @cached_property
    def growth(self) -> dict[Thing, Fraction | None]:
        """Per optimizer of `main`: how a steady window's total factor grows from 2 accumulation steps to 4.

        1 for a window that is divided rightly, 2 when it is never divided, 1/2 when it is divided twice; None when
        it cannot be told (the steps are not asked for, the loss was not followed).
        """
        return {optimizer: self._growth_of(optimizer) for optimizer in self.main.optimizers}

    def _growth_of(self, optimizer: Thing) -> Fraction | None:
        here, there = self.main.steady(optimizer), self.twin(optimizer)
        if here is None or there is None:
            return None
        # Windows that do not grow with the steps tell nothing about their sum.
        whole = len(here.microbatches) * self.runs[1].steps
        return _growth(here, there) if whole == len(there.microbatches) * self.main.steps else None


def _growth(here: Window, there: Window) -> Fraction | None:
    """How the total factor of each loss that could be followed grows; None where they do not agree."""
    mine, theirs = _totals(here), _totals(there)
    grown = {
        growth
        for key in mine.keys() & theirs.keys()
        if mine[key] and theirs[key]
        # An unknown divisor may well be the window's size under another name, unless that divides already.
        if (growth := mine[key] / theirs[key]) == 1 or not any(map(_may_divide, key[2]))
    }
    return grown.pop() if len(grown) == 1 else None


def _totals(window: Window) -> dict[tuple[str, str, tuple[str, ...]], Fraction]:
    totals: dict[tuple[str, str, tuple[str, ...]], list[Fraction | None]] = {}
    for c in window.contributions:
        # The same loss written in two branches is one loss.
        written = c.origin.partition("@")[0]
        totals.setdefault((written, c.network, c.symbols), []).append(c.weight)
    return {key: total for key, weights in totals.items() if (total := _sum(weights)) is not None}


def _may_divide(symbol: str) -> bool:
    # The sum of a loss's weights is the same in every micro-batch.
    divides = symbol.startswith("/") and "weight" not in symbol
    return symbol != FIXED and (divides or any(part in symbol for part in ("scal", "norm", "frac")))


def _sum(weights: Iterable[Fraction | None]) -> Fraction | None:
    total = Fraction(0)
    for weight in weights:
        if weight is None:
            return None
        total += weight
    return total
