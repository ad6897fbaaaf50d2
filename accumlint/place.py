"""Where something stands in a file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """1-based lines and columns, the end exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int
