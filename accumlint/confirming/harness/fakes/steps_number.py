"""Accumulation steps as a number type, recognised where they are passed to a fake."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from accumlint.reading import names


class Share(float):
    """A micro-batch's share of a window, 1 / steps."""


class Steps(int):
    """The accumulation steps."""

    def __rtruediv__(self, other: Any) -> Any:
        share = super().__rtruediv__(other)
        return Share(share) if isinstance(share, float) else share


def passes_steps(arguments: Iterable[object], named: Mapping[str, object]) -> bool:
    """Whether arguments contain the window size, by which the callee may divide."""
    contains_steps = any(
        isinstance(value, Steps | Share) for value in (*arguments, *named.values())
    )
    return contains_steps or any(names.is_steps(word) for word in named)
