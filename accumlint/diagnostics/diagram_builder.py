"""Makes a timeline of a trace: what a reader should see of a loop, in plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import groupby

from accumlint.diagnostics import narrate
from accumlint.diagnostics.results.diagram import Bracket, Call, Group, Share, Step, Timeline
from accumlint.diagnostics.results.report import Mark
from accumlint.reading.ir import Node
from accumlint.tracing import trace as t

Place = Callable[[Node, str], Mark]
# A run without epochs is shown for this many windows, one without windows for this many micro-batches.
_WINDOWS, _LONGEST = 3, 12
# Where several optimizers take turns, two windows of each say as much.
_WINDOWS_OF_SEVERAL = 2
_LONG_SYMBOL = 2


def timeline(
    run: t.Run, place: Place, codes: Mapping[Node, tuple[str, ...]] | None = None
) -> Timeline:
    """The beginning of a run, as far as it has something to tell: an epoch and what becomes of what it leaves.

    `place` finds a node's place in the source, `codes` are the rules that found something at a node.
    """
    found = codes or {}
    events = _visible_events(run, found)
    symbols = _Symbols()
    microbatches = sorted({e.microbatch for e in events if e.microbatch > 0})
    alone = len(run.optimizers) < 2
    ends = {e.microbatch for e in events if isinstance(e, t.EpochEnd)}
    told = _fates(run, microbatches)
    size = _size(run) if alone else 0
    return Timeline(
        tuple(_group(n, told.get(n, ""), n in ends) for n in microbatches),
        tuple(_calls(run, events, place, found)),
        tuple(_brackets(run, microbatches)),
        tuple(_steps(run, set(microbatches), place, symbols)),
        size=size,
        raised=run.stopped if run.stopped.startswith("raises") else "",
        symbols=tuple(symbols.legend()),
    )


def _size(run: t.Run) -> int:
    """The micro-batches of a steady window of the only optimizer; 0 where there is none."""
    steady = run.steady(run.optimizers[0]) if run.optimizers else None
    return len(steady.backwarded) if steady else 0


def _visible_events(run: t.Run, codes: Mapping[Node, tuple[str, ...]]) -> list[t.Event]:
    """The events to be shown: all up to a place that leaves nothing open."""
    last = _last(run, codes)
    events = [e for e in run.events if e.index <= last]
    # What belongs to the last step still follows it.
    for event in run.events:
        if event.index <= last:
            continue
        if not isinstance(event, _FOLLOWING) or event.microbatch != events[-1].microbatch:
            break
        events.append(event)
    return events


def _last(run: t.Run, codes: Mapping[Node, tuple[str, ...]]) -> int:
    """The index of the event with which a reader has seen enough."""
    if not run.events:
        return 0
    end = next((e for e in run.of(t.EpochEnd) if e.length > 0), None)
    most = _WINDOWS if len(run.optimizers) < 2 else _WINDOWS_OF_SEVERAL
    steps = [
        window.step.index
        for optimizer in run.optimizers
        for window in run.windows_of(optimizer)[most - 1 : most]
    ]
    last = max(steps, default=run.events[-1].index)
    if end is not None:
        tail = next((tail for tail in run.tails if tail.end is end), None)
        last = max(end.index, tail.by.index if tail and tail.by else 0)
    elif not run.windows or max(len(w.backwarded) for w in run.windows) < 2:
        early = [e.index for e in run.events if e.microbatch <= _LONGEST]
        last = min(last, max(early, default=last))
    # What was found must be seen.
    seen = {e.node for e in run.events if e.index <= last}
    for node in codes:
        first = next((e.index for e in run.events if e.node is node), 0)
        last = max(last, 0 if node in seen else first)
    return last


_FOLLOWING = (t.Update, t.Clear, t.Schedule, t.Average, t.NoSync, t.Norm, t.Add, t.Reset, t.Read, t.Report)  # fmt: skip


# What is called


def _calls(
    run: t.Run, events: Iterable[t.Event], place: Place, codes: Mapping[Node, tuple[str, ...]]
) -> Iterator[Call]:
    several = len(run.optimizers) > 1
    held: dict[tuple[int, str], None] = {}
    taken: set[tuple[int, str]] = set()
    before: tuple[object, int] | None = None
    for event in events:
        lost: tuple[int, ...] = ()
        if isinstance(event, t.Backward):
            held |= dict.fromkeys((c.microbatch, c.network) for c in event.contributions)
        elif isinstance(event, t.Step):
            taken |= {(c.microbatch, c.network) for c in event.applied}
        elif isinstance(event, t.Clear):
            gone = {(c.microbatch, c.network) for c in (*event.wiped, *event.applied)}
            held = {key: None for key in held if key not in gone}
            if not several:
                lost = tuple(sorted({c.microbatch for c in event.wiped} - {m for m, _ in taken}))
        kind = _kind(event)
        here = (event.node, event.microbatch)
        if not kind or event.microbatch < 1 or here == before:
            continue
        before = here
        mark = place(event.node, "")
        told = narrate.describe(event)
        call = Call(
            kind,
            _lane(kind, event) if several else kind,
            event.microbatch,
            mark.row,
            0 if mark.elsewhere else mark.place.line,
            told,
            len({m for m, _ in held}),
            lost,
            codes.get(event.node, ()),
            wrong=isinstance(event, t.Clip) and event.scaled,
        )
        yield call
        if isinstance(event, t.Backward):
            yield from _sync(event, call)


def _kind(event: t.Event) -> str:
    kinds: dict[type[t.Event], str] = {
        t.Forward: "forward",
        t.Backward: "backward",
        t.Unscale: "unscale",
        t.Norm: "norm",
        t.Clip: "clip",
        t.Step: "step",
        t.Update: "update",
        t.Clear: "clear",
        t.Schedule: "schedule",
        t.Average: "average",
        t.Skip: "skip",
    }
    if isinstance(event, t.Rescale):
        return "reduce" if event.reduced else "rescale"
    if isinstance(event, t.Reduce):
        return "reduce" if event.what in ("loss", "gradients") else ""
    return kinds.get(type(event), "")


def _lane(kind: str, event: t.Event) -> str:
    """The lane of an event where several networks train: with the name of what is stepped, cleared or run."""
    match event:
        case t.Step(optimizer=optimizer):
            return f"{kind} {_short(optimizer.text)}"
        case t.Clear(subject=text) | t.Schedule(subject=text) if text:
            return f"{kind} {_short(text)}"
        case _:
            return kind


def _short(text: str) -> str:
    return text.removeprefix("self.")


def _sync(event: t.Backward, call: Call) -> Iterator[Call]:
    """Whether the ranks reduce what a backward leaves in `.grad`; nothing where there is one rank."""
    synced = {c.synced for c in event.contributions} - {None}
    if len(synced) == 1:
        (on,) = synced
        told = "the ranks reduce the gradients" if on else "no reduction: the gradients stay local"
        yield Call(
            "sync", "sync", call.microbatch, call.where, call.line, told, call.pending, off=not on
        )


# What becomes of the micro-batches


_CAPTIONS = {"applied": "", "applied again": "again", "not applied yet": "", "": ""}
_KINDS = {"applied": "applied", "applied again": "again", "not applied yet": "open", "": ""}
_CLEARED, _LEFT = "cleared before any step", "never applied"


def _group(number: int, fate: str, ends: bool) -> Group:
    caption = _CAPTIONS.get(fate, "lost" if fate == _CLEARED else "left")
    return Group(number, number, fate, _KINDS.get(fate, "lost"), caption, ends)


def _fates(run: t.Run, microbatches: Iterable[int]) -> dict[int, str]:
    """What became of each micro-batch's gradient in the whole run."""
    applied: dict[int, dict[tuple[t.TrainingObject, str], int]] = {}
    for step in run.of(t.Step):
        for key in {(c.microbatch, c.network) for c in step.applied}:
            times = applied.setdefault(key[0], {})
            times[step.optimizer, key[1]] = times.get((step.optimizer, key[1]), 0) + 1
    wiped = {c.microbatch for clear in run.of(t.Clear) for c in clear.wiped}
    left = {c.microbatch for tail in run.tails if tail.fate == "lost" for c in tail.pending}
    added = {c.microbatch for backward in run.of(t.Backward) for c in backward.contributions}

    def fate(number: int) -> str:
        if number in applied:
            return "applied again" if max(applied[number].values()) > 1 else "applied"
        if number in wiped:
            return _CLEARED
        if number in left and run.stopped == "":
            return _LEFT
        return "not applied yet"

    return {number: fate(number) for number in microbatches if number in added}


