"""The windows of an optimizer's story, with the weight of each target in what was applied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

from accumlint.common.frozen import frozen
from accumlint.runtime.ledger import Held, Microbatch, Moment, Story
from accumlint.runtime.records import Event, Record


@frozen
class Share:
    """What one loss of one micro-batch has in an update: `mass` over all its targets, `least` to `most` for one."""

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
    """What one step applied. `own` are the backwards of the first rank in it, `size` those from the most usual line.

    `shares` holds the losses by the place where they are computed, those of all ranks; empty where a backward's
    losses are not known. `partial` says that it ended at the end of an epoch.
    """

    step: Moment
    own: tuple[int, ...]
    size: int
    shares: Mapping[str, tuple[Share, ...]]
    known: bool
    crosses: bool = False

    @property
    def total(self) -> float:
        """The weights of all targets together, of the loss with the largest ones."""
        return max(self.totals.values(), key=abs, default=0.0)

    @property
    def totals(self) -> Mapping[str, float]:
        return {site: sum(share.mass for share in shares) for site, shares in self.shares.items()}

    @property
    def is_mixed(self) -> bool:
        """Whether some micro-batches' gradients were multiplied after their backward and others were not."""
        factors = [abs(factor) for factor in self.step.held[0].values()]
        return max(factors, default=1.0) > 1.02 * min(factors, default=1.0)

    @property
    def main(self) -> tuple[Share, ...]:
        """The loss with the largest weights."""
        totals = self.totals
        return self.shares[max(totals, key=lambda site: abs(totals[site]))] if totals else ()


@frozen
class Windows:
    """The windows of an optimizer; `usual` is the number of micro-batches of most of them, 0 without any."""

    story: Story
    records: Mapping[int, Record]
    windows: tuple[Window, ...]
    usual: int
    main_key: str

    @property
    def steady(self) -> list[Window]:
        """The windows of the usual size that are known."""
        return [w for w in self.windows if w.known and w.size == self.usual and not w.step.again]

    @property
    def weighed(self) -> list[Window]:
        """Those of which the weights of targets are known."""
        return [w for w in self.steady if w.shares]

    @property
    def total(self) -> float:
        """The median over windows of what the weights of all targets add up to."""
        return median(w.total for w in self.weighed) if self.weighed else 0.0

    @property
    def total_of_all(self) -> float:
        """The same for all losses together."""
        return median(sum(w.totals.values()) for w in self.weighed) if self.weighed else 0.0

    @property
    def averages_weights(self) -> bool:
        """Whether the ranks' weights went apart and were made equal again, as local SGD does."""
        apart = [w.step.drift > 0 for w in self.windows]
        return any(before and not after for before, after in pairwise(apart))

    @property
    def first(self) -> Record:
        return self.records[self.story.ranks[0]]

    def backward(self, number: int) -> Event:
        """A backward of the first rank."""
        return self.first.backwards[number]

    @property
    def world(self) -> int:
        return self.story.world


def windows(story: Story, records: Sequence[Record]) -> Windows:
    """The windows that an optimizer's steps closed."""
    by_rank = {record.rank: record for record in records}
    first = by_rank[story.ranks[0]]
    found: list[Window] = []
    crosses = False
    for moment in story.moments:
        if moment.kind == "epoch":
            crosses = bool(moment.waiting)
        elif moment.kind in ("clear", "gone"):
            crosses = False
        elif moment.kind == "step":
            own = tuple(sorted(n for r, n in moment.held[0] if r == first.rank))
            keys = Counter(first.backwards[n]["key"] for n in own if n in first.backwards)
            size = max(keys.values(), default=0)
            shares = _shares(moment.held[0], by_rank)
            found.append(Window(moment, own, size, shares, moment.known, crosses))
            crosses = False
    usual = _usual([w.size for w in found if w.size])
    every = Counter(first.backwards[n]["key"] for w in found for n in w.own if n in first.backwards)
    if not every:
        every = Counter(moment.event["key"] for moment in story.of("backward"))
    main = every.most_common(1)[0][0] if every else ""
    return Windows(story, by_rank, tuple(found), usual, main)


def _usual(sizes: Sequence[int]) -> int:
    """The most frequent size, the larger one of equals."""
    counts = Counter(sizes)
    return max(counts, key=lambda size: (counts[size], size), default=0)


def _shares(held: Held, records: Mapping[int, Record]) -> dict[str, tuple[Share, ...]]:
    """The weights of the losses in an update; nothing where those of a micro-batch are not known."""
    found: dict[str, list[Share]] = {}
    for (rank, number), factor in held.items():
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
        # A loss of the user's own may be the negative of a mean.
        coefficient = abs(coefficient)
    if not targets:
        return None
    if loss["reduction"] == "none" and "least" in loss:
        return Share(microbatch, loss, coefficient, factor * loss["least"], factor * loss["most"])
    if loss["reduction"] == "sum" or (loss["reduction"] == "none" and targets == 1):
        return Share(microbatch, loss, coefficient * targets, coefficient, coefficient)
    each = coefficient / float(loss.get("weighted", targets))
    return Share(microbatch, loss, coefficient, each, each)
