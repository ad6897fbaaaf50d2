"""The second door of `confirm`: a user's own script is run with its own data, and each way to end is told in a line."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from helpers import ROOT

pytest.importorskip("torch")
from torch.utils.data import DataLoader

from accumlint.confirming.user_script_measurement import concerned

pytestmark = pytest.mark.torch
Back: TypeAlias = "Callable[[], None]"

SCRIPTS = ROOT / "fixtures" / "script"
# How `ends.py` ends before it comes to its loop, and the reason that its finding gets.
WAYS = {
    "fails": (
        "the script failed before its first update, with FileNotFoundError at line 30: "
        "[Errno 2] No such file or directory: '{folder}/data.bin'"
    ),
    "leaves": "the script left with code 1 before its first update: no data to train on",
    "writes": (
        "the script tried something that the sandbox refuses at line 38: "
        "writes to '{folder}/left'; --allow writes would let it"
    ),
    "evaluates": "line 18 was not reached: the script ended after 0 updates",
    "stops short": "the script ended after 3 micro-batches, before its first update",
    "is interrupted": "the script failed before its first update, with KeyboardInterrupt at line 46",
    "wants too much": (
        "the script needs more memory at line 48 than a rank may use; `--memory` gives each rank more"
    ),
}
# Scripts for the kinds of claim, and the verdicts on their findings; those that are run mended too are refuted then.
CLAIMS = {
    "clearing": {"ACC402": "confirmed"},
    "infinite --fixed": {"ACC207": "confirmed"},
    "kept": {"ACC209": "confirmed"},
    "often --fixed": {"ACC202": "confirmed", "ACC508": "confirmed"},
    "sharded": {"ACC309": "parameters are sharded over ranks, whose gradients are not compared"},
    "skipping": {"ACC408": "confirmed"},
}
# How many sentences `train.py` has, two of which make a micro-batch, and what is said of the windows at an epoch's end.
EPOCHS = {
    "44": "micro-batches 21/22 go backward and leak into update 6 of the next epoch",
    "40": "an epoch of this data holds 20 micro-batches, which makes whole windows, so nothing could be left",
    "400": (
        "no epoch ended within 2 updates; an epoch has 200 micro-batches, and --windows 51 lets its end be seen"
    ),
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
    "--steps 4 --run -- train.py": "--steps is about stand-ins, and a script that is run has its own",
    "--allow writes train.py": "--allow is for scripts: it wants --run",
}


def ran(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    temporary = folder / "temporary"
    temporary.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-m", "accumlint", "confirm", "--isolated", *arguments],
        cwd=folder,
        # Threads that wait for each other make a busy machine slower.
        env={**os.environ, "TMPDIR": str(temporary), "COLUMNS": "100", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def verdicts(done: subprocess.CompletedProcess[str]) -> dict[tuple[str, str], dict[str, Any]]:
    """What was found, by code and arm."""
    assert done.stdout, done.stderr
    return {(one["code"], one["arm"]): one for one in json.loads(done.stdout)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of its own with the scripts."""
    return Path(shutil.copytree(SCRIPTS, tmp_path / "project"))


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_wrong_script_and_its_mended_twin(folder: Path) -> None:
    before = everything(folder)
    done = ran(
        folder, "--output-format", "json", "--windows", "7", "--fixed-file", "mended.py",
        "--run", "--", "train.py", "--sentences", "44", "--out", "made",
    )  # fmt: skip
    told, *unprotected = done.stderr.splitlines()
    assert told == (
        "accumlint: runs `train.py --sentences 44 --out made` on 1 rank a few times, for 2 findings;"
        " what it writes goes to a temporary folder"
    )
    prefix = "accumlint: not protected on this machine: "
    assert f"{prefix}reads: a script of your own reads every file that you can read" in unprotected
    assert all(line.startswith(prefix) for line in unprotected)
    found = verdicts(done)
    assert {asked: one["verdict"] for asked, one in found.items()} == {
        ("ACC101", "found"): "confirmed",
        ("ACC101", "fixed"): "refuted",
        ("ACC501", "found"): "confirmed",
        ("ACC501", "fixed"): "refuted",
    }
    assert done.returncode == 1
    weights = found["ACC101", "found"]
    assert weights["measured"]["weight ratio"] > 2
    assert weights["measured"]["relative error"] > 0.05
    (own,) = weights["passes"]
    assert (own["regime"], own["steps"], own["reached"]) == ("own", 4, True)
    # Of the right script, every update is the large batch's, at the precision of its own float32.
    (own,) = found["ACC101", "fixed"]["passes"]
    assert all(update["error"] < 1e-6 for update in own["updates"])
    assert all(one["control"] for one in found.values())
    assert "micro-batches 21/22 go backward and leak" in found["ACC501", "found"]["reason"]
    # What the script wrote is gone.
    assert everything(folder) == before | {"temporary"}


