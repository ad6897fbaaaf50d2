"""What examples of defects say about themselves: the lines that they mark, and the blocks of a rule's page."""

from __future__ import annotations

import re

# The paragraphs of a rule's page.
ORDER = ("Bad:", "Good:", "When the fix is not offered:", "Measured", "See:")

_MARKER = re.compile(r"# error: ([A-Z]+[0-9]+(?:\s*,\s*[A-Z]+[0-9]+)*)\s*$")
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def markers(source: str) -> set[tuple[int, str]]:
    """Line and code of each finding that the source says is to be expected: `# error: ACC101` at a line's end."""
    return {
        (number, code.strip())
        for number, line in enumerate(source.splitlines(), 1)
        if (match := _MARKER.search(line))
        for code in match[1].split(",")
    }


def blocks(page: str, heading: str) -> list[str]:
    """The Python blocks of a page between a heading and the next; none where it has no such heading."""
    start = page.find(f"\n{heading}\n")
    ends = [page.find(f"\n{other}", start + 1) for other in ORDER]
    end = min((end for end in ends if end > start), default=len(page))
    return _BLOCK.findall(page[start:end]) if start >= 0 else []
