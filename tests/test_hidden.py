"""What a misplaced clear hides is found with it, and said to come to light once that is mended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Run

LOOP = """\
import torch.nn.functional as F
from torch import optim


def train(model, loader, n, epochs):
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for i, (inputs, targets) in enumerate(loader):
            CLEAR
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            if (i + 1) % n == 0:
                optimizer.step()
"""
# Ways to clear at the top of every micro-batch.
CLEARS = (
    "optimizer.zero_grad()",
    "model.zero_grad()",
    "for p in model.parameters(): p.grad = None",
)


@pytest.mark.parametrize("clear", CLEARS)
@pytest.mark.parametrize("select", ["ALL", "ACC102,ACC501"])
def test_what_a_clear_hides_is_found(run: Run, tmp_path: Path, clear: str, select: str) -> None:
    """Whether the rule about the clear is selected changes nothing."""
    (tmp_path / "train.py").write_text(LOOP.replace("CLEAR", clear))
    told = json.loads(run("check", "--select", select, "--output-format", "json", "train.py").out)
    behind = {
        f["code"]: (f["location"]["row"], f["condition"]) for f in told if f["code"] != "ACC402"
    }
    assert behind == {
        "ACC102": (11, "once ACC402 is mended"),
        "ACC501": (13, "once ACC402 is mended"),
    }


def test_what_is_hidden_has_no_fix_before_the_clear_has_one(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP.replace("CLEAR", CLEARS[0]))
    told = json.loads(run("check", "--output-format", "json", "train.py").out)
    assert [f["code"] for f in told if f["fix"]] == ["ACC402"]
    run("check", "--fix", "--unsafe-fixes", "train.py")
    mended = json.loads(run("check", "--output-format", "json", "train.py").out)
    assert {f["code"]: f["condition"] for f in mended}.get("ACC402") is None
    assert all(f["condition"] is None for f in mended)


def test_a_hidden_finding_is_not_run(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP.replace("CLEAR", CLEARS[0]))
    ran = run("confirm", "train.py:11")
    assert "ACC402 hides it: mend that first, then confirm again" in " ".join(ran.out.split())
    assert "undecided" in ran.out


def test_what_is_cleared_twice_hides_nothing_more(run: Run, tmp_path: Path) -> None:
    """Where the clear stands behind the step already, nothing else is told."""
    right = LOOP.replace("            CLEAR\n", "").replace("targets)\n", "targets) / n\n")
    (tmp_path / "train.py").write_text(f"{right}                optimizer.zero_grad()\n")
    told = json.loads(run("check", "--output-format", "json", "train.py").out)
    assert [(f["code"], f["condition"]) for f in told] == [("ACC501", None)]


DATA = """\
from torch.nn.utils.rnn import pad_sequence


def collate(tokenizer, rows):
    ids = pad_sequence([tokenizer(r["text"]) for r in rows], batch_first=True)
    labels = pad_sequence([r["labels"] for r in rows], batch_first=True, padding_value=-100)
    return dict(input_ids=ids, labels=labels, attention_mask=ids.ne(0))
"""
TRAINER = """\
from accelerate import Accelerator
from data import collate


def train(model, loader, optimizer, n):
    accelerator = Accelerator(gradient_accumulation_steps=n)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        with accelerator.accumulate(model):
            BEFORE
            accelerator.backward(model(batch).loss)
            optimizer.step()
            AFTER
"""


@pytest.mark.parametrize(
    ("before", "after", "sure"),
    [("pass", "optimizer.zero_grad()", "likely"), ("optimizer.zero_grad()", "pass", "possible")],
)
def test_what_other_files_alone_tell_is_less_sure_behind_a_clear(
    run: Run, tmp_path: Path, before: str, after: str, sure: str
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "data.py").write_text(DATA)
    (tmp_path / "train.py").write_text(TRAINER.replace("BEFORE", before).replace("AFTER", after))
    ran = run("check", "--output-format", "json", "--min-confidence", "possible", "train.py")
    found = {f["code"]: f["confidence"] for f in json.loads(ran.out)}
    assert found.get("ACC101") == sure
