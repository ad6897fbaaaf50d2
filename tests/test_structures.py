"""A defect is found in a loop whose parts stand in several functions, objects and files; its right twin is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from accumlint.check import check
from accumlint.config import Settings
from accumlint.files.inputs.discovery import Target

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
PARTS = {
    "net.py": HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.body = nn.Linear(4, 4)\n\n    def forward(self, x):\n        return self.body(x)\n",
    "data.py": "import torch\nfrom torch.utils.data import DataLoader\n\ndef rows():\n"
    "    return DataLoader(torch.load('a.pt'), batch_size=4, drop_last=True)\n",
    "options.py": "from dataclasses import dataclass\n\n@dataclass\nclass Options:\n"
    "    pieces: int = 8\n    epochs: int = 3\n",
}  # fmt: skip
IMPORTS = "from net import Net\nfrom data import rows\nfrom options import Options\n"
# What a right text holds, and what a defect puts in its place.
DEFECTS = {
    "ACC102": (" / DIVISOR", ""),
    "ACC202": ("# each\n", "nn.utils.clip_grad_norm_(MODEL.parameters(), 1.0)\n"),
    "ACC402": ("# first\n", "OPTIMIZER.zero_grad()\n"),
    "ACC503": ("% SIZE == SIZE - 1", "% SIZE == 0"),
}

ONE_OF_A_TABLE = {
    "agent.py": HEAD
    + """
class Agent:
    def __init__(self, options):
        self.options = options

    def train(self, batch, net):
        (x, y), options = batch, self.options
        loss = F.cross_entropy(net(x), y) / DIVISOR
        loss.backward()
        return loss.detach()
""",
    "main.py": HEAD
    + IMPORTS
    + """from agent import Agent

def run(options):
    net = Net()
    agents = {"one": Agent(options), "two": Agent(options)}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(options.epochs):
        for n, (name, batch) in enumerate(rows()):
            # first
            PICKED.train(batch, net=net)
            # each
            if n % SIZE == SIZE - 1 or n + 1 == len(rows()):
                optimizer.step()
                optimizer.zero_grad()

if __name__ == "__main__":
    run(Options())
""",
}
CALLED_LIKE_A_FUNCTION = {
    "compute.py": HEAD
    + """
class Compute:
    def __init__(self, model, optimizer, pieces):
        self.model, self.optimizer, self.pieces, self.n = model, optimizer, pieces, 0

    def __call__(self, out, y):
        # first
        loss = F.cross_entropy(out, y) / DIVISOR
        loss.backward()
        # each
        if self.n % SIZE == SIZE - 1:
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.n += 1
        return loss.item()
""",
    "main.py": HEAD
    + IMPORTS
    + """from compute import Compute

def epoch(batches, net, work):
    for x, y in batches:
        work(net(x), y)

def main(options):
    net = Net()
    work = Compute(net, torch.optim.SGD(net.parameters(), lr=0.1), options.pieces)
    for _ in range(options.epochs):
        epoch(rows(), net, work)

main(Options())
""",
}
ASKED_OF_A_FUNCTION = {
    "main.py": HEAD
    + IMPORTS
    + """
def goes(net, batch, many):
    x, y = batch
    loss = F.cross_entropy(net(x), y) / DIVISOR
    loss.backward()
    return loss.detach()

def is_due(place, many):
    return place % SIZE == SIZE - 1

def apply(optimizer):
    optimizer.step()
    optimizer.zero_grad()

def main(options):
    net, many = Net(), options.pieces
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(options.epochs):
        for place, batch in enumerate(rows()):
            # first
            goes(net, batch, many)
            # each
            if is_due(place, many) or place + 1 == len(rows()):
                apply(optimizer)

main(Options())
""",
}
HANDED_TO_A_STRATEGY = {
    "strategy.py": HEAD
    + """
class Strategy:
    def __init__(self, options):
        self.pieces, self.calls = options.pieces, 0

    def backward(self, loss, model, optimizer):
        loss = loss / DIVISOR
        loss.backward()
        # each

    def optimizer_step(self, optimizer, model):
        if self.calls % SIZE == SIZE - 1:
            optimizer.step()
            optimizer.zero_grad()
        self.calls += 1
""",
    "learner.py": HEAD
    + """
class Learner:
    def __init__(self, strategy, model, optimizer, batches):
        self.strategy, self.model, self.optimizer, self.batches = strategy, model, optimizer, batches

    def fit(self, epochs):
        for _ in range(epochs):
            for x, y in self.batches:
                # first
                loss = F.cross_entropy(self.model(x), y)
                self.strategy.backward(loss, self.model, self.optimizer)
                self.strategy.optimizer_step(self.optimizer, self.model)
""",
    "main.py": HEAD
    + IMPORTS
    + """from learner import Learner
from strategy import Strategy

def main(options):
    net = Net()
    Learner(Strategy(options), net, torch.optim.SGD(net.parameters(), lr=0.1), rows()).fit(options.epochs)

