"""The recorder of this process, if torch is observed."""

from __future__ import annotations

from accumlint.runtime.child.recorder import Recorder

# At most one: torch is observed once per process.
RECORDERS: list[Recorder] = []


def recorder() -> Recorder | None:
    """The recorder of this process, None for none."""
    return RECORDERS[0] if RECORDERS else None
