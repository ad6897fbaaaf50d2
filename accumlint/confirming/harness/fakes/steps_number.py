"""The accumulation steps as a number that is known again where a fake is given it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from accumlint.reading import names


class Share(float):
    """What one micro-batch is of a window."""


class Steps(int):
    """The accumulation steps."""

    def __rtruediv__(self, other: Any) -> Any:
        share = super().__rtruediv__(other)
        return Share(share) if isinstance(share, float) else share


def tells_window(given: Iterable[object], named: Mapping[str, object]) -> bool:
    """Whether arguments tell how many micro-batches a window holds: what gets them may divide by that."""
    told = any(isinstance(value, Steps | Share) for value in (*given, *named.values()))
    return told or any(names.is_steps(word) for word in named)
