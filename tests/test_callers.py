"""What a file leaves open is read through the files of its project that use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from accumlint import check
from accumlint.config import Settings
from accumlint.files.inputs.discovery import Target

SCALER = """
import torch


class LossScaler:
    def __init__(self, scale):
        self.scale = scale

    def backward(self, loss):
        (loss * self.scale).backward()
"""
LOOP = """
import torch
from project.scaling import LossScaler


def train(model, loader, accumulation_steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = LossScaler(1.0)
    for i, (inputs, targets) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        scaler.backward(loss)
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
TRAINER = """
import torch


class Trainer:
    def __init__(self, model, loader, update, accumulation_steps):
        self.model = model
        self.loader = loader
        self.update = update
        self.accumulation_steps = accumulation_steps

    def fit(self):
        for i, (inputs, targets) in enumerate(self.loader):
            loss = torch.nn.functional.mse_loss(self.model(inputs), targets)
            loss.backward()
            if (i + 1) % self.accumulation_steps == 0:
                self.update()
"""
SCRIPT = """
import torch
from torch.utils.data import DataLoader

from project.training import Trainer


def main(args, model, data):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def update():
        optimizer.step()
        optimizer.zero_grad()

    trainer = Trainer(model, DataLoader(data, batch_size=4), update, args.accumulation_steps)
    trainer.fit()
"""
WRAPPER = """
class Warmup:
    def __init__(self, optimizer, width):
        self._optimizer = optimizer
        self.width = width

    def step_and_update_lr(self):
        self._optimizer.step()

    def zero_grad(self):
        self._optimizer.zero_grad()
"""
WRAPPED = """
import torch
from project.warmup import Warmup


def train(model, loader, accumulation_steps):
    optimizer = Warmup(torch.optim.SGD(model.parameters(), lr=0.1), 64)
    for i, (inputs, targets) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step_and_update_lr()
            optimizer.zero_grad()
"""

EPOCH = """
def train_one_epoch(model, loader, optimizer, accumulation_steps):
    for i, (inputs, targets) in enumerate(loader):
        loss = model(inputs, targets)
        (loss / accumulation_steps).backward()
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
"""
FACE = "from .epoch import *\n"
RUN = """
import torch
from project.engine import train_one_epoch
from project.network import Network


def main(args, loader):
    model = torch.nn.parallel.DistributedDataParallel(Network(args))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train_one_epoch(model, loader, optimizer, args.accumulation_steps)
"""
NETWORK = """
import torch


class Network(torch.nn.Module):
    def __init__(self, args):
        super().__init__()
        self.layer = torch.nn.Linear(args.width, args.vocabulary)
        self.criterion = torch.nn.CrossEntropyLoss(ignore_index=0)

    def forward(self, inputs, targets):
        return self.criterion(self.layer(inputs).flatten(0, 1), targets.flatten())
"""


def checked(top: Path, files: dict[str, str], asked: str) -> tuple[list[str], list[str]]:
    """The codes found in one of a project's files, and how its backward calls were read."""
    for name, text in files.items():
        file = top / "project" / name
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(text)
    (top / "project" / "__init__.py").touch()
    (top / "setup.cfg").touch()
    target = Target(asked, str(top / "project" / asked), Settings(top))
    found = check.check_bytes((top / "project" / asked).read_bytes(), target)
    return [r.code for r in found.reports], [b.state for b in found.backwards]


HELPER = {"scaling.py": SCALER, "loop.py": LOOP}
SPLIT = {"training.py": TRAINER, "main.py": SCRIPT}
GIVEN = {"engine/epoch.py": EPOCH, "engine/__init__.py": FACE, "network.py": NETWORK, "run.py": RUN}


@pytest.mark.parametrize(
    ("files", "asked", "codes"),
    [
        # The loop's own file tells what is wrong with it.
        (HELPER, "scaling.py", []),
        (HELPER, "loop.py", ["ACC102"]),
        # The loop stands in the class, its step in the script that makes one.
        (SPLIT, "training.py", ["ACC102"]),
        (SPLIT, "main.py", []),
        ({"warmup.py": WRAPPER, "loop.py": WRAPPED}, "loop.py", ["ACC102"]),
        # The loop is whole, what it is given decides.
        (GIVEN, "engine/epoch.py", ["ACC101", "ACC301", "ACC502"]),
        (GIVEN, "run.py", []),
    ],
    ids=[
        "a helper",
        "its caller",
        "a trainer",
        "its script",
        "a wrapper in another file",
        "a model from the caller",
        "the caller of a loop",
    ],
)
def test_a_loop_in_two_files_is_read_whole_and_judged_once(
    tmp_path: Path, files: dict[str, str], asked: str, codes: list[str]
) -> None:
    reports, states = checked(tmp_path, files, asked)
    assert reports == codes
    assert set(states) <= {"whole"}


@pytest.mark.parametrize("alone", [HELPER["scaling.py"], SPLIT["training.py"]])
def test_without_its_callers_no_step_is_reached(tmp_path: Path, alone: str) -> None:
    reports, states = checked(tmp_path, {"alone.py": alone}, "alone.py")
    assert (reports, states) == ([], ["partly"])


STEPPER = """
import torch


class AmpOptimizer:
    def __init__(self, optimizer, parameters, accumulation_steps):
        self.optimizer = optimizer
        self.parameters = parameters
        self.share = 1 / accumulation_steps

    def backward_step(self, stepping, loss):
        loss.mul(self.share).backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        if stepping:
            self.optimizer.step()
            self.optimizer.zero_grad()
"""
ANNOTATED = """
import torch
from project.stepping import AmpOptimizer


class Trainer:
    def __init__(self, model, optimizer: AmpOptimizer):
        self.model = model
        self.optimizer = optimizer

    def train_step(self, stepping, inputs, targets):
        loss = torch.nn.functional.mse_loss(self.model(inputs), targets)
        self.optimizer.backward_step(stepping=stepping, loss=loss)
"""


ANNOTATION = {"stepping.py": STEPPER, "trainer.py": ANNOTATED}


@pytest.mark.parametrize("asked", ["stepping.py", "trainer.py"])
def test_an_annotation_tells_the_class_that_steps_and_a_flag_handed_on_ends_windows(
    tmp_path: Path, asked: str
) -> None:
    codes, read = checked(tmp_path, ANNOTATION, asked)
    assert (codes, read) == (([], ["whole"]) if asked == "stepping.py" else (["ACC202"], []))
