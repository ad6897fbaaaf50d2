"""Follows an optimizer's `.grad` through a run: which micro-batch of which rank lies there, with which factor.

The ranks are followed side by side, event by event. Each change of the sampled gradients must be explained by the
events: equal, gone, a multiple, a sum or a mean over ranks, plus what a backward let flow in. What no event explains
makes the gradients unknown until they are cleared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from accumlint.common.frozen import frozen
from accumlint.runtime import vectors
from accumlint.runtime.records import Event, Record, Vector

# A micro-batch: the rank that ran it and the number of its backward there.
Microbatch: TypeAlias = "tuple[int, int]"
Held: TypeAlias = "dict[Microbatch, float]"
_PRECISE, _COARSE = 2e-4, 3e-2
_KINDS = (
    "backward", "clear", "clip", "scaler unscale", "scaler step", "step", "scaler stepped", "scaler update", "epoch",
)  # fmt: skip


@frozen
class Moment:
    """What lay in `.grad` when something happened: a step, a clip, a clear, the beginning of an epoch.

    `held` has a dictionary for each rank; `waiting` are the micro-batches of the first rank among them that no step
    has applied. `again` are those that an earlier step has. `ratio` is what clipping made of them. `known` is False
    where changes were not explained. `spread` is how far the ranks' gradients are from each other, `drift` how far
    their weights are. `scaled` are gradients that carry the scaler's factor, `guarded` a step that the scaler makes.
    `pending` are backwards that FSDP2 did not reduce.
    """

    kind: str
    event: Event
    held: tuple[Held, ...]
    waiting: tuple[Microbatch, ...] = ()
    again: tuple[Microbatch, ...] = ()
    ratio: float = 1.0
    known: bool = True
    spread: float = 0.0
    drift: float = 0.0
    applied: bool = True
    scaled: bool = False
    guarded: bool = False
    pending: tuple[Microbatch, ...] = ()


@frozen
class Story:
    """The moments of one optimizer, and the largest error with which changes were explained."""

    optimizer: int
    name: str
    ranks: tuple[int, ...]
    world: int
    moments: tuple[Moment, ...]
    error: float
    unexplained: tuple[str, ...] = ()
    apart: bool = False

    def of(self, *kinds: str) -> list[Moment]:
        """The moments of some kinds."""
        return [moment for moment in self.moments if moment.kind in kinds]

    @property
    def steps(self) -> list[Moment]:
        return self.of("step")


@dataclass
class _Rank:
    """One rank's gradients as they are followed."""

    rank: int
    vector: Vector | None = None
    held: Held = field(default_factory=dict[Microbatch, float])
    # By autograd.grad or under ZeRO: not in `.grad` yet.
    loose: dict[Microbatch, Vector] = field(default_factory=dict[Microbatch, Vector])
    # Backwards that FSDP2 has not reduced.
    pending: list[Microbatch] = field(default_factory=list[Microbatch])
    scaled: bool = False


def stories(records: Sequence[Record]) -> Iterator[Story]:
    """The story of each optimizer that stepped or whose parameters got gradients."""
    first = records[0]
    for event in first.of("optimizer"):
        story = _Follower(event["number"], event["name"], records).story()
        if any(m.kind in ("step", "backward") for m in story.moments):
            yield story


