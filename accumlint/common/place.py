"""Where something stands in a file."""

from __future__ import annotations

from accumlint.common.frozen import frozen


@frozen
class Place:
    """1-based lines and columns, the end exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int

    def is_within(self, other: Place) -> bool:
        """True when all of it stands in another one."""
        begins = (other.line, other.column) <= (self.line, self.column)
        return begins and (self.end_line, self.end_column) <= (other.end_line, other.end_column)
