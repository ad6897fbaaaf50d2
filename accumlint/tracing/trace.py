"""What happened to the gradients: the runs of a training loop on one path, and the windows seen in them.

Rules read this module and nothing below it. A `Trace` is one path through a training loop (one choice for every
unknown flag), run a few times with different accumulation steps and loader lengths. Each `Run` is the list of its
events in order; a `Window` is the part of a run that ends with one optimizer step.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
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
from accumlint.tracing.windows import Window, grouped, mean, summed, weighted

__all__ = [
    "ELEMENTS", "FIXED", "MARKED", "OF_A_MODEL", "OVER_RANKS", "PICKED", "Accumulate", "Add", "Average", "Backward",
    "Clear", "Clip", "Contribution", "Divisor", "EngineCall", "Entry", "EpochEnd", "Event", "Forward", "NoSync",
    "Norm", "Put", "Read", "Reduce", "Report", "Rescale", "Reset", "Run", "Schedule", "Share", "Skip", "SkippedStep",
    "Step", "SyncFlag", "Tail", "Trace", "TrainingObject", "Unread", "Unscale", "Update", "Window", "mean",
    "weighted",
]  # fmt: skip

E = TypeVar("E", bound=Event)
_index = attrgetter("index")


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
        return grouped((type(e), e) for e in self.events)

    @cached_property
    def optimizers(self) -> tuple[TrainingObject, ...]:
        return tuple(dict.fromkeys(e.optimizer for e in self.of(Step)))

    @cached_property
    def applying(self) -> Mapping[Contribution, tuple[Step, ...]]:
        """The steps that apply each contribution, in their order."""
        return grouped((c, step) for step in self.of(Step) for c in step.applied)

    @cached_property
    def moving(self) -> Mapping[str, frozenset[TrainingObject]]:
        """The optimizers whose steps apply gradients of each network."""
        moves = ((c.network, s.optimizer) for c, steps in self.applying.items() for s in steps)
        return {network: frozenset(optimizers) for network, optimizers in grouped(moves).items()}

    @cached_property
    def through(self) -> Mapping[Forward, tuple[Backward, ...]]:
        """The backwards that go through the graph of each forward, in their order."""
        return grouped((f, b) for b in self.of(Backward) for f in dict.fromkeys(b.forwards))

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
        return grouped((window.step.optimizer, window) for window in self.windows)

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

    def steady_of_each(self) -> Iterator[Window]:
        """A steady window of each optimizer that has one."""
        return filter(None, map(self.steady, self.optimizers))

    def accumulating_windows(self) -> Iterator[Window]:
        """Those for which several micro-batches go backward."""
        return (window for window in self.steady_of_each() if window.backward_count() > 1)

    def idle_clips(self, window: Window) -> Iterator[Clip]:
        """The clips of a window that find no gradient, where none follows the window's last backward.

        Only clips of what the window applies count; one between the steps of two optimizers belongs to the second.
        """
        networks = {c.network for c in window.contributions}
        backwards = [
            b for b in window.backwards if any(c.network in networks for c in b.contributions)
        ]
        clips = [c for c in window.of(Clip) if not c.networks or c.networks & networks]
        if not backwards or any(clip.index > backwards[-1].index for clip in clips):
            return
        for clip in clips:
            following = (e for e in self.events[clip.index + 1 :] if isinstance(e, Step | Backward))
            if not clip.pending and isinstance(next(following, None), Backward):
                yield clip

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

    def typical_windows(self) -> Iterator[Window]:
        """One window of each optimizer that holds no gradient of an earlier one: a steady one, where there is one."""
        run = self.main
        for optimizer in run.optimizers:
            windows = run.windows_of(optimizer)
            window = run.steady(optimizer) or next((w for w in windows if w.contributions), None)
            if window is not None and window.contributions and not _carries(window):
                yield window

    def steady_windows(self, *, rescaled: bool = False) -> Iterator[Window]:
        """The steady windows of several micro-batches whose size of update the loss alone decides.

        With `rescaled`, those whose gradients the loop itself divides by the window's length instead.

        A window that holds gradients of an earlier step, that is rescaled by hand or goes past its framework's backward
        has another cause, which has a rule of its own or is none. So has a loss whose forward was not seen.
        """
        for window in self.main.steady_of_each():
            length = len(window.microbatches)
            if length < 2 or window.bypasses or window.is_entangled:
                continue
            factors = [rescale.factor for rescale in window.of(Rescale) if not rescale.reduced]
            fits = factors == [Fraction(1, length)] if rescaled else not factors
            if window.of(Forward) and not _carries(window) and fits:
                yield window

    def divisions(self, window: Window) -> int | None:
        """How many times the window's length divides its loss: 0, 1 or 2; None for anything else.

        Where the accumulation steps can be chosen, windows of 4 and of 2 are compared and constant factors cancel;
        a window that the code writes as a number is judged by its total.
        """
        main, length = self.main, len(window.microbatches)
        if not main.asked:
            if all(c.symbols for c in window.contributions) or main.literal not in (None, length):
                return None
            known = {Fraction(length): 0, Fraction(1): 1, Fraction(1, length): 2}
            return None if window.total is None else known.get(window.total)
        growth = self.growth.get(window.step.optimizer)
        if length and main.guessed and window.factors == (Fraction(1, length),) * length:
            # Divided by the length of the loop around it, whatever that is.
            return 1
        unknown = [c.unknown_factors for c in window.contributions]
        if growth == 2 and length > main.steps and length % main.steps == 0:
            # Several pieces of each micro-batch go backward by themselves: their sum grows all the same.
            return None if any(unknown) else 0
        if growth is None or length != main.steps:
            return None
        if growth == 2 and frozenset[str].intersection(*unknown):
            # A factor of all losses that nobody knows may be what divides; a factor of one of them is its weight.
            return None
        return {Fraction(2): 0, Fraction(1): 1, Fraction(1, 2): 2}.get(growth)

    def foreign_divisor(self, window: Window) -> int | None:
        """The whole number that divides every micro-batch and is not the window's length, None without one.

        A half, and one over the number of losses (times the window's length), are weights of a loss more often than
        divisors of a window.
        """
        factors, main = window.factors, self.main
        length = len(window.microbatches)
        if factors is None or len(set(factors)) != 1 or not factors[0]:
            return None
        # A framework divides by the length it was given: one of another length is one that an epoch's end cut short.
        if any(backward.divided not in (1, length) for backward in window.backwards):
            return None
        divisor = 1 / factors[0]
        origins = len({c.origin for c in window.contributions})
        if divisor.denominator != 1 or divisor in (1, 2, length, origins, origins * length):
            return None
        # Half of what is divided rightly is a weight as well, as far as runs with windows of other lengths tell.
        varied = len(self.runs) > 1 or main.asked
        if varied and all(_halves(run, window.step.optimizer) for run in self.runs[:2]):
            return None
        # A window of another length than was asked for is a defect of its boundary, not of the divisor.
        if length not in (main.literal, main.steps if main.asked else length):
            return None
        return None if self.divisions(window) in (1, 2) else int(divisor)


def _carries(window: Window) -> bool:
    """True for a window that applies gradients of before the optimizer's previous step."""
    return any(c.backward.index < window.between[0].index for c in window.contributions)


def _halves(run: Run, optimizer: TrainingObject) -> bool:
    """True when each micro-batch weighs 1/2N, however long the window of N is."""
    twin = next((o for o in run.optimizers if o.text == optimizer.text), None)
    window = run.steady(twin) if twin is not None else None
    length = len(window.microbatches) if window is not None else 0
    return window is not None and window.factors == (Fraction(1, 2 * length),) * length


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
    totals = ((key, summed(parts)) for key, parts in grouped(weights).items())
    return {key: total for key, total in totals if total is not None}


def _may_divide(symbol: str) -> bool:
    # The sum of a loss's weights is the same in every micro-batch.
    divides = symbol.startswith("/") and "weight" not in symbol
    return symbol != FIXED and (divides or any(part in symbol for part in ("scal", "norm", "frac")))
