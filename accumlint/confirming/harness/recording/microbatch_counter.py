"""Counts the micro-batches of a script that feeds itself: by what its DataLoaders give, else by its backwards."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportPrivateUsage=false
# torch's own annotations are partial.

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import DataLoader, dataloader

Patch = Callable[[Any, str, Any], None]


class Counted:
    """Micro-batches as they are worked on.

    Loaders may go side by side, be read ahead by one, or give a window at once: what is fetched before anything is
    computed from it is as many micro-batches as one loader gave, if as many go backward. A loader between whose
    beginning and end something went backward has epochs, each of which is over when a loader is begun again.
    """

    def __init__(self, rank: int, epoch: Callable[[], None], turn: Callable[[], None]) -> None:
        self.rank = rank
        self.current = 0
        self.fetches = 0
        self._epoch = epoch
        self._turn = turn
        self._fresh = True
        # What each loader has given since something was last computed, and how much of it has gone backward.
        self._given: Counter[int] = Counter()
        self._used = 0
        self._is_done = False
        self._backwards = 0
        # How many backwards there had been when a loader, or its iterator, began to be gone through.
        self._begun: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._is_over = False
        self._lengths: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    @property
    def fetched(self) -> int:
        return self.current

    def active(self) -> int:
        """The micro-batch that something is computed from."""
        in_hand = max(self._given.values(), default=0)
        if self._fresh or (self._is_done and self._used < in_hand):
            self._used = 0 if self._fresh else self._used
            self._fresh = False
            self.current += 1
        self._is_done = False
        return self.current

    def backward(self) -> None:
        if not self.fetches:
            self._turn()
        self.active()
        self._backwards += 1

    def backwarded(self) -> None:
        self._used += 1
        self._is_done = True
        # Without a loader, every backward is a micro-batch.
        self._fresh = self._fresh or not self.fetches

    def begin(self, loader: Any = None) -> None:
        """A loader is begun, or the script is over: what was trained on before it was an epoch."""
        if self._is_over or self._has_trained(loader):
            self._is_over = False
            # Of other loaders too, this epoch is over.
            for other in list(self._begun):
                self._begun[other] = self._backwards
            self._epoch()

    def end(self) -> None:
        self._is_over = self._is_over or any(map(self._has_trained, list(self._begun)))
        self.begin()

    def _has_trained(self, loader: Any) -> bool:
        """Whether something went backward since a loader or iterator was begun."""
        return loader is not None and self._begun.get(loader, self._backwards) < self._backwards

    def length(self) -> int:
        """How many micro-batches an epoch has of the loader that is trained on, 0 where that is not known."""
        trained = (n for loader, n in list(self._lengths.items()) if self._has_trained(loader))
        return max(trained, default=0)

    def watch(self, patch: Patch) -> None:
        """Counts what every DataLoader gives, which is loaded in this process."""
        feed = self
        build, begin = DataLoader.__init__, DataLoader.__iter__
        following = dataloader._BaseDataLoaderIter.__next__

        def building(self: Any, *args: Any, **kwargs: Any) -> None:
            names = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers")
            named = {**dict(zip(names, args, strict=False)), **kwargs}
            if len(args) <= len(names):
                args, kwargs = (), named
                kwargs.update(num_workers=0, timeout=0)
                for name in ("persistent_workers", "prefetch_factor", "multiprocessing_context"):
                    kwargs.pop(name, None)
                if not torch.cuda.is_available():
                    kwargs.pop("pin_memory", None)
            build(self, *args, **kwargs)

        def beginning(self: Any) -> Any:
            feed.begin(self)
            found = begin(self)
            feed._begun[self] = feed._begun[found] = feed._backwards
            with suppress(TypeError, NotImplementedError):
                feed._lengths[self] = len(self)
            return found

        def fetching(self: Any) -> Any:
            feed._turn()
            if not feed._fresh:
                feed._given.clear()
            # Also where it ends: what was read ahead is another micro-batch.
            feed._fresh = True
            try:
                found = following(self)
            except StopIteration:
                feed._is_over = feed._is_over or feed._has_trained(self)
                raise
            feed._given[id(self)] += 1
            feed.fetches += 1
            return found

        patch(DataLoader, "__init__", building)
        patch(DataLoader, "__iter__", beginning)
        patch(dataloader._BaseDataLoaderIter, "__next__", fetching)
