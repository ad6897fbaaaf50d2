"""What kept a file from being checked, or is worth knowing about the run."""

from __future__ import annotations

from enum import IntEnum

from accumlint.common.frozen import frozen


class Kind(IntEnum):
    """How grave a problem is; the value is the exit code that it asks for."""

    WARNING = 0
    UNREADABLE = 2
    FAULT = 3


@frozen
class Problem:
    """One line for stderr. `traceback` is set where the fault is ours."""

    path: str
    message: str
    kind: Kind = Kind.UNREADABLE
    line: int | None = None
    traceback: str = ""


class Misuse(Exception):
    """What the user can mend, told in one line."""
