"""The gradient ledger: which micro-batch's gradient lies in which network's `.grad`, and for which optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from accumlint.tracing.events import Contribution
from accumlint.tracing.values import Object


@dataclass(eq=False)
class Held:
    """A contribution that lies in a network's `.grad`, with what has happened to it since."""

    contribution: Contribution
    wiped: bool = False
    cleared_by: set[Object] = field(default_factory=set[Object])
    applied_by: set[Object] = field(default_factory=set[Object])


class Ledger:
    """All contributions of a run. An optimizer whose networks are not known is taken to own every network."""

    def __init__(self) -> None:
        self.held: list[Held] = []
        self.met: set[str] = set()
        self.optimizers: list[Object] = []
        # How many contributions and optimizers were gone through, and how many were told in events.
        self.looked = self.told = 0
        self._known: dict[str, frozenset[Object]] = {}
        self._known_at: tuple[int, tuple[frozenset[str], ...]] = 0, ()

    def know(self, optimizer: Object) -> None:
        if optimizer not in self.optimizers:
            self.optimizers.append(optimizer)

    def add(self, contribution: Contribution) -> None:
        self.held.append(Held(contribution))
        self.met.add(contribution.network)

    def of(self, optimizer: Object) -> list[Held]:
        """What lies in the `.grad` of the optimizer's parameters."""
        self.looked += len(self.held)
        own = {network for network in self.met if self._owns(optimizer, network)}
        return [
            h
            for h in self.held
            if not h.wiped and optimizer not in h.cleared_by and h.contribution.network in own
        ]

    def _owns(self, optimizer: Object, network: str) -> bool:
        self.looked += 1
        if network == "?" or network in optimizer.networks:
            return True
        if optimizer.networks & self.met:
            return False
        # None of its networks ever got a gradient: they go by other names, and are whatever nobody else owns.
        self.looked += len(self.optimizers)
        return not any(network in o.networks for o in self.optimizers if o is not optimizer)

    def _owners(self) -> dict[str, frozenset[Object]]:
        """The optimizers that apply what lies in a network's `.grad`, worked out when that may have changed."""
        now = len(self.met), tuple(o.networks for o in self.optimizers)
        if now != self._known_at:
            self._known_at = now
            self._known = {
                network: frozenset(o for o in self.optimizers if self._owns(o, network))
                for network in self.met
            }
        return self._known

    def pending(self, networks: frozenset[str] = frozenset()) -> tuple[Contribution, ...]:
        """What lies in `.grad` and has not been applied, of some networks (of all, when none are named)."""
        return tuple(self._seen(h) for h in self.lying(networks) if not h.applied_by)

    def seen(self, networks: frozenset[str] = frozenset()) -> tuple[Contribution, ...]:
        """What lies in `.grad`, applied before or not."""
        return tuple(self._seen(h) for h in self.lying(networks))

    def lying(self, networks: frozenset[str] = frozenset()) -> list[Held]:
        self.looked += len(self.held)
        owners = self._owners()
        return [
            h
            for h in self.held
            if not h.wiped
            and (
                not networks or h.contribution.network in networks or h.contribution.network == "?"
            )
            and not (h.cleared_by and owners[h.contribution.network] <= h.cleared_by)
        ]

    def pending_of(self, optimizer: Object) -> tuple[Contribution, ...]:
        return tuple(self._seen(h) for h in self.of(optimizer) if optimizer not in h.applied_by)

    @property
    def is_unscaled(self) -> bool:
        """True where nothing that lies in `.grad` is still multiplied by a scale."""
        return not any(held.contribution.scaled for held in self.lying())

    def unscale(self, optimizer: Object | None) -> None:
        for held in self.of(optimizer) if optimizer is not None else self.lying():
            # What later events tell of it is one value.
            if held.contribution.scaled:
                held.contribution = replace(held.contribution, scaled=False)

    def apply(self, optimizer: Object) -> tuple[Contribution, ...]:
        """What a step applies: everything in `.grad`, applied before or not."""
        held = self.of(optimizer)
        seen = tuple(self._seen(h) for h in held)
        for h in held:
            h.applied_by.add(optimizer)
        return seen

    def clear(self, optimizer: Object) -> tuple[tuple[Contribution, ...], tuple[Contribution, ...]]:
        """Clears one optimizer's gradients; returns what was wiped unapplied, and what had been applied."""
        held = self.of(optimizer)
        for h in held:
            h.cleared_by.add(optimizer)
        return self._parted(held, lambda h: optimizer in h.applied_by)

    def wipe(
        self, networks: frozenset[str], with_owners: bool = False
    ) -> tuple[tuple[Contribution, ...], tuple[Contribution, ...]]:
        """Clears networks' gradients whoever owns them; returns as `clear` does."""
        held = self.lying(networks)
        if with_owners and networks and not networks & self.met:
            # Gradients came by other names: what an optimizer of these parameters owns is cleared with them.
            owners = [o for o in self.optimizers if o.networks & networks]
            own = {name for name, by in self._owners().items() if not by.isdisjoint(owners)}
            held = [h for h in self.lying() if h.contribution.network in own]
        for h in held:
            h.wiped = True
        return self._parted(held, lambda h: bool(h.applied_by))

    def _parted(
        self, held: list[Held], applied: Callable[[Held], bool]
    ) -> tuple[tuple[Contribution, ...], tuple[Contribution, ...]]:
        wiped = tuple(self._seen(h) for h in held if not applied(h))
        done = tuple(self._seen(h) for h in held if applied(h))
        return wiped, done

    def _seen(self, held: Held) -> Contribution:
        self.told += 1
        return held.contribution
