"""Takes out of a cell what is no Python: magics, shell commands and requests for help."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence

# Cell magics whose cell is Python all the same.
_PYTHON_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun")
_MAGIC = re.compile(r"\s*(?:[%!?]|.*\?\s*$)")
_ASSIGNED = re.compile(r"(\s*[\w.,\s\[\]]+=\s*)[%!]")


def plain(rows: Sequence[str]) -> list[str]:
    """The lines of a cell with what is no Python taken out; a line stays a line."""
    left = list(rows)
    head = next((index for index, row in enumerate(rows) if row.strip()), 0)
    if rows[head].startswith("%%"):
        if rows[head].split()[0] not in _PYTHON_CELLS:
            return [""] * len(rows)
        left[head] = ""
    # What Python can read is no magic: `%` may begin a line of a long expression.
    while (wrong := _first_wrong(left)) is not None:
        row = left[wrong]
        if match := _ASSIGNED.match(row):
            left[wrong] = f"{match[1]}None"
        elif _MAGIC.match(row):
            left[wrong] = row[: len(row) - len(row.lstrip())] + "pass"
        else:
            break
        while row.endswith("\\") and wrong + 1 < len(left):
            wrong += 1
            row = left[wrong]
            left[wrong] = ""
    return left


def _first_wrong(rows: Sequence[str]) -> int | None:
    """The line of the first syntax error, from 0."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse("\n".join(rows))
    except SyntaxError as problem:
        return min(max((problem.lineno or 1) - 1, 0), len(rows) - 1)
    except (ValueError, RecursionError, MemoryError):
        return None
    return None
