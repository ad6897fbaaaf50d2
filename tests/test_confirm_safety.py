"""Loops that hang, die or reach for what is not theirs: each ends undecided, says why, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

HOSTILE = ROOT / "fixtures" / "hostile"
TRIED = "the loop tried something that the sandbox refuses at line 13: "
# Each with the reason that its finding gets.
ALONE = {
    "leaves": "the loop did not run with fakes: SystemExit at line 13 (acts.py:28): 0",
    "vanishes": "the loop ended its process, with code 3",
    "connects": f"{TRIED}connects to '192.0.2.1'",
    "looks_up": f"{TRIED}looks up 'accumlint.invalid'",
    "looks_up_and_does_not_mind": f"{TRIED}looks up 'accumlint.invalid'",
    "runs": f"{TRIED}starts a process",
    "runs_a_shell": f"{TRIED}starts a process",
    "forks": f"{TRIED}starts a process",
    "forks_behind_python": f"{TRIED}starts a process",
    "kills_its_parent": f"{TRIED}sends a signal to another process",
    "writes_home": f"{TRIED}writes to '{Path.home()}/.accumlint-left'",
    "saves_natively": f"{TRIED}writes to '{{folder}}/left'",
    "removes": f"{TRIED}changes '{{folder}}/kept'",
    "allocates": "the loop did not run with fakes: MemoryError at line 13 (acts.py:118): a rank may use 16 GiB",
    "acts_on_import": "the loop tried something that the sandbox refuses at line 4: starts a process",
}
TOGETHER = {
    "first_rank_vanishes": "rank 0 ended its process, with code 3",
    "last_rank_kills_itself": "rank 1 ended its process, by SIGKILL",
    "waits_on_one_rank": (
        "the loop did not run with fakes: RuntimeError at line 13 (acts.py:51): "
        "a rank waited in a collective for one that never entered it"
    ),
}


def project(folder: Path, act: str) -> Path:
    """A folder with a loop that uses the act, and its path."""
    made = folder / act
    shutil.copytree(HOSTILE, made)
    (made / "kept").touch()
    train = made / "train.py"
    source = train.read_text()
    named = (
        "acts_on_import import weight"
        if act == "acts_on_import"
        else f"acts import {act} as weight"
    )
    train.write_text(source.replace("acts import nothing as weight", named))
    return train


def command(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """The command, with a temporary folder and a home of the test's own."""
    temporary = folder / "temporary"
    temporary.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "accumlint", "confirm", "--output-format", "json", *arguments],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # What is started in the background by a shell would ignore an interrupt.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )


def verdicts(ran: subprocess.Popen[bytes]) -> dict[str, dict[str, Any]]:
    """What was found, by the act of its loop."""
    out, err = ran.communicate(timeout=300)
    assert ran.returncode in (0, 1, 4), err.decode()
    return {act_of(Path(one["filename"])): one for one in json.loads(out)}


def act_of(file: Path) -> str:
    return file.stem if file.stem.endswith("revision") else file.parent.name


def everything(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}


def environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def started_in(folder: Path) -> list[str]:
    """The processes that a confirmation started there: their environment names its temporary folder."""
    mark = str(folder / "temporary" / "accumlint-").encode()
    return [p.name for p in Path("/proc").glob("[0-9]*") if mark in environment(p)]


def leaves_no_process(folder: Path) -> None:
    until = time.monotonic() + 60
    while (left := started_in(folder)) and time.monotonic() < until:
        time.sleep(0.1)
    assert left == []


def leaves_nothing(folder: Path, before: set[str]) -> None:
    leaves_no_process(folder)
    assert everything(folder) == before | {str(folder / "temporary")}
    assert not (Path.home() / ".accumlint-left").exists()


def test_acts_of_a_process_alone(tmp_path: Path) -> None:
    files = [str(project(tmp_path, act)) for act in ALONE]
    before = everything(tmp_path)
    ran = command(tmp_path, *files)
    found = verdicts(ran)
    assert {act: one["reason"] for act, one in found.items()} == {
        act: reason.format(folder=tmp_path / act) for act, reason in ALONE.items()
    }
    assert {one["verdict"] for one in found.values()} == {"undecided"}
    assert ran.returncode == 4
    leaves_nothing(tmp_path, before)


@pytest.mark.long
@pytest.mark.whole
def test_acts_of_one_rank_of_two_and_what_stands_beside_them(tmp_path: Path) -> None:
    files = [str(project(tmp_path, act)) for act in TOGETHER]
    files.append(str(Path(files[0]).with_name("train_with_revision.py")))
    before = everything(tmp_path)
    # Ranks that wait in vain do so for a share of the limit.
    ran = command(
        tmp_path, *files, "--select", "ACC102", "--nproc-per-node", "2", "--timeout", "16"
    )
    found = verdicts(ran)
    assert {act: found[act]["reason"] for act in TOGETHER} == TOGETHER
    assert {found[act]["verdict"] for act in TOGETHER} == {"undecided"}
    # What shares a launch with them is answered, also where something was refused that it does not depend on.
    assert found["train_with_revision"]["verdict"] == "confirmed"
    assert found["train_with_revision"]["also"][0] == (
        "before training, the loop tried something that the sandbox refuses at line 12: starts a process; "
        "fakes took the place of what it would have given"
    )
    leaves_nothing(tmp_path, before)
    assert ran.returncode == 1


def test_a_loop_without_end(tmp_path: Path) -> None:
    file = project(tmp_path, "loops_for_ever")
    before = everything(tmp_path)
    ran = command(tmp_path, str(file), "--timeout", "4")
    found = verdicts(ran)["loops_for_ever"]
    assert found["reason"] == "the loop did not end within 4 s at line 13"
    assert found["advice"].startswith("`--timeout` gives it more time; ")
    assert (found["verdict"], ran.returncode) == ("undecided", 4)
    leaves_nothing(tmp_path, before)


def runs_its_loop(folder: Path) -> subprocess.Popen[bytes]:
    """The command on a loop that does not end, once the loop's process is there."""
    ran = command(folder, str(project(folder, "loops_for_ever")))
    until = time.monotonic() + 120
    while not list(folder.glob("temporary/*/scratch/0.0")) and time.monotonic() < until:
        time.sleep(0.1)
    assert started_in(folder)
    return ran


def test_an_interrupt(tmp_path: Path) -> None:
    ran = runs_its_loop(tmp_path)
    ran.send_signal(signal.SIGINT)
    out, _ = ran.communicate(timeout=120)
    assert (ran.returncode, out) == (130, b"")
    leaves_no_process(tmp_path)
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_command_that_is_killed(tmp_path: Path) -> None:
    ran = runs_its_loop(tmp_path)
    ran.kill()
    ran.communicate(timeout=120)
    assert ran.returncode == -signal.SIGKILL
    leaves_no_process(tmp_path)
