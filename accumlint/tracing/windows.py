"""A window: the events up to one optimizer step, the gradient that it applies, and what that is made of."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import TypeVar, cast

from accumlint.common.frozen import frozen
from accumlint.tracing.events import (
    Backward,
    Clear,
    Contribution,
    Event,
    Forward,
    Reduce,
    Rescale,
    Step,
)

E = TypeVar("E", bound=Event)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, tuple[V, ...]]:
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
        return grouped((type(e), e) for e in self.between)

    def weight(self, microbatch: int) -> Fraction | None:
        """The summed factor of one micro-batch's loss, None when any part of it could not be followed."""
        return summed(self._weights.get(microbatch, ()))

    @cached_property
    def _weights(self) -> Mapping[int, tuple[Fraction | None, ...]]:
        return grouped((c.microbatch, c.weight) for c in self.step.applied)

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
        by_origin = grouped(((c.origin, c.network), c) for c in self.step.applied)
        whole = set(self.microbatches)
        if any({c.microbatch for c in parts} != whole for parts in by_origin.values()):
            return {}
        return {loss: summed(c.weight for c in parts) for loss, parts in by_origin.items()}

    @property
    def sources(self) -> frozenset[tuple[str, str]]:
        """The losses that the step applies, each with the network it reaches."""
        return frozenset((c.origin, c.network) for c in self.contributions)

    def backward_count(self, like: Window | None = None) -> int:
        """How many micro-batches of its losses (or those of another window) went backward since the previous step.

        A GAN's discriminator also receives the generator's gradient; what is cleared of it makes no window longer, by
        the name of its loss or because the generator's step had applied it by then.
        """
        of_these, spent = (like or self).sources, self._applied_by_others
        return len(
            {
                backward.microbatch
                for backward in self.backwards
                if backward not in spent
                and any((c.origin, c.network) in of_these for c in backward.contributions)
            }
        )

    @property
    def _applied_by_others(self) -> set[Backward]:
        """The backwards that another optimizer's step applied before this one's share of them was cleared."""
        others = [step for step in self.of(Step) if step is not self.step]
        return {
            wiped.backward
            for clear in (self.of(Clear) if others else ())
            for wiped in clear.wiped
            if any(
                wiped.backward.index < step.index < clear.index
                and any(applied.backward is wiped.backward for applied in step.applied)
                for step in others
            )
        }

    @property
    def is_entangled(self) -> bool:
        """True when optimizers take turns inside a window, and it is not known which network is whose."""
        if self.step.owned:
            return False
        cleared = {clear.optimizer for clear in self.of(Clear)} - {None, self.step.optimizer}
        if cleared and any(c.network == "?" for c in self.contributions):
            return True
        turn = ""
        for event in self.between:
            if isinstance(event, Backward):
                if turn == "stepped":
                    return True
                turn = "backward"
            elif isinstance(event, Step) and event is not self.step and turn == "backward":
                turn = "stepped"
        return False

    @cached_property
    def factors(self) -> tuple[Fraction, ...] | None:
        """The factor of each micro-batch in order, None where losses or networks differ or a part is not known."""
        by_origin: dict[tuple[str, str], dict[int, Fraction]] = {}
        for c in self.contributions:
            if c.weight is None or c.symbols:
                return None
            factors = by_origin.setdefault((c.origin, c.network), {})
            factors[c.microbatch] = factors.get(c.microbatch, Fraction(0)) + c.weight
        found = {tuple(factors.values()) for factors in by_origin.values()}
        # Losses that take turns make one window together, and none of them tells of all of it.
        whole = len(self.microbatches)
        return found.pop() if len(found) == 1 and all(len(f) == whole for f in found) else None

    @property
    def applied(self) -> str:
        """What the step applies, as a sum over the window's micro-batches: `1/4 g5 + 1/4 g6`."""
        return " + ".join(weighted(f, number) for number, f in enumerate(self.factors or (), 1))

    @property
    def expected(self) -> str:
        """What the large batch would apply."""
        return mean(range(1, len(self.microbatches) + 1))

    @property
    def bypasses(self) -> tuple[Backward, ...]:
        """The backwards that run under `accumulate` without the framework's own backward."""
        return tuple(b for b in self.backwards if b.accumulating and b.via in ("tensor", "scaler"))

    @property
    def unshared(self) -> Contribution | None:
        """The last contribution of a network that DDP never reduced, None when none is known.

        A reduction covers all that a network holds in `.grad`, so only its last contribution decides.
        """
        last = {c.network: c for c in self.contributions}
        if self.reduced_by_hand or self.is_sharded or (len(last) > 1 and not self.step.owned):
            return None
        alone = (c for c in last.values() if c.synced is False)
        return next((c for c in alone if not self._is_awaited(c)), None)

    def _is_awaited(self, contribution: Contribution) -> bool:
        """True where the wrapper was called before the same backward: it reduces whatever the loss is made of."""
        forward, until = contribution.forward, contribution.backward.index
        before = (b.index for b in self.backwards if b.index < until)
        since = max(before, default=-1)
        return (
            forward is not None
            and forward.bypassed
            and any(
                f.model is forward.model and f.armed and not f.bypassed and since < f.index < until
                for f in self.of(Forward)
            )
        )

    @property
    def reduced_by_hand(self) -> bool:
        """True when the code itself reduces gradients over ranks before the step."""
        by_hand = any(e.reduced for e in self.of(Rescale))
        return by_hand or any(e.what == "gradients" for e in self.of(Reduce))

    @property
    def is_sharded(self) -> bool:
        """True under FSDP, which asks for its flags after the backward and pays for `no_sync` in memory."""
        return any(e.wrapper.startswith("fsdp") for e in self.of(Forward))

    def forward_of(self, contribution: Contribution) -> Forward | None:
        """The forward that a contribution comes from, where it is an event of the window."""
        return contribution.forward if contribution.forward in self.between else None


def summed(weights: Iterable[Fraction | None]) -> Fraction | None:
    """The sum of some factors, None when any of them is not known."""
    parts = list(weights)
    return None if None in parts else sum(filter(None, parts), Fraction(0))


def mean(numbers: Sequence[int]) -> str:
    """The mean of the gradients of some micro-batches."""
    return " + ".join(weighted(Fraction(1, len(numbers)), number) for number in numbers)


def weighted(factor: Fraction | None, number: int) -> str:
    """One micro-batch's gradient with its factor, "?" where that is not known."""
    return f"g{number}" if factor == 1 else f"{'?' if factor is None else factor} g{number}"
