"""Where the lines of a watch go: standard error, a function, TensorBoard or W&B."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any


class Log:
    """Takes the lines of a watch.

    A function takes each line. A `SummaryWriter` of TensorBoard and a run of W&B, which are known by their methods,
    take what was found with the number of findings, besides standard error. None is standard error alone.
    """

    def __init__(self, given: Any) -> None:
        self._line: Callable[[str], object] = given if callable(given) else to_standard_error
        self._more: Callable[[Sequence[str], Sequence[str], int], None] | None = None
        if callable(given) or given is None:
            return
        if _has(given, "add_text", "add_scalar"):
            self._more = _to_tensorboard(given)
        elif _has(given, "log", "summary"):
            self._more = _to_wandb(given)
        else:
            kind = type(given).__name__
            raise ValueError(f"log wants a function, a SummaryWriter or a run of W&B, not {kind}")

    def line(self, text: str) -> None:
        """Takes one line."""
        self._line(text)

    def lines(self, new: Sequence[str], findings: Sequence[str], updates: int) -> None:
        """Takes new lines, with all findings so far and the updates that were made."""
        for text in new:
            self._line(text)
        if self._more is not None:
            self._more(new, findings, updates)


def to_standard_error(text: str) -> None:
    """Prints a line."""
    print(f"accumlint: {text}", file=sys.stderr)


def _has(value: object, *names: str) -> bool:
    return all(hasattr(value, name) for name in names)


def _to_tensorboard(writer: Any) -> Callable[[Sequence[str], Sequence[str], int], None]:
    def write(new: Sequence[str], findings: Sequence[str], updates: int) -> None:
        if new:
            # Markdown, where a code block keeps names such as __init__.
            writer.add_text("accumlint", "\n".join(f"    {text}" for text in new), updates)
        writer.add_scalar("accumlint/findings", len(findings), updates)

    return write


def _to_wandb(run: Any) -> Callable[[Sequence[str], Sequence[str], int], None]:
    def write(new: Sequence[str], findings: Sequence[str], updates: int) -> None:
        # The user's next `log` commits it, so that the run's steps stay the user's.
        run.log({"accumlint/findings": len(findings)}, commit=False)
        run.summary["accumlint/found"] = "\n".join(findings)

    return write
