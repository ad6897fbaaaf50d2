"""Plain values about a finished pass: gradients of equal length, and the exception that ended it."""

from __future__ import annotations

import os
import traceback
from typing import Any

from accumlint.confirming.harness.source_files import is_of_project


def even(events: list[dict[str, Any]]) -> None:
    """Pads all gradients to the longest: parameters that appear later had no gradient before."""
    vectors = [e["applied"] for e in events if e["kind"] == "step"]
    vectors.extend(part["gradient"] for e in events for part in e.get("contributions", ()))
    longest = max(map(len, vectors), default=0)
    for vector in vectors:
        vector.extend([0.0] * (longest - len(vector)))


def _one_line(message: str) -> str:
    """The first line of a message, and the last where the first ends in an open bracket."""
    first, *_, last = message.strip().split("\n") if "\n" in message.strip() else (message, message)
    return (f"{first}…{last}" if first.endswith("(") else first)[:300]


def raising(error: BaseException, file: str, memory: float) -> dict[str, Any]:
    """The exception that ended a pass, with the user's line, and whether a GradScaler raised it."""
    kind, message = type(error).__name__, _one_line(str(error))
    if isinstance(error, MemoryError) or "can't allocate memory" in message:
        kind, message = "MemoryError", f"a rank may use {memory:g} GiB"
    elif "gloo" in message and "Timed out" in message:
        message = "a rank waited in a collective for one that never entered it"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if f.filename == file]
    beside = [f for f in frames if is_of_project(f.filename)]
    deeper = beside[-1] if beside and beside[-1].filename != file else None
    return {
        "scaler": frames[-1].filename.endswith("grad_scaler.py"),
        "kind": kind,
        "message": message,
        "line": lines[-1] if lines else 0,
        # The location in another file of the project.
        "beside": f"{os.path.basename(deeper.filename)}:{deeper.lineno}" if deeper else "",
    }
