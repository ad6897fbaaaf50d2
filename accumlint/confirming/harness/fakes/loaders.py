"""A loader of micro-batches made on the spot, and what fakes give for attributes that they do not have."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false, reportIncompatibleVariableOverride=false
# torch's own annotations are partial.

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from accumlint.confirming.harness.fakes.batches import Data
from accumlint.confirming.harness.source_files import is_library


class Loader(DataLoader[Any]):
    """A real `DataLoader` over micro-batches made on the spot; as an iterator, it starts again at its end."""

    def __init__(self, data: Data, copies: int) -> None:
        # torch's type wants a Dataset; it takes whatever has a length and items.
        super().__init__(range(data.length * copies), batch_size=1, collate_fn=data.feed)  # pyright: ignore[reportArgumentType]
        self.data_ = data
        self.endless_: Iterator[Any] | None = None
        # Its length, as what wraps a stream calls it.
        self.num_batches = len(self)

    def __next__(self) -> Any:
        while True:
            self.endless_ = self.endless_ or iter(self)
            try:
                return next(self.endless_)
            except StopIteration:
                self.endless_ = None

    def __getitem__(self, key: Any) -> Any:
        """A part of the data by its name, or several places, is the data; by its place, it is a micro-batch."""
        if isinstance(key, str | slice):
            return self
        return self.data_.fetch().use()

    def __call__(self, *_: Any, **__: Any) -> Loader:
        """Itself, where what gives micro-batches is a method."""
        return self

    def __getattr__(self, name: str) -> Any:
        return unknown_attribute(self, name, self.data_.unknown)


def unknown_attribute(owner: object, name: str, unknown: Callable[[str], Any]) -> Any:
    """An attribute of the user's class that a fake does not have; libraries, which ask what there is, get none."""
    if re.match(r"_|is_|has_", name) or is_library(sys._getframe(2)):
        raise AttributeError(name)
    return unknown(f"{type(owner).__name__.lower()}.{name}")
