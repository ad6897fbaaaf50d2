"""What happened to the gradients: the runs of a training loop on one path, and the windows seen in them.

Rules read this module and nothing below it. A `Trace` is one path through a training loop (one choice for every
unknown flag), run a few times with different accumulation steps and loader lengths. Each `Run` is the list of its
events in order; a `Window` is the part of a run that ends with one optimizer step.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from fractions import Fraction
from functools import cached_property
from operator import attrgetter
from typing import TypeVar, cast

from accumlint.common.frozen import frozen
from accumlint.reading.hooks import Driven
from accumlint.reading.ir import Function, Node
from accumlint.reading.program import Program

# isort: off
from accumlint.tracing.events import (
    ELEMENTS, FIXED, MARKED, OF_A_MODEL, OVER_RANKS, PICKED, Accumulate, Add, Average, Backward, Clear, Clip,
    Contribution, Divisor, EngineCall, EpochEnd, Event, Forward, NoSync, Norm, Put, Read, Reduce, Report, Rescale,
    Reset, Schedule, Share, Skip, SkippedStep, Step, SyncFlag, TrainingObject, Unread, Unscale, Update,
)  # fmt: skip

__all__ = [
    "ELEMENTS", "FIXED", "MARKED", "OF_A_MODEL", "OVER_RANKS", "PICKED", "Accumulate", "Add", "Average", "Backward",
    "Clear", "Clip", "Contribution", "Divisor", "EngineCall", "Entry", "EpochEnd", "Event", "Forward", "NoSync",
    "Norm", "Put", "Read", "Reduce", "Report", "Rescale", "Reset", "Run", "Schedule", "Share", "Skip", "SkippedStep",
    "Step", "SyncFlag", "Tail", "Trace", "TrainingObject", "Unread", "Unscale", "Update", "Window",
]  # fmt: skip

E = TypeVar("E", bound=Event)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_index = attrgetter("index")


def _grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, tuple[V, ...]]:
    """The values of each key, in their order."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return {key: tuple(values) for key, values in found.items()}


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
        return _grouped((type(e), e) for e in self.between)

    def weight(self, microbatch: int) -> Fraction | None:
        """The summed factor of one micro-batch's loss, None when any part of it could not be followed."""
        return _sum(self._weights.get(microbatch, ()))

    @cached_property
    def _weights(self) -> Mapping[int, tuple[Fraction | None, ...]]:
        return _grouped((c.microbatch, c.weight) for c in self.step.applied)

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
        by_origin = _grouped(((c.origin, c.network), c) for c in self.step.applied)
        whole = set(self.microbatches)
        if any({c.microbatch for c in parts} != whole for parts in by_origin.values()):
            return {}
        return {loss: _sum(c.weight for c in parts) for loss, parts in by_origin.items()}


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
        return _grouped((type(e), e) for e in self.events)

    @cached_property
    def optimizers(self) -> tuple[TrainingObject, ...]:
        return tuple(dict.fromkeys(e.optimizer for e in self.of(Step)))

    @cached_property
    def applying(self) -> Mapping[Contribution, tuple[Step, ...]]:
        """The steps that apply each contribution, in their order."""
        return _grouped((c, step) for step in self.of(Step) for c in step.applied)

    @cached_property
    def moving(self) -> Mapping[str, frozenset[TrainingObject]]:
        """The optimizers whose steps apply gradients of each network."""
        moves = ((c.network, s.optimizer) for c, steps in self.applying.items() for s in steps)
        return {network: frozenset(optimizers) for network, optimizers in _grouped(moves).items()}

    @cached_property
    def through(self) -> Mapping[Forward, tuple[Backward, ...]]:
        """The backwards that go through the graph of each forward, in their order."""
        return _grouped((f, b) for b in self.of(Backward) for f in dict.fromkeys(b.forwards))

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """Every step with what led to it, per optimizer, in the order of the steps."""
        found: list[Window] = []
        since: dict[TrainingObject, int] = {}
        number: dict[TrainingObject, int] = {}
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

    def windows_of(self, optimizer: TrainingObject) -> tuple[Window, ...]:
        return self._windows_of.get(optimizer, ())

    @cached_property
    def _windows_of(self) -> Mapping[TrainingObject, tuple[Window, ...]]:
        return _grouped((window.step.optimizer, window) for window in self.windows)

    def steady(self, optimizer: TrainingObject) -> Window | None:
        """A window of the size that comes back: never a partial one, and the first only where no other is whole."""
        return self._steady.get(optimizer)

    @cached_property
    def _steady(self) -> Mapping[TrainingObject, Window | None]:
        return {optimizer: self._steady_of(optimizer) for optimizer in self.optimizers}

    def _steady_of(self, optimizer: TrainingObject) -> Window | None:
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
        ends = (end for end in self.of(EpochEnd) if end.pending)
        return tuple(Tail(end, end.pending, *self._fate(end)) for end in ends)

    def _fate(self, end: EpochEnd) -> tuple[str, Event | None]:
        """What became of the gradients that an epoch left behind, and by which event."""
        left = frozenset((c.microbatch, c.network) for c in end.pending)
        for event in self.events[end.index + 1 :]:
            if isinstance(event, Clear | Step):
                gone = event.wiped if isinstance(event, Clear) else event.applied
                if any((c.microbatch, c.network) in left for c in gone):
                    cleared = isinstance(event, Clear)
                    return "cleared" if cleared else self._applied(event, left), event
        return "lost", None

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

    def twin(self, optimizer: TrainingObject) -> Window | None:
        """An optimizer's steady window with other accumulation steps; None where nobody asks for them."""
        if len(self.runs) < 2 or not self.main.asked or self.main.guessed:
            return None
        other = self.runs[1]
        same = (o for o in other.optimizers if (o.text, o.node) == (optimizer.text, optimizer.node))
        return next(map(other.steady, same), None)

    @cached_property
    def growth(self) -> dict[TrainingObject, Fraction | None]:
        """Per optimizer of `main`: how a steady window's total factor grows from 2 accumulation steps to 4.

        1 for a window that is divided rightly, 2 when it is never divided, 1/2 when it is divided twice; None when
        it cannot be told (the steps are not asked for, the loss was not followed).
        """
        return {optimizer: self._growth_of(optimizer) for optimizer in self.main.optimizers}

    def _growth_of(self, optimizer: TrainingObject) -> Fraction | None:
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
    # The same loss written in two branches is one loss.
    weights = (
        ((c.origin.partition("@")[0], c.network, c.symbols), c.weight) for c in window.contributions
    )
    totals = ((key, _sum(parts)) for key, parts in _grouped(weights).items())
    return {key: total for key, total in totals if total is not None}


def _may_divide(symbol: str) -> bool:
    # The sum of a loss's weights is the same in every micro-batch.
    divides = symbol.startswith("/") and "weight" not in symbol
    return symbol != FIXED and (divides or any(part in symbol for part in ("scal", "norm", "frac")))


def _sum(weights: Iterable[Fraction | None]) -> Fraction | None:
    """The sum of some factors, None when any of them is not known."""
    parts = list(weights)
    return None if None in parts else sum(filter(None, parts), Fraction(0))
