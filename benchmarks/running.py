"""Runs commands and says what they cost."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass


class Failed(Exception):
    """A command could not be run, or broke down."""


@dataclass(frozen=True)
class Cost:
    """CPU and wall seconds of a command with all its processes, and the peak memory of its largest one, in MB."""

    cpu: float
    wall: float
    peak: float


def measured(command: Sequence[str]) -> Cost:
    """What a command costs; what it found does not matter."""
    # Installed tools keep their bytecode: without it, a process compiles all that it imports each time.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile() as said:
        start = time.perf_counter()
        try:
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=said, env=environment
            )
        except OSError as problem:
            raise Failed(f"{command[0]}: {problem.strerror}; see --help") from None
        _, _, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        said.seek(0)
        errors = said.read().decode(errors="replace")
    if "Traceback (most recent call last)" in errors:
        raise Failed(f"{shlex.join(command)} failed:\n{errors[-1000:]}")
    return Cost(used.ru_utime + used.ru_stime, wall, used.ru_maxrss / 1024)
