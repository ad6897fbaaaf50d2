"""A finding that needs accumulation says so where the code leaves the accumulation steps at 1."""

from __future__ import annotations

import pytest
from helpers import ROOT

from accumlint.check import check_bytes
from accumlint.config import Settings
from accumlint.files.inputs.discovery import Target

LOOP = """\
import torch.nn.functional as F
{before}

def finetune(model, loader, optimizer, args):
    for index, (inputs, targets) in enumerate(loader):
        F.cross_entropy(model(inputs), targets).backward()
        if (index + 1) % {steps} == 0:
            optimizer.step()
            {clear}
"""
CLEAR = "optimizer.zero_grad()"


@pytest.mark.parametrize(
    ("before", "steps", "clear", "told"),
    [
        ("", "args.grad_accum", CLEAR, {"ACC102": ""}),
        ("STEPS = 1", "STEPS", CLEAR, {"ACC102": "when STEPS > 1"}),
        ("T = {'n': 1}", "T['n']", CLEAR, {"ACC102": "when T['n'] > 1"}),
        ("class C:\n    every = 1\nc = C()", "c.every", CLEAR, {"ACC102": "when c.every > 1"}),
        ("STEPS = 1", "STEPS", "pass", {"ACC401": ""}),
    ],
)
def test_what_needs_accumulation_says_so(
    before: str, steps: str, clear: str, told: dict[str, str]
) -> None:
    text = LOOP.format(before=before, steps=steps, clear=clear)
    target = Target("train.py", str(ROOT / "train.py"), Settings(ROOT, select=(*told,)))
    reports = check_bytes(text.encode(), target).reports
    assert {r.code: r.condition for r in reports} == told
