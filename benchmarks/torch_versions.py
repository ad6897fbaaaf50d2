"""Runs `confirm` on the sample under several installations of torch, and compares the verdicts.

    python benchmarks/torch_versions.py ~/torch-2.3/bin/python ~/torch-2.15/bin/python

Each interpreter has accumlint and its torch installed. The exit code is 1 where one of them gives other verdicts than
the first, or none.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SAMPLE = ("fixtures/sample",)


def verdicts(python: str, paths: tuple[str, ...]) -> tuple[list[str], str]:
    """What `confirm` says under an interpreter, a line for each finding, and its last line of errors."""
    done = subprocess.run(
        (python, "-m", "accumlint", "confirm", *paths, "--output-format", "json"),
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    found: list[dict[str, Any]] = json.loads(done.stdout or "[]")
    said = done.stderr.strip().splitlines()
    lines = [
        f"{one['filename']}:{one['location']['row']} {one['code']} {one['verdict']}"
        for one in found
    ]
    return lines, said[-1] if said else ""


def version(python: str) -> str:
    told = subprocess.run(
        (python, "-c", "import sys, torch; print(torch.__version__, sys.version.split()[0])"),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return told.stdout.strip() or "no torch"


def main(pythons: list[str]) -> int:
    """Prints what each interpreter says and how long it takes."""
    first: list[str] | None = None
    wrong = 0
    for python in pythons or [sys.executable]:
        begun = time.monotonic()
        found, said = verdicts(python, SAMPLE)
        first = found if first is None else first
        same = bool(found) and found == first
        wrong |= not same
        print(f"torch, Python {version(python)}: {time.monotonic() - begun:.0f} s")
        for line in found or [said]:
            print(f"  {line}")
    return int(wrong)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
