"""Tells on a terminal how far a long run is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO, TypeVar

_Item = TypeVar("_Item")

# Short runs say nothing, and nobody reads more than a few numbers a second.
_PATIENCE = 2.0
_PAUSE = 0.2


class Progress:
    """One line, which is cleared before anything else is written and leaves no trace."""

    def __init__(
        self, stream: TextIO, visible: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stream = stream
        self.visible = visible
        self.clock = clock
        self.next = clock() + _PATIENCE
        self.drawn = False

    def through(self, items: Sequence[_Item]) -> Iterator[_Item]:
        """The items, each counted as it is taken."""
        for number, item in enumerate(items, 1):
            if self.visible and self.clock() >= self.next:
                self._write(f"\r{number} of {len(items)} files")
                self.next = self.clock() + _PAUSE
                self.drawn = True
            yield item
        self.clear()

    def clear(self) -> None:
        if self.drawn:
            self._write("\r\x1b[K")
            self.drawn = False

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()