def test_data_that_cannot_show_a_difference_decides_nothing(folder: Path) -> None:
    done = ran(
        folder, "--output-format", "json", "train.py:40", "--run", "--",
        "train.py", "--sentences", "44", "--shortest", "6", "--longest", "6", "--width", "80",
    )  # fmt: skip
    found = verdicts(done)
    assert [asked for asked, _ in found] == ["ACC101"]
    one = found["ACC101", "found"]
    assert (one["verdict"], done.returncode) == ("undecided", 4)
    assert one["reason"].startswith("every micro-batch of a window counts as many targets")
    assert one["standins"] == ["`parameters`: 8,192 of 42,100, drawn evenly, are compared"]


def test_two_ranks_that_meet_by_their_environment(folder: Path) -> None:
    done = ran(folder, "--output-format", "json", "--fixed", "--run", "--", "together.py")
    found = verdicts(done)
    assert found["ACC302", "found"]["verdict"] == "confirmed"
    assert found["ACC302", "fixed"]["verdict"] == "refuted"
    assert {one["passes"][0]["ranks"] for one in found.values()} == {2}
    assert done.returncode == 1


@pytest.mark.parametrize("asked", CLAIMS)
def test_what_a_script_says_to_each_claim(asked: str, folder: Path) -> None:
    name, *mended = asked.split()
    done = ran(folder, "--output-format", "json", *mended, "--run", "--", f"{name}.py")
    found = verdicts(done)
    told = {
        code: one["reason"] if one["verdict"] == "undecided" else one["verdict"]
        for (code, arm), one in found.items()
        if arm == "found"
    }
    assert told == CLAIMS[asked]
    after = {one["verdict"] for (_, arm), one in found.items() if arm == "fixed"}
    assert after == ({"refuted"} if mended else set())
    assert all(one["control"] for one in found.values() if one["verdict"] != "undecided")


@pytest.mark.parametrize("sentences", EPOCHS)
def test_a_short_epoch_is_run_to_its_end(sentences: str, folder: Path) -> None:
    done = ran(
        folder, "--output-format", "json", "--select", "ACC501", "--windows", "2",
        "--run", "--", "train.py", "--sentences", sentences,
    )  # fmt: skip
    one = verdicts(done)["ACC501", "found"]
    assert one["reason"] == EPOCHS[sentences]
    assert (one["verdict"] == "confirmed") == (sentences == "44")


def test_what_no_run_tells_is_not_asked_of_one(folder: Path) -> None:
    (folder / "shown.py").write_text(SHOWN)
    done = ran(folder, "--output-format", "json", "--run", "--", "shown.py")
    one = verdicts(done)["ACC702", "found"]
    assert (one["verdict"], one["reason"]) == ("undecided", "what is shown is not watched")
    assert one["passes"] == []


@pytest.mark.parametrize("way", WAYS)
def test_a_script_that_does_not_come_to_train(way: str, folder: Path) -> None:
    before = everything(folder)
    done = ran(folder, "--output-format", "json", "--run", "--", "ends.py", way)
    one = verdicts(done)["ACC102", "found"]
    assert (one["verdict"], done.returncode) == ("undecided", 4)
    assert one["reason"] == WAYS[way].format(folder=folder)
    assert everything(folder) == before | {"temporary"}


def test_what_is_allowed_is_done(folder: Path) -> None:
    done = ran(folder, "--output-format", "json", "--allow", "writes", "--run", "--", "ends.py", "writes")  # fmt: skip
    assert verdicts(done)["ACC102", "found"]["measured"]["factor"] == "K"
    assert done.returncode == 1
    assert (folder / "left").exists()


def test_the_example_of_the_page(folder: Path) -> None:
    page = (ROOT / "docs" / "confirm.md").read_text(encoding="utf-8")
    done = ran(
        folder, *["train.py:40", "--windows", "3", "--run", "--", "train.py", "--sentences", "44"]
    )
    (block,) = [b for b in re.findall(r"```text\n(.*?)```", page, re.DOTALL) if "train.py:40" in b]
    assert plain(done.stdout) == plain(block)


def plain(text: str) -> list[str]:
    """The lines without their figures, which differ between processors."""
    return [re.sub(r"\d\S*", "0", " ".join(line.split())) for line in text.splitlines()]


def loading(size: int) -> Any:
    rows: Any = range(size)
    return DataLoader(rows)


def trains_plainly(back: Back) -> None:
    loader, other = loading(3), loading(2)
    for _ in range(2):
        for _ in loader:
            back()
        for _ in other:
            pass


