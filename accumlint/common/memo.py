"""Answers about the files around a checked one, each with the paths that it rests on."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Memory:
    """Answers that are worked out once.

    `read` and `met` are the paths that were read, and those of which it was asked whether they exist, for all answers
    given since `forget_paths`: also for answers that were known before.
    """

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.met: set[str] = set()
        self._known: dict[Hashable, tuple[Any, frozenset[str], frozenset[str]]] = {}

    def forget_paths(self) -> None:
        """Begins to collect paths afresh; the answers stay."""
        self.read, self.met = set(), set()

    def knows(self, question: Hashable) -> bool:
        """True when a question was answered already."""
        return question in self._known

    def once(self, question: Hashable, work: Callable[[], T], meanwhile: T) -> T:
        """The answer to a question; `meanwhile` where working it out leads back to the question itself."""
        if question not in self._known:
            outer = self.read, self.met
            self.forget_paths()
            self._known[question] = meanwhile, frozenset(), frozenset()
            try:
                answer = work()
            except BaseException:
                del self._known[question]
                raise
            self._known[question] = answer, frozenset(self.read), frozenset(self.met)
            self.read, self.met = outer
        answer, read, met = self._known[question]
        self.read |= read
        self.met |= met
        return answer