class _Follower:
    """Follows one optimizer."""

    def __init__(self, optimizer: int, name: str, records: Sequence[Record]) -> None:
        self.optimizer, self.name = optimizer, name
        self.key = str(optimizer)
        self.lists = [self._relevant(record) for record in records]
        self.apart = not _is_alike(self.lists)
        if self.apart:
            self.lists = self.lists[:1]
            records = records[:1]
        self.records = records
        self.world = records[0].world if records else 1
        self.ranks = [_Rank(record.rank) for record in records]
        self.known = True
        self.applied: dict[Microbatch, int] = {}
        self.error = 0.0
        self.guarded = False
        self.tolerance = _PRECISE
        self.unexplained: dict[str, None] = {}
        self.moments: list[Moment] = []

    def _relevant(self, record: Record) -> list[Event]:
        found: list[Event] = []
        for event in record.events:
            kind = event["kind"]
            mine = event.get("optimizer", self.optimizer) == self.optimizer
            touched = event.get("gradients", event.get("before"))
            if kind in _KINDS and mine and (not isinstance(touched, dict) or self.key in touched):
                found.append(event)
        return found

    def story(self) -> Story:
        for events in zip(*self.lists, strict=False):
            getattr(self, "_" + events[0]["kind"].replace(" ", "_"))(events)
        return Story(
            self.optimizer, self.name, tuple(rank.rank for rank in self.ranks), self.world, tuple(self.moments),
            self.error, tuple(self.unexplained), self.apart,
        )  # fmt: skip

    def _moment(self, kind: str, event: Event, **more: object) -> Moment:
        own = self.ranks[0].rank
        mine = [m for m in self.ranks[0].held if m[0] == own]
        made = Moment(
            kind, event, tuple(dict(rank.held) for rank in self.ranks),
            waiting=tuple(m for m in mine if m not in self.applied),
            again=tuple(m for m in mine if m in self.applied), known=self.known, scaled=self.ranks[0].scaled,
            guarded=self.guarded, pending=tuple(self.ranks[0].pending),
        )  # fmt: skip
        made = replace(made, **more)
        self.moments.append(made)
        return made

    # The events, each for all ranks.

    def _backward(self, events: Sequence[Event]) -> None:
        told = [event["gradients"][self.key] for event in events]
        if any(not vectors.is_finite(t["before"]) for t in told if t.get("before")):
            self._moment("kept", events[0])
        self._found([t.get("before") for t in told], events[0])
        if not all(t.get("precise", True) for t in told):
            self.tolerance = _COARSE
        flows = [t.get("flowed") for t in told]
        after = [t.get("after") for t in told]
        for rank, event in zip(self.ranks, events, strict=True):
            rank.scaled = bool(event.get("scaled")) and event.get("scaled") != 1.0
        numbers = [
            (rank.rank, event["number"]) for rank, event in zip(self.ranks, events, strict=True)
        ]
        if told[0].get("sharded"):
            self._sharded(events, numbers, after)
        elif told[0].get("apart") or any(event.get("by_hand") for event in events):
            for rank, number, flow in zip(self.ranks, numbers, flows, strict=True):
                if flow is not None:
                    rank.loose[number] = flow
        elif any(flow is not None for flow in flows):
            self._flowed(numbers, flows, after, events[0])
            self._moment("backward", events[0])
        elif any(not vectors.is_nothing(a) for a in after):
            self._found(after, events[0])

    def _flowed(
        self,
        numbers: Sequence[Microbatch],
        flows: Sequence[Vector | None],
        after: Sequence[Vector | None],
        event: Event,
    ) -> None:
        """Explains what a backward left by what lay there and what flowed in."""
        size = next(len(v) for v in (*flows, *after) if v is not None)
        zeros = [0.0] * size
        base = [rank.vector or zeros for rank in self.ranks]
        came = [flow or zeros for flow in flows]
        left = [a or zeros for a in after]
        should = [vectors.added(pair) for pair in zip(base, came, strict=True)]
        for rank, number in zip(self.ranks, numbers, strict=True):
            rank.held = {**rank.held, number: rank.held.get(number, 0.0) + 1.0}
        for rank, now in zip(self.ranks, after, strict=True):
            rank.vector = now
        if self._are_close(left, should):
            return
        if self._together(left, should):
            return
        # A hook of the user's may have changed what flowed in.
        for rank, number, now, before, flow in zip(
            self.ranks, numbers, left, base, came, strict=True
        ):
            factor, rest = vectors.fit(vectors.minus(now, before), flow)
            if rest > 10 * self.tolerance:
                self._give_up(event, "a backward left what its micro-batch does not explain")
                return
            rank.held[number] = factor

    def _sharded(
        self, events: Sequence[Event], numbers: Sequence[Microbatch], after: Sequence[Vector | None]
    ) -> None:
        """FSDP2 reduces before anyone sees the gradients; taken as the mean over the ranks."""
        for rank, number in zip(self.ranks, numbers, strict=True):
            rank.pending.append(number)
        if all(event.get("fsdp_sync", True) for event in events):
            every = {m: 1 / len(self.ranks) for rank in self.ranks for m in rank.pending}
            for rank in self.ranks:
                rank.held = {**rank.held, **every}
                rank.pending = []
        for rank, now in zip(self.ranks, after, strict=True):
            rank.vector = now
        self._moment("backward", events[0])

    def _clear(self, events: Sequence[Event]) -> None:
        left = [event["gradients"].get(self.key) for event in events]
        if all(vectors.is_nothing(v) for v in left):
            self._moment("clear", events[0])
            self._wipe(left)
        else:
            self._found(left, events[0])

    def _clip(self, events: Sequence[Event]) -> None:
        self._found([event["before"][self.key] for event in events], events[0])
        before, after = events[0]["before"][self.key], events[0]["after"][self.key]
        ratio = vectors.fit(after, before)[0] if before and after else 1.0
        self._moment("clip", events[0], ratio=ratio)
        for rank, event in zip(self.ranks, events, strict=True):
            rank.vector = event["after"][self.key]

    def _scaler_unscale(self, events: Sequence[Event]) -> None:
        if events[0].get("raised"):
            return
        self._found([event["before"][self.key] for event in events], events[0])
        self._moment("unscale", events[0])
        self._found([event["after"][self.key] for event in events], events[0])
        for rank in self.ranks:
            rank.scaled = False

    def _scaler_step(self, events: Sequence[Event]) -> None:
        if not events[0].get("raised"):
            self.guarded = True
            self._moment("scaler step", events[0])

    def _scaler_update(self, events: Sequence[Event]) -> None:
        if not events[0].get("raised"):
            self._moment("update", events[0])

    def _step(self, events: Sequence[Event]) -> None:
        found = [event.get("applied") for event in events]
        self._found(found, events[0])
        for rank, event in zip(self.ranks, events, strict=True):
            scale = event.get("scale")
            if scale:
                rank.held = {m: factor / scale for m, factor in rank.held.items()}
                rank.scaled = False
        self._moment(
            "step", events[0], spread=_spread(found), applied=not all(map(vectors.is_nothing, found)),
            drift=_spread([event.get("weights") for event in events]),
        )  # fmt: skip
        self._count()

    def _scaler_stepped(self, events: Sequence[Event]) -> None:
        if not events[0].get("stepped"):
            self._moment("skip", events[0])
            self._count()
        self.guarded = False

    def _epoch(self, events: Sequence[Event]) -> None:
        if events[0]["backwards"]:
            self._moment("epoch", events[0])

    # What becomes of gradients.

    def _count(self) -> None:
        for rank in self.ranks:
            for microbatch in rank.held:
                self.applied[microbatch] = self.applied.get(microbatch, 0) + 1

    def _wipe(self, left: Sequence[Vector | None]) -> None:
        for rank, now in zip(self.ranks, left, strict=True):
            rank.held, rank.vector, rank.scaled = {}, now, False
            rank.loose = {}
        self.known = True

    def _found(self, now: Sequence[Vector | None], event: Event) -> None:
        """Explains what is found in `.grad` by what was last seen there."""
        before = [rank.vector for rank in self.ranks]
        if all(vectors.is_nothing(v) for v in now):
            if any(not vectors.is_nothing(v) for v in before):
                self._moment("gone", event)
                self._wipe(now)
            return
        size = next(len(v) for v in now if v is not None)
        zeros = [0.0] * size
        new, old = [v or zeros for v in now], [v or zeros for v in before]
        loose = [rank.loose for rank in self.ranks]
        if not self._are_close(new, old, quietly=True) and any(loose):
            old = [vectors.added([v, *held.values()]) for v, held in zip(old, loose, strict=True)]
            for rank in self.ranks:
                rank.held = {**rank.held, **dict.fromkeys(rank.loose, 1.0)}
                rank.loose = {}
        for rank, vector in zip(self.ranks, now, strict=True):
            rank.vector = vector
        if self._are_close(new, old):
            return
        fits = [vectors.fit(a, b) for a, b in zip(new, old, strict=True)]
        if all(rest < self.tolerance for _, rest in fits):
            for rank, (factor, _) in zip(self.ranks, fits, strict=True):
                rank.held = {m: f * factor for m, f in rank.held.items()}
            self.error = max(self.error, *(rest for _, rest in fits))
            return
        if not self._together(new, old):
            self._give_up(event, "gradients were changed by other means")

    def _are_close(
        self, new: Sequence[Vector], old: Sequence[Vector], *, quietly: bool = False
    ) -> bool:
        apart = max(vectors.distance(a, b) for a, b in zip(new, old, strict=True))
        close = apart < self.tolerance
        if close and not quietly:
            self.error = max(self.error, apart)
        return close

    def _together(self, new: Sequence[Vector], old: Sequence[Vector]) -> bool:
        """Explains gradients as a multiple of the sum over all ranks."""
        if len(self.ranks) < 2:
            return False
        total = vectors.added(old)
        fits = [vectors.fit(v, total) for v in new]
        if any(rest > self.tolerance for _, rest in fits):
            return False
        self.error = max(self.error, *(rest for _, rest in fits))
        every: Held = {}
        for rank in self.ranks:
            for microbatch, factor in rank.held.items():
                every[microbatch] = every.get(microbatch, 0.0) + factor
        for rank, (factor, _) in zip(self.ranks, fits, strict=True):
            rank.held = {m: f * factor for m, f in every.items()}
        return True

    def _give_up(self, event: Event, why: str) -> None:
        self.known = False
        self.unexplained[f"{why} (line {event['line']})"] = None


def _spread(found: Sequence[Vector | None]) -> float:
    known = [v for v in found if v]
    return vectors.spread(known) if len(known) == len(found) else 0.0


def _is_alike(lists: Sequence[Sequence[Event]]) -> bool:
    """Whether the ranks did the same things in the same order, as far as all of them came."""
    return all(
        len({event["kind"] for event in events}) == 1 for events in zip(*lists, strict=False)
    )
