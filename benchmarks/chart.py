"""Draws bars as an SVG picture that reads on light and dark pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log10

_LEFT, _WIDTH, _ROW = 150, 440, 22
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#444}.t{font-weight:600}.b{fill:#8a94a6}.o{fill:#2f6fde}"
    "@media(prefers-color-scheme:dark){text{fill:#ccc}.b{fill:#6b7485}.o{fill:#6ea0ff}}"
)


@dataclass(frozen=True)
class Bar:
    name: str
    seconds: float


def chart(title: str, groups: Mapping[str, Sequence[Bar]]) -> str:
    """A bar for each, in groups, on a logarithmic scale from a hundredth of a second."""
    longest = max(bar.seconds for bars in groups.values() for bar in bars)
    parts: list[str] = []
    y = 24
    for group, bars in groups.items():
        parts.append(f'<text class="t" x="0" y="{y + 16}">{escape(group)}</text>')
        y += _ROW + 4
        for bar in bars:
            width = max(2.0, _WIDTH * log10(bar.seconds / 0.01) / log10(longest / 0.01))
            kind = "o" if bar.name.startswith("accumlint") else "b"
            parts.append(
                f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(bar.name)}</text>'
            )
            parts.append(
                f'<rect class="{kind}" x="{_LEFT}" y="{y + 2}" width="{width:.0f}" height="16" rx="2"/>'
            )
            parts.append(
                f'<text x="{_LEFT + width + 6:.0f}" y="{y + 14}">{bar.seconds:.2g} s</text>'
            )
            y += _ROW
        y += 10
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 80} {y}" role="img">'
    named = f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    parts.insert(0, f'<text class="t" x="0" y="14">{escape(title)}, logarithmic</text>')
    return f"{head}\n{named}\n" + "\n".join(parts) + "\n</svg>\n"