# What the steps apply


class _Symbols:
    """Short names for the unknown factors of a loop, so that they fit into a column."""

    def __init__(self) -> None:
        self.letters: dict[str, str] = {}
        self.others: dict[str, str] = {}

    def short(self, symbol: str) -> str:
        bare = symbol.removeprefix("* ")
        over = bare.startswith("/ ")
        name = bare.removeprefix("/ ")
        if len(name) > _LONG_SYMBOL:
            letter = self.letters.setdefault(name, "abcdefhijk"[len(self.letters) % 10])
            name = letter
        return f"/{name}" if over else f"·{name}"

    def legend(self) -> Iterator[tuple[str, str]]:
        yield from self.others.items()
        yield from ((letter, name) for name, letter in self.letters.items())


def _microbatches_of_step(run: t.Run, window: t.Window) -> tuple[int, ...]:
    """The micro-batches that a step is for: those that went backward since the last one, and not for another's step."""
    others = {
        c.microbatch
        for step in run.of(t.Step)
        if step.optimizer is not window.step.optimizer
        for c in step.applied
    }
    mine = set(window.microbatches)
    return tuple(n for n in window.backwarded if n in mine or n not in others)


def _brackets(run: t.Run, microbatches: Iterable[int]) -> Iterator[Bracket]:
    """Each step over its micro-batches, and those over which there is none."""
    drawn = list(microbatches)
    last = max(drawn, default=0)
    rows = list(run.optimizers)
    covered: set[int] = set()
    for window in run.windows:
        own = _microbatches_of_step(run, window)
        if not own or own[0] > last:
            continue
        covered.update(own)
        name, number = f"step {window.number + 1}", str(window.number + 1)
        if len(rows) > 1:
            name = f"{name} of {_short(window.step.optimizer.text)}"
        words = tuple(_words(name, number, own, window))
        yield Bracket(own, words, len(words) > 2, rows.index(window.step.optimizer))
    bare = [n for n in drawn if n not in covered]
    for _, group in groupby(enumerate(bare), key=lambda pair: pair[1] - pair[0]):
        yield Bracket(tuple(n for _, n in group), ("no step", "none"), not run.stopped)


