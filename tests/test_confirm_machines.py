"""Several machines: the same command on each, and the results on the first."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys

import pytest
from helpers import ROOT

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

FILE = ROOT / "fixtures" / "acc302" / "bad_tests_other_index.py"


def free_port() -> int:
    """A port that is free, of those that no other test is given by the system."""
    for port in range(20000 + os.getpid() % 10000, 32000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    pytest.fail("no port is free")


def test_two_machines_are_one_world() -> None:
    meeting = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]  # fmt: skip
    machines = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "accumlint", "confirm", str(FILE), "--isolated"),
                *("--output-format", "json", *meeting, "--node-rank", str(number)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in (0, 1)
    ]
    (first, _), (second, told) = (machine.communicate(timeout=300) for machine in machines)
    assert [machine.returncode for machine in machines] == [1, 0]
    (found,) = json.loads(first)
    assert found["verdict"] == "confirmed"
    assert {one["ranks"] for one in found["passes"]} == {2}
    assert second == b""
    assert told.decode().endswith("accumlint: the first machine has the results\n")
