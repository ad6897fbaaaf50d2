"""Looks up in the installed frameworks what the contracts of `accumlint.reading.hooks` say that their trainers do.

`python benchmarks/hooks.py`, in an environment with lightning, transformers and trl. Nothing of them is imported. It
ends with 1 where a line that a contract rests on is gone.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from accumlint.reading.hooks import HOOKS, Hook


def source(hook: Hook) -> Path | None:
    """The file that a contract was read in, None where its framework is not installed."""
    package, _, rest = hook.source.partition("/")
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    return Path(folders[0], rest) if folders else None


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "?"


def main() -> int:
    gone = 0
    for hook in HOOKS:
        file = source(hook)
        told = f"{hook.framework} {hook.method} ({hook.version})"
        if file is None:
            print(f"{told}: not installed")
            continue
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        missing = [line for line in hook.written if line not in text]
        gone += len(missing)
        state = f"gone: {', '.join(missing)}" if missing else "as read"
        print(f"{told}: {state} in {installed(hook.framework)}, {hook.source}")
    return 1 if gone else 0


if __name__ == "__main__":
    sys.exit(main())
