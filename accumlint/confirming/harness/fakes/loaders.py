"""A loader of generated micro-batches, and the attributes that fakes do not define."""
# pyright: reportPrivateUsage=false, reportIncompatibleVariableOverride=false

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from accumlint.confirming.harness.fakes.batches import Data
from accumlint.confirming.harness.source_files import is_library


class Loader(DataLoader[Any]):
    """A real `DataLoader` over generated micro-batches; used as an iterator, it restarts at its end."""

    def __init__(self, data: Data, copies: int) -> None:
        super().__init__(**feeding(data, copies))
        self.data_ = data
        self.endless_: Iterator[Any] | None = None
        # Its length under the name that wrappers of streams use.
        self.num_batches = len(self)

    def __next__(self) -> Any:
        while True:
            self.endless_ = self.endless_ or iter(self)
            try:
                return next(self.endless_)
            except StopIteration:
                self.endless_ = None

    def __getitem__(self, key: Any) -> Any:
        """A split of the data, by name or slice, is the loader itself; an index gives a micro-batch."""
        if isinstance(key, str | slice):
            return self
        return self.data_.fetch().use()

    def __call__(self, *_: Any, **__: Any) -> Loader:
        """Itself, where the source calls a method for its data."""
        return self

    def __getattr__(self, name: str) -> Any:
        return unknown_attribute(self, name, self.data_.unknown)


def feeding(data: Data, copies: int) -> dict[str, Any]:
    """The arguments of a `DataLoader` over generated micro-batches."""
    # DataLoader accepts any sequence as a dataset.
    return {"dataset": range(data.length * copies), "batch_size": 1, "collate_fn": data.feed}


def unknown_attribute(owner: object, name: str, unknown: Callable[[str], Any]) -> Any:
    """An attribute of the user's class that a fake does not define; libraries that probe for it get none."""
    if re.match(r"_|is_|has_", name) or is_library(sys._getframe(2)):
        raise AttributeError(name)
    return unknown(f"{type(owner).__name__.lower()}.{name}")
