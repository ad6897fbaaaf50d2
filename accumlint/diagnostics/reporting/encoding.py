"""JSON that any reader takes and no terminal obeys."""

from __future__ import annotations

import re

# All that is not printable ASCII, and the bracket that would open a command in the logs of some CI systems.
_RISKY = re.compile(r"[^\n -~]|(?<=##)\[|(?<=##vso)\[")


def dumped(value: object, indent: int | None = None) -> str:
    """JSON in printable ASCII. Halves of characters, which many readers refuse, become U+FFFD."""
    import json

    return _RISKY.sub(_escaped, json.dumps(value, indent=indent, ensure_ascii=False))


def _escaped(match: re.Match[str]) -> str:
    if "\ud800" <= match[0] <= "\udfff":
        return r"\ufffd"
    # An astral character takes two escapes.
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