def _words(name: str, number: str, own: tuple[int, ...], window: t.Window) -> Iterator[str]:
    applied = sum(n in own for n in window.microbatches)
    again = len(set(window.microbatches) - set(own))
    if applied < len(own):
        part = f"{applied} of {len(own)}"
        yield from (f"{name} applies {part}", f"{name}: {part}", part, number)
    elif again:
        part = f"{again} more"
        yield from (f"{name} applies {applied}, and {part}", f"{name}: {part}", part, number)
    else:
        yield from (name, number)


def _steps(run: t.Run, drawn: set[int], place: Place, symbols: _Symbols) -> Iterator[Step]:
    for window in run.windows:
        own = _microbatches_of_step(run, window)
        shown = [n for n in sorted({*own, *window.microbatches}) if n in drawn]
        if not shown or not set(own) <= drawn:
            continue
        facts = _Facts(run, window, own, symbols)
        yield Step(
            window.number + 1,
            _short(window.step.optimizer.text),
            place(window.step.node, "").row,
            tuple(facts.share(n) for n in shown),
            _sum(facts.share(n) for n in window.microbatches),
            facts.reference(),
            facts.comparable and not facts.spoilt,
        )


class _Facts:
    """What one step applies, compared with the mean over its own micro-batches where both are known."""

    def __init__(
        self, run: t.Run, window: t.Window, own: tuple[int, ...], symbols: _Symbols
    ) -> None:
        self.window, self.own, self.symbols = window, own, symbols
        held = window.contributions
        self.reductions = {c.reduction for c in held}
        self.varies = any(c.varies for c in held)
        self.rescaled = any(not r.reduced for r in window.of(t.Rescale))
        factors = {c.symbols for c in held}
        ranks = any(t.OVER_RANKS in c.symbols for c in held)
        self.comparable = bool(
            held
            and self.reductions <= {"mean", "unknown"}
            and not (self.varies or self.rescaled or ranks)
            and len(factors) == 1
            and not any(s.startswith("/") for s in next(iter(factors), ()))
            and all(c.weight is not None for c in held)
            # A factor that nobody knows may be what divides.
            and not (factors != {()} and all(c.weight == 1 for c in held))
        )
        self.run = run

    @property
    def spoilt(self) -> bool:
        """True when something besides the factors makes the gradient another one."""
        whole = set(self.window.microbatches)
        clipped = any(
            clip.scaled or {c.microbatch for c in clip.pending} != whole
            for clip in self.window.of(t.Clip)
        )
        last = self.window.backwards[-1:]
        apart = any(c.synced is False for backward in last for c in backward.contributions)
        return clipped or apart

    def share(self, number: int) -> Share:
        parts = [c for c in self.window.contributions if c.microbatch == number]
        weight = _weight(parts)
        applied = self._applied(parts, weight)
        target = Fraction(1, len(self.own)) if number in self.own else Fraction(0)
        scaled = any(c.scaled for c in parts)
        value = float(weight) if weight is not None else None
        if not self.comparable:
            return Share(number, applied, self._expected(number), value)
        wrong = scaled or weight != target
        return Share(number, applied, _number(target), value, float(target), wrong)

    def _applied(self, parts: list[t.Contribution], weight: Fraction | None) -> str:
        if not parts:
            return "0"
        factors = "".join(map(self.symbols.short, parts[0].symbols))
        if any(c.scaled for c in parts):
            self.symbols.others["S"] = "the GradScaler's scale"
            factors = f"·S{factors}"
        if self.rescaled:
            self.symbols.others["r"] = "what rescales the gradients by hand"
            factors += "·r"
        text = "?" if weight is None else _number(weight)
        if "window" in self.reductions:
            text = "n/N" if text == "1" else f"{text}·n/N"
        return factors.removeprefix("·") if text == "1" and factors[:1] == "·" else text + factors

    def _expected(self, number: int) -> str:
        if number not in self.own:
            return "0"
        if self.varies or "window" in self.reductions:
            self.symbols.others["n/N"] = "the micro-batch's share of the window's targets"
            return "n/N"
        if "sum" in self.reductions:
            self.symbols.others["1/N"] = "one over the window's targets, counted together"
            return "1/N"
        return f"1/{len(self.own)}" if len(self.own) > 1 else "1"

    def reference(self) -> str:
        """The large batch's gradient as a sum."""
        return _joined((n, self._expected(n)) for n in self.own)


def _sum(shares: Iterable[Share]) -> str:
    return _joined((share.microbatch, share.applied) for share in shares)


def _joined(factors: Iterable[tuple[int, str]]) -> str:
    """A sum over micro-batches as text; the middle of a long one is left out."""
    terms = [f"{text} g{number}" if text != "1" else f"g{number}" for number, text in factors]
    if len(terms) > 10:
        terms = [*terms[:4], "…", *terms[-2:]]
    return " + ".join(terms) or "nothing"


def _weight(parts: list[t.Contribution]) -> Fraction | None:
    """The factor on a micro-batch's loss: the same for all of its losses, else that of the first."""
    by_loss: dict[tuple[str, str], list[Fraction | None]] = {}
    for c in parts:
        by_loss.setdefault((c.origin, c.network), []).append(c.weight)
    if not by_loss:
        return Fraction(0)
    weights = next(iter(by_loss.values()))
    return None if None in weights else sum((w for w in weights if w is not None), Fraction(0))


def _number(weight: Fraction) -> str:
    return (
        str(weight)
        if weight.denominator < 1000 and weight.numerator < 1000
        else f"{float(weight):.2g}"
    )
