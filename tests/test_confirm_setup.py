"""Set-up files: what cannot be made up is asked for by name, and what is given is used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TRAIN = ROOT / "fixtures" / "setup" / "train.py"
OBJECTS = ROOT / "fixtures" / "setup" / "objects.py"
# Set-up files that are not usable, with the reason that the finding gets.
WRONG = {
    "loss = None": "the set-up file defines no 'setup'",
    "def setup(rank, world, device): return 1": "`setup` in the set-up file returns no dictionary",
    "def setup(rank, world, device): return {'rank_loss': ...}": "the set-up file leaves `rank_loss` open",
    "def setup(rank, world, device): return missing": (
        "the set-up file raised NameError: name 'missing' is not defined"
    ),
}


def confirmed(*arguments: str) -> dict[str, Any]:
    """The only confirmation of the loop that wants a set-up file."""
    command = [sys.executable, "-m", "accumlint", "confirm", "--isolated", "--select", "ACC102"]
    ran = subprocess.run(
        [*command, "--output-format", "json", str(TRAIN), *arguments],
        capture_output=True,
        check=False,
    )
    (found,) = json.loads(ran.stdout)
    return found


def test_what_cannot_be_made_up_is_asked_for_by_name() -> None:
    found = confirmed()
    assert found["verdict"] == "undecided"
    assert '"ranking.rank_loss": ...,  # read at line ' in found["setup"]
    assert "Without them: " in found["setup"]
    compile(found["setup"], "setup.py", "exec")


def test_what_is_given_is_used() -> None:
    found = confirmed("--setup", str(OBJECTS))
    assert found["verdict"] == "confirmed"
    assert found["measured"]["factor"] == "K"
    assert "`rank_loss`: as the set-up file gives it" in found["standins"]
    assert found["setup"] is None


@pytest.mark.parametrize("text", WRONG)
def test_a_set_up_file_that_gives_nothing_says_why(text: str, tmp_path: Path) -> None:
    (tmp_path / "objects.py").write_text(text)
    found = confirmed("--setup", str(tmp_path / "objects.py"))
    assert (found["verdict"], found["reason"]) == ("undecided", WRONG[text])
