"""The windows of an optimizer, with the weight of each target in the applied gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from accumlint.common.frozen import frozen
from accumlint.runtime.ledger import Factors, History, Microbatch, Moment
from accumlint.runtime.records import Event, Record

# So many windows show which size is usual by now.
_LAST = 7


@frozen
class Share:
    """The weight of a micro-batch's loss in an update: `mass` over all its targets, `least` to `most` for one."""

    microbatch: Microbatch
    loss: Event
    mass: float
    least: float
    most: float

    @property
    def targets(self) -> float:
        return float(self.loss["targets"])

    @property
    def is_sum(self) -> bool:
        return self.loss["reduction"] == "sum"


@frozen
class Window:
    """The contents of one step. `backwards` are those of the first rank, `size` counts those from the main call path.

    `shares` are the losses of all ranks by place; empty where the losses of a backward are unknown. `crosses`: the
    window contains micro-batches of the previous epoch. `drawn` counts the batches that a loader gave since the last
    step, 0 where that is not known.
    """

    step: Moment
    backwards: tuple[int, ...]
    size: int
    shares: Mapping[str, tuple[Share, ...]]
    known: bool
    crosses: bool = False
    drawn: int = 0

    @property
    def total(self) -> float:
        """The total weight of all targets, of the loss with the largest one."""
        return max(self.totals.values(), key=abs, default=0.0)

    @property
    def totals(self) -> Mapping[str, float]:
        return {site: sum(share.mass for share in shares) for site, shares in self.shares.items()}

    @property
    def is_mixed(self) -> bool:
        """Whether the gradients of some micro-batches were multiplied after their backward."""
        factors = [abs(factor) for factor in self.step.factors[0].values()]
        return max(factors, default=1.0) > 1.02 * min(factors, default=1.0)

    @property
    def main(self) -> tuple[Share, ...]:
        """The loss with the largest weights."""
        totals = self.totals
        return self.shares[max(totals, key=lambda site: abs(totals[site]))] if totals else ()


@frozen
class Windows:
    """The windows of an optimizer; `usual` is the most frequent size, 0 without windows."""

    history: History
    records: Mapping[int, Record]
    windows: tuple[Window, ...]
    usual: int
    main_key: str

    @property
    def steady(self) -> list[Window]:
        """The known windows of the usual size."""
        return [w for w in self.windows if w.known and w.size == self.usual and not w.step.again]

    @property
    def weighed(self) -> list[Window]:
        """The steady windows with known target weights."""
        return [w for w in self.steady if w.shares]

    def since(self, backwards: int) -> Windows:
        """The windows after a number of backwards, none of two epochs; `usual` grows with the last windows."""
        later = [w for w in self.windows if w.step.event["backwards"] > backwards and not w.crosses]
        last = [w.size for w in self.windows if w.size and not w.crosses][-_LAST:]
        return replace(self, windows=tuple(later), usual=max(self.usual, _usual(last)))

    @property
    def total(self) -> float:
        """The median total weight of all targets over windows."""
        return median(w.total for w in self.weighed) if self.weighed else 0.0

    @property
    def total_of_all(self) -> float:
        """The same over all losses."""
        return median(sum(w.totals.values()) for w in self.weighed) if self.weighed else 0.0

    @property
    def averages_weights(self) -> bool:
        """Whether the ranks' weights diverged and were averaged again, as in local SGD."""
        differ = [w.step.drift > 0 for w in self.windows]
        return any(before and not after for before, after in pairwise(differ))

    @property
    def first(self) -> Record:
        return self.records[self.history.ranks[0]]

    def backward(self, number: int) -> Event:
        """A backward of the first rank."""
        return self.first.backwards[number]

    @property
    def world(self) -> int:
        return self.history.world


def windows(history: History, records: Sequence[Record]) -> Windows:
    """The windows of an optimizer's steps."""
    by_rank = {record.rank: record for record in records}
    first = by_rank[history.ranks[0]]
    found: list[Window] = []
    crosses = False
    before: Event = {}
    for moment in history.moments:
        if moment.kind == "epoch":
            crosses = bool(moment.waiting)
        elif moment.kind in ("clear", "gone"):
            crosses = False
        elif moment.kind == "step":
            backwards = tuple(sorted(n for r, n in moment.factors[0] if r == first.rank))
            keys = Counter(first.backwards[n]["key"] for n in backwards if n in first.backwards)
            size = max(keys.values(), default=0)
            shares = _shares(moment.factors[0], by_rank)
            drawn = _drawn(before, moment.event)
            found.append(Window(moment, backwards, size, shares, moment.known, crosses, drawn))
            crosses, before = False, moment.event
    usual = _usual([w.size for w in found if w.size])
    every = Counter(
        first.backwards[n]["key"] for w in found for n in w.backwards if n in first.backwards
    )
    if not every:
        every = Counter(moment.event["key"] for moment in history.of("backward"))
    main = every.most_common(1)[0][0] if every else ""
    return Windows(history, by_rank, tuple(found), usual, main)


def _drawn(before: Event, step: Event) -> int:
    """The batches that were fetched between two steps, of one dataset."""
    known = before.get("source", step.get("source")) == step.get("source")
    return step.get("fetched", 0) - before.get("fetched", 0) if known else 0


def _usual(sizes: Sequence[int]) -> int:
    """The most frequent size, the larger one of equals."""
    counts = Counter(sizes)
    return max(counts, key=lambda size: (counts[size], size), default=0)


def _shares(factors: Factors, records: Mapping[int, Record]) -> dict[str, tuple[Share, ...]]:
    """The weights of the losses in an update; empty where a micro-batch's losses are unknown."""
    found: dict[str, list[Share]] = {}
    for (rank, number), factor in factors.items():
        event = records[rank].backwards.get(number) if rank in records else None
        if event is None or not event["losses"]:
            return {}
        seen: Counter[str] = Counter()
        for loss in event["losses"]:
            share = _share((rank, number), loss, factor)
            if share is not None:
                site = f"{loss['file']}:{loss['line']} {seen[loss['key']]} {event['key']} {loss['key']}"
                seen[loss["key"]] += 1
                found.setdefault(site, []).append(share)
    return {site: tuple(shares) for site, shares in found.items()}


def _share(microbatch: Microbatch, loss: Event, factor: float) -> Share | None:
    targets = float(loss["targets"])
    coefficient = factor * float(loss["coefficient"])
    if loss["loss"] == "mean":
        # A user's loss may be the negative of a mean.
        coefficient = abs(coefficient)
    if not targets:
        return None
    if loss["reduction"] == "none" and "least" in loss:
        return Share(microbatch, loss, coefficient, factor * loss["least"], factor * loss["most"])
    if loss["reduction"] == "sum" or (loss["reduction"] == "none" and targets == 1):
        return Share(microbatch, loss, coefficient * targets, coefficient, coefficient)
    each = coefficient / float(loss.get("weighted", targets))
    return Share(microbatch, loss, coefficient, each, each)
