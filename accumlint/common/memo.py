"""Answers about the files around a checked one, each with the paths that it rests on and the work that it takes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Set
from typing import Any, TypeAlias, TypeVar

from accumlint.common.frozen import frozen

T = TypeVar("T")

# For one checked file so many words and signs of code are read in others; what else is done there is measured by them,
# at five microseconds each.
MOST = 640_000

# Work by the file and what is done there, with what it costs.
_Work: TypeAlias = "tuple[tuple[str, Hashable], int]"

# The last resort for work on a file that is not counted, in seconds of the processor.
SECONDS = 30.0


class Overspent(BaseException):
    """A file needs more work in others than it may cause. No answer is kept that this cuts short.

    It derives from `BaseException` since no rule and no reader may take it for a fault of its own.
    """


@frozen
class _Answer:
    value: Any
    read: frozenset[str]
    met: frozenset[str]
    work: frozenset[_Work]


class Memory:
    """Answers that are worked out once.

    `read` and `met` are the paths that were read, and those of which it was asked whether they exist, for all answers
    given since `begin`: also for answers that were known before. In the same way the work behind these answers is
    added up. Past `most`, `afford` refuses further work where `refusing`, and raises `Overspent` where others share
    the answers: one that was cut short would depend on what was asked before it.
    """

    def __init__(self, most: int = MOST, *, refusing: bool = False) -> None:
        self.read: set[str] = set()
        self.met: set[str] = set()
        # What was refused first, "" as long as nothing was.
        self.refused = ""
        self._most, self._refusing = most, refusing
        self._own: str | None = None
        self._spent = 0
        self._done: set[_Work] = set()
        self._work: set[_Work] = set()
        self._known: dict[Hashable, _Answer] = {}

    def begin(self, own: str = "") -> None:
        """Begins to collect paths and work afresh, for the file `own`, whose text costs nothing; the answers stay."""
        self.read, self.met, self._work = set(), set(), set()
        self._own, self._spent, self._done = own, 0, set()

    def knows(self, question: Hashable) -> bool:
        """True when a question was answered already."""
        return question in self._known

    def once(self, question: Hashable, work: Callable[[], T], meanwhile: T) -> T:
        """The answer to a question; `meanwhile` where working it out leads back to the question itself.

        Raises:
            Overspent: when the work behind it is more than one file may cause.
        """
        if question not in self._known:
            outer = self.read, self.met, self._work
            self.read, self.met, self._work = set(), set(), set()
            self._known[question] = _Answer(meanwhile, frozenset(), frozenset(), frozenset())
            try:
                answer = work()
            except BaseException:
                del self._known[question]
                # Who is told that it was too much depends on all that was read until then.
                self._take(*outer)
                raise
            self._known[question] = _Answer(
                answer, frozenset(self.read), frozenset(self.met), frozenset(self._work)
            )
            self.read, self.met, self._work = outer
        known = self._known[question]
        self._take(known.read, known.met, known.work)
        self._count(known.work)
        return known.value

    def afford(self, path: str, what: Hashable, cost: int) -> bool:
        """Notes work in the file `path`; False where it must not be done.

        Raises:
            Overspent: instead, where answers are shared.
        """
        over = bool(self.refused) or self._spent + cost > self._most
        if self._refusing and over and path != self._own:
            self.refused = self.refused or path
            return False
        work = frozenset({((path, what), cost)})
        self._work |= work
        self._count(work)
        return True

    def _take(self, read: Set[str], met: Set[str], work: Set[_Work]) -> None:
        self.read |= read
        self.met |= met
        self._work |= work

    def _count(self, work: Set[_Work]) -> None:
        new = work - self._done
        if not new:
            return
        self._done |= new
        self._spent += sum(cost for (path, _), cost in new if path != self._own)
        # Before work on a file has begun, nothing says whose budget it is.
        if self._own is not None and self._spent > self._most and not self._refusing:
            raise Overspent
