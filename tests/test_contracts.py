"""What a framework's contract says is what the interpreter goes by: no field is read by the documentation alone."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from accumlint import reading, tracing
from accumlint.reading.frameworks import CONTRACTS, Contract
from accumlint.reading.project import Project

ROOT = Path(__file__).parents[1]
ENGINE = """\
import deepspeed
from torch.nn.parallel import DistributedDataParallel

def train(args, model, loader):
    model = DistributedDataParallel(model)
    engine, optimizer, _, _ = deepspeed.initialize(args=args, model=model, config={"gradient_accumulation_steps": 4})
    for x, y in loader:
        loss = engine(x, y).mean()
        engine.backward(loss)
        engine.step()
"""
ACCELERATE = """\
import torch
from accelerate import Accelerator
from torch.nn.parallel import DistributedDataParallel

def train(model, loader, lr):
    accelerator = Accelerator(gradient_accumulation_steps=4)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = model(x, y).mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
"""
FABRIC = """\
import torch
from lightning.fabric import Fabric

def train(model, loader, lr):
    fabric = Fabric()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr))
    for i, (x, y) in enumerate(loader):
        with fabric.no_backward_sync(model, enabled=(i + 1) % 4 != 0):
            fabric.backward(model(x, y).mean() / 4)
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
TRAINER = """\
import lightning as L
from torch.nn.parallel import DistributedDataParallel

class Module(L.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.model = DistributedDataParallel(net)

    def training_step(self, batch, batch_idx):
        return self.model(batch).mean()

trainer = L.Trainer(accumulate_grad_batches=4)
"""
# Nobody sees the engine being made.
GIVEN = """\
from torch.nn.parallel import DistributedDataParallel

def train(engine, model, loader):
    model = DistributedDataParallel(model)
    for x, y in loader:
        loss = model(x, y).mean()
        engine.backward(loss)
        engine.step()
"""
PROGRAMS = {"engine": ENGINE, "accelerator": ACCELERATE, "fabric": FABRIC, "trainer": TRAINER}
# What `benchmarks/hooks.py` looks up in the installed frameworks.
EVIDENCE = ("version", "source", "written")


def events(text: str) -> list[str]:
    """All that happens on the paths of a program."""
    program = reading.read(text, "train.py", project := Project())
    groups = tracing.explore(program, project).traces
    assert groups
    return [
        re.sub(r" at 0x\w+", "", repr(e))
        for traces in groups
        for trace in traces
        for e in trace.main.events
    ]


@pytest.mark.parametrize(
    ("role", "field"),
    [
        *((role, f.name) for role in PROGRAMS for f in fields(Contract) if getattr(CONTRACTS[role], f.name) is True),
        ("accelerator", "clears"),
        ("fabric", "syncs"),
        ("fabric", "framework"),
    ],
)  # fmt: skip
def test_what_a_contract_says_decides_what_happens(
    role: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = GIVEN if (role, field) == ("engine", "syncs") else PROGRAMS[role]
    before, old = events(text), getattr(CONTRACTS[role], field)
    new = not old if isinstance(old, bool) else "another"
    monkeypatch.setitem(CONTRACTS, role, replace(CONTRACTS[role], **{field: new}))
    assert events(text) == events(text) != before


def test_each_field_decides_something_or_is_looked_up() -> None:
    flags = {
        f.name for f in fields(Contract) if isinstance(getattr(CONTRACTS["engine"], f.name), bool)
    }
    assert {f.name for f in fields(Contract)} == {"framework", "title", *flags, *EVIDENCE}
    assert all(any(getattr(row, flag) for row in CONTRACTS.values()) for flag in flags)
    assert "row.title" in (ROOT / "accumlint" / "tracing" / "events.py").read_text()


def test_contracts_stand_in_the_frameworks_that_are_installed() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "hooks.py")]
    looked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert looked.returncode == 0, looked.stdout + looked.stderr
    for row in CONTRACTS.values():
        assert not row.source or f"{row.framework} ({row.version})" in looked.stdout
