"""How much work a file may take, counted in steps, so that its findings depend on no machine and on no moment."""

from __future__ import annotations

import time

from accumlint.common.memo import SECONDS

# Expressions that are executed while a file's loops are followed and its fixes are tried, and an event for a few: three
# seconds, or four.
STEPS = 240_000
STEPS_OF_EVENT = 8
# What asking all rules once more about an event takes.
STEPS_OF_JUDGED = 4
# What one file may take that uses the checked one.
STEPS_OF_CALLER = STEPS // 2
# A contribution that an event tells of.
STEPS_OF_TOLD = 1
# A node of the file of which has to be found out what it is used as, and whether it matters.
STEPS_OF_NODE = 2
# A function whose loops are looked for.
STEPS_OF_WALK = 4
# What beginning a run takes, and asking the rules about it.
STEPS_OF_RUN = 200
# A character that has to be read once more, by libcst, before a fix is made.
STEPS_OF_CHARACTER = 2
# In the time of a step so many nodes of a program are edited, so many of those that a run and the rules pass over, and
# so many contributions of a ledger are looked at.
NODES_OF_STEP = 4
NODES_OF_RUN = 32
LOOKS_OF_STEP = 16

SPENT = "too many steps in this file"
CALLERS = "too many steps in the files that use it"
LATE = f"{SECONDS:.0f} seconds of the processor are over"


class Budget:
    """What is left of a file's work. `steps` and `seconds` are what there is of it."""

    def __init__(self, steps: int = STEPS, seconds: float = SECONDS) -> None:
        self.steps = self.left = steps
        self._until = time.process_time() + seconds
        # Why some work was not done, "" as long as all was.
        self.stopped = ""

    @property
    def spent(self) -> int:
        return self.steps - self.left

    def spend(self, steps: int) -> None:
        """Counts work that is done, or has to be done whatever is left."""
        self.left -= steps

    def is_over(self, needed: int = 0) -> bool:
        """True when the next piece of work, of so many steps, must not begin; then `stopped` tells why."""
        if self.left < needed:
            self.stopped = self.stopped or SPENT
        elif self.is_late():
            self.stopped = self.stopped or LATE
        return bool(self.stopped)

    def is_late(self) -> bool:
        return time.process_time() > self._until
