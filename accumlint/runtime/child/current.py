"""The recorder of this process, where torch is observed."""

from __future__ import annotations

from accumlint.runtime.child.recorder import Recorder

# One at most: torch is observed once in a process.
RECORDERS: list[Recorder] = []


def recorder() -> Recorder | None:
    """What records in this process, None where nothing does."""
    return RECORDERS[0] if RECORDERS else None
