"""An undecided finding says what would decide it: a set-up file with the names that are missing, or what else to do."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

import pytest

from accumlint.config import Settings
from accumlint.confirming.launch import Options
from accumlint.confirming.passes import Overrides
from accumlint.confirming.pipeline import Request, confirm, gathered
from accumlint.confirming.plan import Plan
from accumlint.confirming.result import Confirmation, Verdict
from accumlint.files.inputs.discovery import Target

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

LOOP = """\
import torch.nn.functional as F
from kit import penalty, sizes


class Limits:
    width = 3


def train(model, loader, optimizer, accumulation_steps):
    limits = Limits()
    for step, (inputs, labels) in enumerate(loader):
        loss = {loss}
        loss.backward()
        if (step + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
PLAIN = "F.cross_entropy(model(inputs), labels)"
# Losses, and the names that a set-up file is to give for them.
WANTING = {
    PLAIN: set[str](),
    f"{PLAIN} + penalty(model)": {"kit.penalty"},
    f"{PLAIN}.reshape(sizes[0], 7).sum()": {"kit.sizes"},
    # What fails where nothing knows of the window is another loss; this one may be told of it.
    f"{PLAIN} + limits.height": set[str](),
    f"{PLAIN} + limits.height / num_items": {"self.height"},
    f"{PLAIN} + LARGEST[len(labels)]": {"LARGEST"},
}
OWN_SCRIPT = "measures the script itself, with its own model and data"


def confirmed(loops: Sequence[str], folder: Path) -> list[Confirmation]:
    """The confirmations of losses that are not divided."""
    plans: list[Plan] = []
    for number, text in enumerate(loops):
        file = folder / f"train{number}.py"
        file.write_text(text)
        target = Target(file.name, str(file), Settings(folder, select=("ACC102",)))
        found, problems = gathered([Request(target)], Overrides(), mend=False)
        assert (len(found), problems) == (1, [])
        plans += found
    return confirm(plans, Options(), lambda _: None)


def test_what_is_missing_is_asked_for(tmp_path: Path) -> None:
    found = confirmed([LOOP.format(loss=loss) for loss in WANTING], tmp_path)
    assert dict(zip(WANTING, map(asked_for, found), strict=True)) == WANTING
    for one in found:
        is_undecided = one.verdict is Verdict.UNDECIDED
        assert is_undecided == (OWN_SCRIPT in one.advice) == bool(one.setup), one.reason


def asked_for(found: Confirmation) -> set[str]:
    """The keys of the dictionary that a set-up file returns."""
    return {
        str(ast.literal_eval(key))
        for node in ast.walk(ast.parse(found.setup))
        if isinstance(node, ast.Dict)
        for key in node.keys
        if key
    }


def test_a_file_that_this_python_cannot_parse_says_which_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accumlint.confirming import plan

    def refused(_: str) -> ast.Module:
        raise SyntaxError("unmatched '('", ("", 9, 1, ""))

    monkeypatch.setattr(plan, "ast", type("Parser", (), {"parse": staticmethod(refused)}))
    (found,) = confirmed([LOOP.format(loss=PLAIN)], tmp_path)
    assert "cannot parse line 9: unmatched '('" in found.reason
    assert (found.verdict, found.setup, found.advice) == (Verdict.UNDECIDED, "", "")


COUNTED = """\
import torch.nn.functional as F


def train(model, loader, optimizer, accumulation_steps):
    for step, (ids, labels) in enumerate(loader):
        labels = labels.masked_fill(ids == 0, -100)
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten(), ignore_index=-100)
        (loss / accumulation_steps).backward()
        if (step + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_weights_are_told_as_they_are_applied(tmp_path: Path) -> None:
    """The fix sums the losses and divides the gradients."""
    file = tmp_path / "train.py"
    file.write_text(COUNTED)
    target = Target(file.name, str(file), Settings(tmp_path, select=("ACC101",)))
    plans, _ = gathered([Request(target)], Overrides(), mend=True)
    found, fixed = confirm(plans, Options(), lambda _: None)
    assert (found.verdict, fixed.verdict) == (Verdict.CONFIRMED, Verdict.REFUTED)
    weights = [weight for update in fixed.passes[0].updates for weight in update.weights]
    assert weights == pytest.approx([1.0] * len(weights))
    assert min(found.passes[0].updates[0].weights) < 0.9


KNOTTED = """\
import torch
import torch.nn.functional as F
from torch.amp import GradScaler


def train(model, loader, optimizer, n):
    scaler = GradScaler()
    for i, (inputs, labels) in enumerate(loader):
        loss = F.cross_entropy(model(inputs), labels) / n
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if (i + 1) % n == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""


def test_a_file_is_run_with_all_fixes_that_follow_from_each_other(tmp_path: Path) -> None:
    """The fix of the clip brings that of `unscale_`; the fixed boundary tells no more that `n` is the window."""
    file = tmp_path / "train.py"
    file.write_text(KNOTTED)
    target = Target(file.name, str(file), Settings(tmp_path))
    plans, _ = gathered([Request(target)], Overrides(), mend=True)
    jobs = [plan.job for plan in plans if plan.arm == "fixed" and plan.job]
    assert len(jobs) == 3
    assert all(
        "scaler.unscale_(optimizer)" in job.text and job.roles["n"] == "steps" for job in jobs
    )
