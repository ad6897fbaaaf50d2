"""The commands behind the figures on hostile files run, and notice what they look for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers import LOOP

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
COMMANDS = {
    "hostile.py --size 0.01 --only quotes": "1 kinds, 0 of them past 10 s or with a fault",
    "fuzz.py --count 3": "3 programs with seed 26: 0 faults or past 5 s",
    "everything.py --all tree": "1 files: 0 crashes, hangs and wrong ends",
    "fixes.py --diffs 1 tree": "1 folders, 1 files, 1 findings: 0 safe fixes, 1 unsafe",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(tmp_path: Path, command: str) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "train.py").write_text(LOOP)
    name, *arguments = command.split()
    ran = subprocess.run(
        [sys.executable, BENCHMARKS / name, *arguments],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert COMMANDS[command] in ran.stdout, ran.stderr
    assert ran.returncode == 0
