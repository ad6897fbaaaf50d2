"""Looks up in the installed frameworks what the contracts of `frameworks` and `hooks` in `accumlint.reading` say.

`python benchmarks/hooks.py`, in an environment with lightning, transformers and trl. Nothing of them is imported. It
ends with 1 where a line that a contract rests on is gone.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from accumlint.reading.frameworks import CONTRACTS, Contract
from accumlint.reading.hooks import HOOKS, Hook

ROWS = (*(row for row in CONTRACTS.values() if row.source), *HOOKS)


def source(row: Contract | Hook) -> Path | None:
    """The file that a contract was read in, None where its framework is not installed."""
    package, _, rest = row.source.partition("/")
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    return Path(folders[0], rest) if folders else None


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "?"


def missing(row: Contract | Hook) -> list[str] | None:
    """The lines that are gone from the file where they were read, None where the framework is not installed."""
    file = source(row)
    if file is None:
        return None
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return [line for line in row.written if line not in text]


def main() -> int:
    gone = 0
    for row in ROWS:
        lines, package = missing(row), row.source.partition("/")[0]
        state = "not installed"
        if lines is not None:
            gone += len(lines)
            found = f"gone: {', '.join(lines)}" if lines else "as read"
            state = f"{found} in {installed(package)}"
        print(f"{row.framework} ({row.version}): {state}, {row.source}")
    return 1 if gone else 0


if __name__ == "__main__":
    sys.exit(main())