def makes_a_loader_for_each_epoch(back: Back) -> None:
    for _ in range(2):
        for _ in loading(3):
            back()


def reads_one_ahead(back: Back) -> None:
    loader = loading(3)
    for _ in range(2):
        batches = iter(loader)
        batch = next(batches, None)
        while batch is not None:
            batch = next(batches, None)
            back()


def takes_a_window_at_once(back: Back) -> None:
    batches: Iterator[object] = iter(loading(5))
    while window := list(islice(batches, 2)):
        for _ in window:
            back()


def takes_pairs_and_goes_backward_twice(back: Back) -> None:
    for _ in zip(loading(3), loading(3), strict=True):
        back()
        back()


def has_no_loader(back: Back) -> None:
    for _ in range(3):
        back()


# The micro-batch of each backward, and where epochs end.
COUNTED: dict[Callable[[Back], None], list[object]] = {
    trains_plainly: [1, 2, 3, "epoch", 4, 5, 6, "epoch"],
    makes_a_loader_for_each_epoch: [1, 2, 3, "epoch", 4, 5, 6, "epoch"],
    reads_one_ahead: [1, 2, 3, "epoch", 4, 5, 6, "epoch"],
    takes_a_window_at_once: [1, 2, 3, 4, 5, "epoch"],
    takes_pairs_and_goes_backward_twice: [1, 1, 2, 2, 3, 3, "epoch"],
    has_no_loader: [1, 2, 3],
}


@pytest.mark.parametrize("script", COUNTED)
def test_what_a_micro_batch_is(
    script: Callable[[Back], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from accumlint.confirming.harness.recording.microbatch_counter import Counted

    seen: list[object] = []
    feed = Counted(0, lambda: seen.append("epoch"), lambda: None)
    feed.watch(monkeypatch.setattr)

    def back() -> None:
        feed.backward()
        seen.append(feed.current)
        feed.backwarded()

    script(back)
    feed.end()
    assert seen == COUNTED[script]


def test_arguments_that_the_script_refuses(folder: Path) -> None:
    done = ran(folder, "--run", "--", "train.py", "--sentence", "4", "--colour")
    assert done.returncode == 4
    told = " ".join(done.stdout.split())
    assert (
        "The script left with code 2 before its first update: train.py: error: unrecognized arguments: --colour."
        in told
    )


def test_a_script_without_a_finding_is_not_run(folder: Path) -> None:
    done = ran(folder, "--run", "--", "mended.py", "--sentences", "44")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "accumlint: no finding there, so nothing was run\n"


@pytest.mark.parametrize("typed", MISUSES)
def test_wrong_usage_is_told_in_a_line(typed: str, folder: Path) -> None:
    done = ran(folder, *typed.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"accumlint: {MISUSES[typed]}\n"


def test_a_line_is_about_the_optimizer_that_steps_there_or_next() -> None:
    turns = [("backward", 35, -1), ("step", 39, 0), ("backward", 42, -1), ("step", 44, 1)]
    events = [{"kind": kind, "line": line, "optimizer": who} for kind, line, who in turns * 2]
    found = {line: concerned(events, line) for line in (35, 39, 42, 44, 50)}
    first, second = frozenset({"0"}), frozenset({"1"})
    assert found == {35: first, 39: first, 42: second, 44: second, 50: frozenset()}


def test_secrets_are_withheld_unless_the_network_is_allowed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUB_TOKEN", "hunter2")
    monkeypatch.setenv("STORE", "postgres://me:hunter2@host/data")
    monkeypatch.setenv("TOKENIZERS", "2")
    (folder / "asks.py").write_text(
        "import os, sys\n"
        "import torch\n"
        "import torch.nn.functional as F\n"
        "sys.exit(f\"{os.environ['HUB_TOKEN']} {os.environ['STORE'][:8]} {os.environ['TOKENIZERS']}\")\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "for index, (x, y) in enumerate(loader):\n"
        "    loss = F.cross_entropy(model(x), y)\n"
        "    loss.backward()\n"
        "    if (index + 1) % 4 == 0:\n"
        "        optimizer.step()\n"
        "        optimizer.zero_grad()\n"
    )
    shown = {"withheld withheld 2": [], "hunter2 postgres 2": ["--allow", "network"]}
    for end, allowed in shown.items():
        done = ran(folder, "--output-format", "json", *allowed, "--run", "--", "asks.py")
        (found,) = {one["reason"] for one in json.loads(done.stdout)}
        assert found == f"the script left with code 1 before its first update: {end}"
        told = "accumlint: withheld from the script: " in done.stderr
        assert told == (not allowed)
        assert "hunter2" not in done.stderr
