"""Replays an optimizer's `.grad` through a run: the micro-batches of each rank that it contains, with their factors.

The ranks are replayed side by side, event by event. Each change of the sampled gradients must be explained by the
events: equal, cleared, scaled, a sum or mean over ranks, plus the gradient of a backward. An unexplained change makes
the gradients unknown until they are cleared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from accumlint.common.frozen import frozen
from accumlint.runtime import vectors
from accumlint.runtime.records import Event, Record, Vector

# A micro-batch: its rank, and the number of its backward there.
Microbatch: TypeAlias = "tuple[int, int]"
Factors: TypeAlias = "dict[Microbatch, float]"
_PRECISE, _COARSE = 2e-4, 3e-2
_KINDS = (
    "backward", "clear", "clip", "scaler unscale", "scaler step", "step", "scaler stepped", "scaler update", "epoch",
)  # fmt: skip


@frozen
class Moment:
    """The contents of `.grad` at an event: a step, a clip, a clear, the beginning of an epoch.

    `factors` has the micro-batches of each rank with their factors; `waiting` are those of the first rank that no step
    has applied, `again` those that an earlier step has applied. `ratio` is the factor of clipping. `known` is False
    after an unexplained change. `spread` is the difference between the ranks' gradients, `drift` between their weights.
    `scaled` gradients carry the scaler's factor; `guarded` steps are made by the scaler. `pending` are backwards that
    FSDP2 did not reduce.
    """

    kind: str
    event: Event
    factors: tuple[Factors, ...]
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
class History:
    """The moments of one optimizer, and the largest error of their explanations."""

    optimizer: int
    name: str
    ranks: tuple[int, ...]
    world: int
    moments: tuple[Moment, ...]
    error: float
    unexplained: tuple[str, ...] = ()
    diverged: bool = False

    def of(self, *kinds: str) -> list[Moment]:
        """The moments of some kinds."""
        return [moment for moment in self.moments if moment.kind in kinds]

    @property
    def steps(self) -> list[Moment]:
        return self.of("step")


@dataclass
class _Rank:
    """The gradients of one rank during the replay."""

    rank: int
    vector: Vector | None = None
    factors: Factors = field(default_factory=dict[Microbatch, float])
    # From autograd.grad or under ZeRO: not in `.grad` yet.
    loose: dict[Microbatch, Vector] = field(default_factory=dict[Microbatch, Vector])
    # Backwards that FSDP2 has not reduced.
    pending: list[Microbatch] = field(default_factory=list[Microbatch])
    scaled: bool = False


def histories(records: Sequence[Record]) -> Iterator[History]:
    """The history of each optimizer that stepped or whose parameters received gradients."""
    first = records[0]
    for event in first.of("optimizer"):
        history = _Follower(event["number"], event["name"], records).history()
        if any(m.kind in ("step", "backward") for m in history.moments):
            yield history


class _Follower:
    """Replays the events of one optimizer."""

    def __init__(self, optimizer: int, name: str, records: Sequence[Record]) -> None:
        self.optimizer, self.name = optimizer, name
        self.key = str(optimizer)
        self.lists = [self._relevant(record) for record in records]
        self.diverged = not _is_alike(self.lists)
        if self.diverged:
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
            concerns_optimizer = event.get("optimizer", self.optimizer) == self.optimizer
            touched = event.get("gradients", event.get("before"))
            if (
                kind in _KINDS
                and concerns_optimizer
                and (not isinstance(touched, dict) or self.key in touched)
            ):
                found.append(event)
        return found

    def history(self) -> History:
        for events in zip(*self.lists, strict=False):
            getattr(self, "_" + events[0]["kind"].replace(" ", "_"))(events)
        return History(
            self.optimizer, self.name, tuple(rank.rank for rank in self.ranks), self.world, tuple(self.moments),
            self.error, tuple(self.unexplained), self.diverged,
        )  # fmt: skip

    def _moment(self, kind: str, event: Event, **more: object) -> Moment:
        first = self.ranks[0].rank
        microbatches = [m for m in self.ranks[0].factors if m[0] == first]
        made = Moment(
            kind, event, tuple(dict(rank.factors) for rank in self.ranks),
            waiting=tuple(m for m in microbatches if m not in self.applied),
            again=tuple(m for m in microbatches if m in self.applied), known=self.known, scaled=self.ranks[0].scaled,
            guarded=self.guarded, pending=tuple(self.ranks[0].pending),
        )  # fmt: skip
        made = replace(made, **more)
        self.moments.append(made)
        return made

    # Handlers of events, each for all ranks.

    def _backward(self, events: Sequence[Event]) -> None:
        gradients = [event["gradients"][self.key] for event in events]
        if any(not vectors.is_finite(t["before"]) for t in gradients if t.get("before")):
            self._moment("kept", events[0])
        self._reconcile([t.get("before") for t in gradients], events[0])
        if not all(t.get("precise", True) for t in gradients):
            self.tolerance = _COARSE
        flows = [t.get("flowed") for t in gradients]
        after = [t.get("after") for t in gradients]
        for rank, event in zip(self.ranks, events, strict=True):
            rank.scaled = bool(event.get("scaled")) and event.get("scaled") != 1.0
        numbers = [
            (rank.rank, event["number"]) for rank, event in zip(self.ranks, events, strict=True)
        ]
        if gradients[0].get("sharded"):
            self._sharded(events, numbers, after)
        elif gradients[0].get("apart") or any(event.get("by_hand") for event in events):
            for rank, number, flow in zip(self.ranks, numbers, flows, strict=True):
                if flow is not None:
                    rank.loose[number] = flow
        elif any(flow is not None for flow in flows):
            self._flowed(numbers, flows, after, events[0])
            self._moment("backward", events[0])
        elif any(not vectors.is_nothing(a) for a in after):
            self._reconcile(after, events[0])

    def _flowed(
        self,
        numbers: Sequence[Microbatch],
        flows: Sequence[Vector | None],
        after: Sequence[Vector | None],
        event: Event,
    ) -> None:
        """Explains the result of a backward by the previous contents and the incoming gradients."""
        size = next(len(v) for v in (*flows, *after) if v is not None)
        zeros = [0.0] * size
        base = [rank.vector or zeros for rank in self.ranks]
        incoming = [flow or zeros for flow in flows]
        left = [a or zeros for a in after]
        expected = [vectors.added(pair) for pair in zip(base, incoming, strict=True)]
        for rank, number in zip(self.ranks, numbers, strict=True):
            rank.factors = {**rank.factors, number: rank.factors.get(number, 0.0) + 1.0}
        for rank, now in zip(self.ranks, after, strict=True):
            rank.vector = now
        if self._are_close(left, expected):
            return
        if self._explained_by_ranks(left, expected):
            return
        # A user's hook may have scaled the incoming gradient.
        for rank, number, now, before, flow in zip(
            self.ranks, numbers, left, base, incoming, strict=True
        ):
            factor, rest = vectors.fit(vectors.minus(now, before), flow)
            if rest > 10 * self.tolerance:
                self._give_up(event, "a backward left what its micro-batch does not explain")
                return
            rank.factors[number] = factor

    def _sharded(
        self, events: Sequence[Event], numbers: Sequence[Microbatch], after: Sequence[Vector | None]
    ) -> None:
        """FSDP2 reduces before gradients are visible; they count as the mean over the ranks."""
        for rank, number in zip(self.ranks, numbers, strict=True):
            rank.pending.append(number)
        if all(event.get("fsdp_sync", True) for event in events):
            every = {m: 1 / len(self.ranks) for rank in self.ranks for m in rank.pending}
            for rank in self.ranks:
                rank.factors = {**rank.factors, **every}
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
            self._reconcile(left, events[0])

    def _clip(self, events: Sequence[Event]) -> None:
        self._reconcile([event["before"][self.key] for event in events], events[0])
        before, after = events[0]["before"][self.key], events[0]["after"][self.key]
        ratio = vectors.fit(after, before)[0] if before and after else 1.0
        self._moment("clip", events[0], ratio=ratio)
        for rank, event in zip(self.ranks, events, strict=True):
            rank.vector = event["after"][self.key]

    def _scaler_unscale(self, events: Sequence[Event]) -> None:
        if events[0].get("raised"):
            return
        self._reconcile([event["before"][self.key] for event in events], events[0])
        self._moment("unscale", events[0])
        self._reconcile([event["after"][self.key] for event in events], events[0])
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
        self._reconcile(found, events[0])
        for rank, event in zip(self.ranks, events, strict=True):
            scale = event.get("scale")
            if scale:
                rank.factors = {m: factor / scale for m, factor in rank.factors.items()}
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

    # Changes of gradients.

    def _count(self) -> None:
        for rank in self.ranks:
            for microbatch in rank.factors:
                self.applied[microbatch] = self.applied.get(microbatch, 0) + 1

    def _wipe(self, left: Sequence[Vector | None]) -> None:
        for rank, now in zip(self.ranks, left, strict=True):
            rank.factors, rank.vector, rank.scaled = {}, now, False
            rank.loose = {}
        self.known = True

    def _reconcile(self, now: Sequence[Vector | None], event: Event) -> None:
        """Explains the current contents of `.grad` by the previous ones."""
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
            old = [
                vectors.added([v, *loose_flows.values()])
                for v, loose_flows in zip(old, loose, strict=True)
            ]
            for rank in self.ranks:
                rank.factors = {**rank.factors, **dict.fromkeys(rank.loose, 1.0)}
                rank.loose = {}
        for rank, vector in zip(self.ranks, now, strict=True):
            rank.vector = vector
        if self._are_close(new, old):
            return
        fits = [vectors.fit(a, b) for a, b in zip(new, old, strict=True)]
        if all(rest < self.tolerance for _, rest in fits):
            for rank, (factor, _) in zip(self.ranks, fits, strict=True):
                rank.factors = {m: f * factor for m, f in rank.factors.items()}
            self.error = max(self.error, *(rest for _, rest in fits))
            return
        if not self._explained_by_ranks(new, old):
            self._give_up(event, "gradients were changed by other means")

    def _are_close(
        self, new: Sequence[Vector], old: Sequence[Vector], *, quietly: bool = False
    ) -> bool:
        difference = max(vectors.distance(a, b) for a, b in zip(new, old, strict=True))
        close = difference < self.tolerance
        if close and not quietly:
            self.error = max(self.error, difference)
        return close

    def _explained_by_ranks(self, new: Sequence[Vector], old: Sequence[Vector]) -> bool:
        """Explains gradients as a multiple of the sum over all ranks."""
        if len(self.ranks) < 2:
            return False
        total = vectors.added(old)
        fits = [vectors.fit(v, total) for v in new]
        if any(rest > self.tolerance for _, rest in fits):
            return False
        self.error = max(self.error, *(rest for _, rest in fits))
        every: Factors = {}
        for rank in self.ranks:
            for microbatch, factor in rank.factors.items():
                every[microbatch] = every.get(microbatch, 0.0) + factor
        for rank, (factor, _) in zip(self.ranks, fits, strict=True):
            rank.factors = {m: f * factor for m, f in every.items()}
        return True

    def _give_up(self, event: Event, why: str) -> None:
        self.known = False
        self.unexplained[f"{why} (line {event['line']})"] = None


def _spread(found: Sequence[Vector | None]) -> float:
    known = [v for v in found if v]
    return vectors.spread(known) if len(known) == len(found) else 0.0


def _is_alike(lists: Sequence[Sequence[Event]]) -> bool:
    """Whether the ranks had the same events in the same order."""
    return all(
        len({event["kind"] for event in events}) == 1 for events in zip(*lists, strict=False)
    )