main(Options())
""",
}
# The files, and what stands for a model, an optimizer, the steps and what a loss is divided by.
STRUCTURES = {
    "an object that a key picks": (
        ONE_OF_A_TABLE,
        {
            "PICKED": "agents[name]",
            "MODEL": "net",
            "OPTIMIZER": "optimizer",
            "SIZE": "options.pieces",
        },
    ),
    "an object that `get` picks": (
        ONE_OF_A_TABLE,
        {
            "PICKED": "agents.get(name)",
            "MODEL": "net",
            "OPTIMIZER": "optimizer",
            "SIZE": "options.pieces",
        },
    ),
    "an object that is called": (
        CALLED_LIKE_A_FUNCTION,
        {"MODEL": "self.model", "OPTIMIZER": "self.optimizer", "SIZE": "self.pieces"},
    ),
    "a function that says when": (
        ASKED_OF_A_FUNCTION,
        {"MODEL": "net", "OPTIMIZER": "optimizer", "SIZE": "many"},
    ),
    "an object that goes backward": (
        HANDED_TO_A_STRATEGY,
        {"MODEL": "model", "OPTIMIZER": "self.optimizer", "SIZE": "self.pieces"},
    ),
}
WRONG = [(name, code) for name in STRUCTURES for code in DEFECTS]


def written(folder: Path, name: str, code: str) -> list[str]:
    """The codes of what is found in the files of a structure into which a defect is put."""
    texts, names = STRUCTURES[name]
    (folder / ".git").mkdir()
    for file, text in {**PARTS, **texts}.items():
        changed = text.replace(*DEFECTS[code]) if code else text
        for stand_in, meant in {**names, "DIVISOR": names["SIZE"]}.items():
            changed = changed.replace(stand_in, meant)
        (folder / file).write_text(changed)
    targets = [
        Target(str(file), str(file), Settings(folder)) for file in sorted(folder.glob("*.py"))
    ]
    reports = [report for checked in check(targets) for report in checked.reports]
    return sorted({r.code for r in reports if r.code < "ACC7"})


@pytest.mark.parametrize(("name", "code"), WRONG)
def test_a_defect_is_found_in_it(name: str, code: str, tmp_path: Path) -> None:
    assert code in written(tmp_path, name, code)


@pytest.mark.parametrize("name", STRUCTURES)
def test_nothing_wrong_is_found_where_it_is_right(name: str, tmp_path: Path) -> None:
    # The last window of an epoch may be a short one.
    assert set(written(tmp_path, name, "")) <= {"ACC501", "ACC502"}


def test_losses_that_a_mask_picks_are_the_same_loss_in_each_micro_batch(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        HEAD
        + """
def train(model, loader, steps, epochs):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(epochs):
        optimizer.zero_grad()
        for number, (features, labels, mask) in enumerate(loader):
            losses = F.binary_cross_entropy_with_logits(model(features), labels, reduction="none")
            loss = losses.masked_select(mask).mean() / steps
            loss.backward()
            if (number + 1) % steps == 0:
                optimizer.step()
                optimizer.zero_grad()
"""
    )
    (checked,) = check([Target(str(file), str(file), Settings(tmp_path))])
    # What an epoch leaves over is told only where its losses are those of a full window.
    assert {report.code for report in checked.reports} == {"ACC101", "ACC501"}


IDENTITY = """
class Regularised(torch.autograd.Function):
    @staticmethod
    def forward(ctx, loss, logits):
        ctx.save_for_backward(logits)
        return loss

    @staticmethod
    def backward(ctx, grad_output):
        (logits,) = ctx.saved_tensors
        return (GRADIENT, logits * 1e-4)


def train(model, loader, steps, epochs):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(epochs):
        for number, (features, labels) in enumerate(loader):
            logits = model(features)
            loss = Regularised.apply(F.cross_entropy(logits, labels), logits)
            loss.backward()
            if (number + 1) % steps == 0 or number + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("gradient", "found"), [("grad_output", {"ACC102"}), ("grad_output / ctx.steps", set[str]())]
)
def test_a_loss_goes_through_a_function_that_leaves_its_gradient_alone(
    tmp_path: Path, gradient: str, found: set[str]
) -> None:
    file = tmp_path / "train.py"
    file.write_text(HEAD + IDENTITY.replace("GRADIENT", gradient))
    (checked,) = check([Target(str(file), str(file), Settings(tmp_path))])
    assert {report.code for report in checked.reports} == found


MODULE = """
import lightning as L


class Module(L.LightningModule):
    def training_step(self, batch, batch_idx):
        losses = F.cross_entropy(self.net(batch["x"]), batch["y"], ignore_index=-100, reduction="none")
        return STEP

    def training_step_end(self, parts):
        ENDS


trainer = L.Trainer(accumulate_grad_batches=4)
"""
# What the step returns, what the method behind it does, and whether the counts of labels differ.
ENDINGS = [
    ("losses, (batch['y'] != -100).sum()", "return parts[0].sum() / parts[1]", True),
    ("losses.sum() / (batch['y'] != -100).sum()", "self.log('loss', parts)", True),
    ("losses, (batch['y'] != -100).sum()", "return parts[0].sum() / 512", False),
]


@pytest.mark.parametrize(("step", "ends", "differs"), ENDINGS)
def test_the_loss_is_what_the_end_of_a_training_step_returns(
    tmp_path: Path, step: str, ends: str, *, differs: bool
) -> None:
    file = tmp_path / "train.py"
    file.write_text(HEAD + MODULE.replace("STEP", step).replace("ENDS", ends))
    (checked,) = check([Target(str(file), str(file), Settings(tmp_path))])
    assert ("ACC101" in {report.code for report in checked.reports}) is differs
