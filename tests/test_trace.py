"""`accumlint trace` shows any loop as it runs, on a terminal, in a file, and as data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from conftest import Run
from helpers import LOOP, ROOT

from accumlint.diagnostics.reporting.loops_text import loops as text
from accumlint.diagnostics.reporting.terminal import Look
from accumlint.diagnostics.results.diagram import Call, Group, Loop, Timeline, folded, ranges

RIGHT = LOOP.replace("loss.backward()", "(loss / accumulation_steps).backward()")
TAIL = """\
import torch.nn.functional as F


def train(model, loader, optimizer):
    for epoch in range(2):
        for i, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y) / 4
            loss.backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
"""
CLEARED = """\
import torch.nn.functional as F


def train(model, loader, optimizer):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) / 2
        loss.backward()
        if (i + 1) % 2 == 0:
            optimizer.step()
"""
LONG = TAIL.replace("4", "32")
CLIPPED = """\
            if args.clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if (i + 1)"""
FLAGS = TAIL.replace("            if (i + 1)", CLIPPED).replace(
    "model, loader", "args, model, loader"
)

ROW_BY_ROW = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 5)

    def forward(self, rows, labels):
        scores = []
        for i in range(len(rows)):
            scores.append(self.head(rows[i]))
        scores = torch.cat(scores)
        losses = -(scores.log_softmax(-1) * labels.flatten(0, 1)).sum(1)
        return losses.mean()
"""
ROWS = """\
import torch

from net import Net


def train(loader, accumulation_steps):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, batch in enumerate(loader):
        loss = model(batch[0], batch[1]) / accumulation_steps
        loss.backward()
        if (step + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def write(folder: Path, source: str, name: str = "train.py") -> None:
    (folder / name).write_text(source)


def data(run: Run, *arguments: str) -> list[dict[str, Any]]:
    ran = run("trace", *arguments, "--output-format", "json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def rows(out: str) -> dict[str, list[str]]:
    """What stands in each row of a drawn timeline, by its name; separators left out."""
    found: dict[str, list[str]] = {}
    for line in out.splitlines():
        words = [word for word in line.replace("│", " ").replace("┆", " ").split() if word]
        for name in ("micro-batch", "forward", "backward", "step applies", "large batch", "clear"):
            spoken = name.split()
            for at in (0, 1):
                if words[at : at + len(spoken)] == spoken and len(words) > len(spoken) + at:
                    found.setdefault(name, words[at + len(spoken) :])
    return found


def test_a_wrong_loop_is_shown_with_what_it_applies(run: Run, tmp_path: Path) -> None:
    write(tmp_path, LOOP)
    ran = run("trace", "train.py")
    drawn = rows(ran.out)
    assert drawn["micro-batch"][:5] == ["1", "2", "3", "4", "5"]
    assert drawn["step applies"][:4] == ["1"] * 4
    assert drawn["large batch"][:4] == ["1/4"] * 4
    assert "ACC102" in ran.out
    assert "the large batch is 1/4 g1 + 1/4 g2 + 1/4 g3 + 1/4 g4" in ran.out
    assert (ran.code, ran.err) == (0, "")


def test_a_right_loop_is_shown_as_well(run: Run, tmp_path: Path) -> None:
    write(tmp_path, RIGHT)
    out = run("trace", "train.py").out
    assert rows(out)["step applies"] == rows(out)["large batch"]
    assert "Every micro-batch weighs what it does in the large batch." in out


OUTPUTS = TAIL.replace(
    "            loss = F.cross_entropy(model(x), y) / 4\n",
    "            loss = 0\n"
    "            for target, out in zip(y, model(x)):\n"
    "                loss += F.cross_entropy(out, target)\n"
    "            loss = weight * loss / 4\n",
).replace("model, loader", "weight, model, loader")
SHARES = TAIL.replace(
    "            loss = F.cross_entropy(model(x), y) / 4\n",
    "            loss = F.cross_entropy(model(x), y) * (len(x) / total)\n",
).replace("model, loader", "total, model, loader")

STORIES = [
    (LOOP, "Steps 1-2 apply another gradient than the large batch's."),
    (RIGHT, "Every micro-batch weighs what it does in the large batch."),
    (TAIL, "Step 3 applies another gradient than the large batch's."),
    (CLEARED, "are cleared before any step."),
    (TAIL.replace("                optimizer.zero_grad()\n", ""), "are applied more than once."),
    # A share of data that nobody counts may be the right one.
    (SHARES, "Every micro-batch is applied once."),
]


@pytest.mark.parametrize("called", ["", "\n\ntrain(model, loader, optimizer)\n"])
def test_a_loop_is_told_by_its_function_wherever_the_run_starts(
    run: Run, tmp_path: Path, called: str
) -> None:
    (tmp_path / "train.py").write_text(TAIL + called)
    assert run("trace", "train.py").out.startswith("train()  train.py:")


def test_rows_that_a_model_takes_are_no_micro_batches(run: Run, tmp_path: Path) -> None:
    write(tmp_path, ROW_BY_ROW, "net.py")
    write(tmp_path, ROWS)
    shown = run("trace", str(tmp_path / "train.py")).out
    assert all(f" g{number}" in shown for number in range(1, 5))
    assert " g8" not in shown


def test_targets_beside_the_outputs_of_a_model_are_no_micro_batches(
    run: Run, tmp_path: Path
) -> None:
    write(tmp_path, OUTPUTS)
    (loop,) = data(run, "train.py")
    assert [step["applies"].count(" g") for step in loop["steps"]] == [4, 4, 6]
    assert loop["symbols"] == {"a": "weight"}


@pytest.mark.parametrize(("by", "share"), [("/ norm", "1/a g1 + "), ("* weight", "a g1 + ")])
def test_a_factor_that_nobody_knows_is_written_as_a_share(
    run: Run, tmp_path: Path, by: str, share: str
) -> None:
    write(tmp_path, TAIL.replace("/ 4", by).replace("model, loader", "norm, weight, model, loader"))
    (loop,) = data(run, "train.py")
    assert loop["steps"][0]["applies"].startswith(share)


@pytest.mark.parametrize(("source", "told"), STORIES)
def test_what_becomes_of_the_micro_batches_is_told(
    run: Run, tmp_path: Path, source: str, told: str
) -> None:
    write(tmp_path, source)
    (loop,) = data(run, "train.py")
    assert told in loop["story"]


@pytest.mark.parametrize(
    "name", ["acc202/bad_clip_in_backward_helper.py", "acc302/bad_tests_other_index.py"]
)
def test_right_weights_are_not_praised_where_something_else_is_wrong(run: Run, name: str) -> None:
    (loop,) = data(run, str(ROOT / "fixtures" / name))
    assert loop["findings"]
    assert "weighs" not in loop["story"]


def test_ranks_that_do_not_reduce_are_seen(run: Run) -> None:
    (loop,) = data(run, str(ROOT / "fixtures/acc302/bad_tests_other_index.py"))
    told = [event["told"] for event in loop["events"] if event["kind"] == "sync"]
    assert len(set(told)) == 2
    assert told[3].startswith("no reduction")


def test_optimizers_that_take_turns_have_rows_of_their_own(run: Run) -> None:
    (loop,) = data(run, str(ROOT / "fixtures/clean/gan_accumulating.py"))
    assert {step["optimizer"] for step in loop["steps"]} == {"d_optimizer", "g_optimizer"}
    assert not any(step["differs"] for step in loop["steps"])


def test_steps_that_a_file_sets_are_told_beside_those_that_are_run(
    run: Run, tmp_path: Path
) -> None:
    write(tmp_path, "ACCUM = 8\n" + TAIL.replace("4", "ACCUM"))
    assert "4 accumulation steps in the place of 8, loaders of 10" in run("trace", "train.py").out


def test_a_long_window_fits_into_a_terminal(run: Run, tmp_path: Path) -> None:
    write(tmp_path, LONG)
    out = run("trace", "train.py").out
    assert max(map(len, out.splitlines())) <= 80
    assert rows(out)["micro-batch"][:2] == ["1–31", "32"]  # noqa: RUF001
    assert "1/48" in out


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_asked_for(
    run: Run, tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    write(tmp_path, TAIL)
    lines = run("trace", "train.py").out.splitlines()
    assert max(map(len, lines)) <= max(width, 56)


def test_a_loop_that_was_read_in_part_says_so(run: Run, tmp_path: Path) -> None:
    write(tmp_path, TAIL.replace("optimizer.step()", "take_step(optimizer)"))
    out = run("trace", "train.py").out
    assert "Read only in part" in out
    assert "`take_step` at line 10" in out


def test_the_condition_with_findings_comes_first_and_the_others_are_named(
    run: Run, tmp_path: Path
) -> None:
    write(tmp_path, FLAGS)
    ran = run("trace", "train.py")
    assert "1 more condition: --all shows" in ran.err
    both = data(run, "train.py", "--all")
    assert [loop["path"] for loop in both] == [1, 2]
    assert both[0]["findings"]
    assert {loop["condition"] for loop in both} == {
        "when args.clip is true",
        "when args.clip is false",
    }


def test_a_line_chooses_its_loop(run: Run, tmp_path: Path) -> None:
    second = TAIL.replace("def train", "def again").partition("\n\n\n")[2]
    write(tmp_path, f"{TAIL}\n\n{second}")
    assert [loop["function"] for loop in data(run, "train.py")] == ["train", "again"]
    assert [loop["function"] for loop in data(run, "train.py:10")] == ["train"]
    assert [loop["function"] for loop in data(run, "train.py:21")] == ["again"]


def test_a_line_that_leads_to_another_file_chooses_its_loop(run: Run, tmp_path: Path) -> None:
    (tmp_path / "setup.cfg").touch()
    write(tmp_path, "def descend(loss):\n    loss.backward()\n", "steps.py")
    other = TAIL.partition("\n\n\n")[2].replace("def train", "def again")
    led = TAIL.replace("loss.backward()", "descend(loss)")
    write(tmp_path, f"from steps import descend\n{led}\n\n{other}")
    assert [loop["function"] for loop in data(run, "train.py:9")] == ["train"]


BAD = [
    (("missing.py",), "missing.py: no such file or folder"),
    (("train.py:99",), "train.py:99: no training loop there; the training loops are at lines 7-11"),
    (("plain.py",), "plain.py: holds no training loop that can be read"),
    (("broken.py",), "broken.py:1: syntax error: '(' was never closed"),
    ((".",), ".: is a folder; name one of its files"),
    (("train.py", "--output", "png"), "'png' is not one of text, svg, html, json"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD)
def test_bad_input_gets_one_line(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    write(tmp_path, TAIL)
    write(tmp_path, "x = 1\n", "plain.py")
    write(tmp_path, "optimizer.step(\nloss.backward()", "broken.py")
    ran = run("trace", *arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_colour_comes_when_asked_for(run: Run, tmp_path: Path) -> None:
    write(tmp_path, TAIL)
    assert "\x1b[" not in run("trace", "train.py").out
    assert "\x1b[31m" in run("trace", "train.py", "--color", "always").out


def test_an_ascii_terminal_gets_ascii_marks() -> None:
    calls = (Call("backward", "backward", 1, "3", 3), Call("step", "step", 1, "4", 4))
    loop = Loop("a.py", "f", "3-4", "x", Timeline((Group(1, 1, "applied", "applied"),), calls))
    out = "\n".join(text([loop], Look(boxes=False), 80))
    assert out.isascii()
    assert "#" in out


def test_files_are_written_and_the_text_is_left_out(run: Run, tmp_path: Path) -> None:
    write(tmp_path, TAIL)
    ran = run("trace", "train.py", "--output", "html=t.html", "--output", "svg=t.svg")
    assert (ran.code, ran.out) == (0, "")
    root = ElementTree.fromstring((tmp_path / "t.svg").read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert (tmp_path / "t.html").read_text().startswith("<!doctype html>")


def test_stdin_and_notebooks_are_shown(run: Run, tmp_path: Path) -> None:
    cell: dict[str, Any] = {
        "cell_type": "code",
        "metadata": {},
        "outputs": [],
        "execution_count": None,
        "source": TAIL,
    }
    book: dict[str, Any] = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    (tmp_path / "train.ipynb").write_text(json.dumps(book))
    out = run("trace", "train.ipynb").out
    assert "cell 1:8" in out
    assert "Step 3 applies" in out


def test_like_micro_batches_are_drawn_as_one() -> None:
    groups = tuple(Group(n, n, "applied", "applied") for n in range(1, 33))
    calls = tuple(Call("backward", "backward", n, "5", 5) for n in range(1, 33))
    timeline = Timeline(groups, calls)
    assert [m.name for m in folded(timeline, 8).groups] == ["1", "2–31", "32"]  # noqa: RUF001
    assert [m.name for m in folded(timeline, 2).groups] == ["1–32"]  # noqa: RUF001
    assert folded(timeline, 32) is timeline


def test_runs_of_numbers_are_drawn_together() -> None:
    assert ranges([4, 1, 2, 3, 7]) == "1-4, 7"
