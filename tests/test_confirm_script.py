"""`confirm --run`: findings are decided by what is observed of a user's own script, which runs as it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from helpers import ROOT, Ran

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SCRIPTS = ROOT / "fixtures" / "script"
RUN = ROOT / "fixtures" / "run"
# Scripts with their arguments, and what is said of the findings of `check` in them.
VERDICTS = {
    "clearing.py": {"ACC402": "confirmed"},
    "often.py": {"ACC202": "confirmed", "ACC508": "undecided"},
    "together.py": {"ACC302": "confirmed"},
    # How many sentences there are, two of which make a micro-batch: epochs of 22 and of 20, in windows of four.
    "train.py --sentences 44": {"ACC101": "confirmed", "ACC501": "confirmed"},
    "train.py --sentences 40": {"ACC101": "confirmed", "ACC501": "refuted"},
}
# The same of frameworks, which nothing replaces here: the package, the script, the ranks and the verdicts.
FRAMEWORKS = {
    "torch.distributed.fsdp": (
        RUN / "fsdp" / "bad_inverted.py",
        2,
        {"ACC309": "confirmed", "ACC501": "undecided"},
    ),
    "lightning": (SCRIPTS / "manual.py", 1, {"ACC606": "confirmed", "ACC501": "refuted"}),
}
# How `ends.py` ends before it has shown anything, and the reason that its finding gets.
WAYS = {
    "fails": "the script failed with exit code 1 before torch went backward or an optimizer stepped",
    "evaluates": "the script ended before torch went backward or an optimizer stepped",
    "stops short": "no optimizer stepped",
}
# A script that shows the last micro-batch's share of its loss.
SHOWN = """\
import torch

STEPS = 4
model = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(24):
    loss = torch.nn.functional.mse_loss(model(torch.randn(2, 3)), torch.randn(2, 3)) / STEPS
    loss.backward()
    if (step + 1) % STEPS == 0:
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item())
"""
# Wrong usage, and what is said of it.
MISUSES = {
    "--run": "--run wants the script behind --: accumlint confirm --run -- train.py --lr 0.1",
    "--run -- none.py": "none.py: no such script",
    "--run -- -m none": "none: no such module in this folder",
    "--run -- torchrun train.py": "behind -- comes the script itself, without torchrun",
    "--steps 4 --run -- train.py": "--steps is about fakes, and a script that is run has its own",
    "--fixed --run -- train.py": "--fixed is about fakes, and a script that is run has its own",
}


Confirm = Callable[..., Ran]


@pytest.fixture
def confirm(run: Run, monkeypatch: pytest.MonkeyPatch) -> Confirm:
    """The command in a folder; the scripts that it runs have processes of their own."""
    # Threads that wait for each other make a busy machine slower.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("COLUMNS", "100")

    def confirm(folder: Path, *arguments: str) -> Ran:
        monkeypatch.chdir(folder)
        return run("confirm", "--isolated", *arguments)

    return confirm


def verdicts(done: Ran) -> dict[str, dict[str, Any]]:
    """What was found, by code."""
    assert done.out, done.err
    return {one["code"]: one for one in json.loads(done.out)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of its own with the scripts."""
    return Path(shutil.copytree(SCRIPTS, tmp_path / "project"))


# Each starts a script of its own; CI asks for all.
SOME = {"together.py", "train.py --sentences 44", "lightning", "fails"}


def some(table: Iterable[str]) -> list[Any]:
    """The keys of a table, of which CI alone asks for those that are not named above."""
    return [pytest.param(key, marks=() if key in SOME else pytest.mark.whole) for key in table]


@pytest.mark.parametrize("typed", some(VERDICTS))
def test_a_script_decides_its_findings(typed: str, folder: Path, confirm: Confirm) -> None:
    done = confirm(folder, "--output-format", "json", "--run", "--", *typed.split())
    found = verdicts(done)
    assert {code: one["verdict"] for code, one in found.items()} == VERDICTS[typed]
    assert done.code == 1
    assert "as it is and without a sandbox" in done.err
    assert all(one["reason"] for one in found.values())


@pytest.mark.parametrize("package", some(FRAMEWORKS))
def test_frameworks_run_as_they_are(package: str, tmp_path: Path, confirm: Confirm) -> None:
    pytest.importorskip(package)
    script, ranks, told = FRAMEWORKS[package]
    shutil.copy(script, tmp_path / "train.py")
    asked = ("--output-format", "json", "--nproc-per-node", str(ranks), "--run", "--", "train.py")
    found = verdicts(confirm(tmp_path, *asked))
    assert {code: one["verdict"] for code, one in found.items()} == told


def test_what_no_run_tells_is_not_asked_of_one(folder: Path, confirm: Confirm) -> None:
    (folder / "shown.py").write_text(SHOWN)
    one = verdicts(confirm(folder, "--output-format", "json", "--run", "--", "shown.py"))["ACC702"]
    assert (one["verdict"], one["reason"]) == (
        "undecided",
        "no run tells what a figure that is shown is meant to be",
    )


@pytest.mark.parametrize("way", some(WAYS))
def test_a_script_that_does_not_come_to_train(way: str, folder: Path, confirm: Confirm) -> None:
    done = confirm(folder, "--output-format", "json", "--run", "--", "ends.py", way)
    one = verdicts(done)["ACC102"]
    assert (one["verdict"], one["reason"], done.code) == ("undecided", WAYS[way], 4)


def test_a_line_is_asked_about_alone(folder: Path, confirm: Confirm) -> None:
    done = confirm(folder, "train.py:40", "--run", "--", "train.py", "--sentences", "44")
    assert "ACC101 mean-loss-not-normalised-by-tokens  confirmed" in done.out
    assert done.out.endswith("1 confirmed\n")


def test_a_script_without_a_finding_is_not_run(folder: Path, confirm: Confirm) -> None:
    done = confirm(folder, "--run", "--", "mended.py", "--sentences", "44")
    assert (done.code, done.out) == (0, "")
    assert done.err == "accumlint: no finding there, so nothing was run\n"


@pytest.mark.parametrize("typed", MISUSES)
def test_wrong_usage_is_told_in_a_line(typed: str, folder: Path, confirm: Confirm) -> None:
    done = confirm(folder, *typed.split())
    assert (done.code, done.out) == (2, "")
    assert done.err == f"accumlint: {MISUSES[typed]}\n"
