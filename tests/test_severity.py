"""How bad a wrong factor is depends on the optimizer: Adam's like divide it out, unless decay meets the gradient."""

from __future__ import annotations

import pytest
from helpers import ROOT

from accumlint.check import check_bytes
from accumlint.config import Settings
from accumlint.files.inputs.discovery import Target

LOOP = """\
import torch
import torch.nn.functional as F


def train(model, loader, make, accumulation_steps):
    optimizer = {optimizer}
    batches = iter(loader)
    for _ in range(len(loader) // accumulation_steps):
        optimizer.zero_grad()
        for _ in range(accumulation_steps):
            images, labels = next(batches)
            F.cross_entropy(model(images), labels).backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("optimizer", "severity"),
    [
        ("torch.optim.SGD(model.parameters(), lr=0.1)", "error"),
        ("torch.optim.LBFGS(model.parameters())", "error"),
        ("torch.optim.Adadelta(model.parameters())", "error"),
        ("make(model)", "error"),
        ("torch.optim.Adam(model.parameters())", "warning"),
        ("torch.optim.Adam(model.parameters(), weight_decay=0)", "warning"),
        ("torch.optim.Adam(model.parameters(), weight_decay=0.1)", "error"),
        ("torch.optim.AdamW(model.parameters(), weight_decay=0.1)", "warning"),
    ],
)
def test_a_factor_is_as_bad_as_the_optimizer_makes_it(optimizer: str, severity: str) -> None:
    source = LOOP.format(optimizer=optimizer)
    target = Target("train.py", str(ROOT / "train.py"), Settings(ROOT, select=("ACC102",)))
    (report,) = check_bytes(source.encode(), target).reports
    assert report.severity == severity
