"""How long a script's own epochs are is worked out from what the script makes its data with."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from accumlint.confirming.harness.epochs import script_epoch

pytestmark = pytest.mark.torch

LOOP = """
def train(loader, accumulation_steps):
    for i, (x, y) in enumerate(loader):
        loss(x, y).backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
"""
STEP = 6
TORCH = "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
WHOLE = f"{TORCH}data = TensorDataset(torch.zeros(64, 2))\n"
# What follows the loop: the length of an epoch and the size of a window, 0 where they are open, and what is unknown.
CALLS = {
    f"{WHOLE}train(DataLoader(data, batch_size=4), 4)": (16, 4, ""),
    f"{WHOLE}train(DataLoader(data, batch_size=3, drop_last=True), 4)": (21, 4, ""),
    "train([1, 2, 3], accumulation_steps=2)": (3, 2, ""),
    "import argparse\np = argparse.ArgumentParser()\np.add_argument('--n', type=int, default=8)\n"
    "a = p.parse_args()\ntrain(range(a.n), 2)": (8, 2, ""),
    "import argparse\np = argparse.ArgumentParser()\np.add_argument('--n', required=True)\n"
    "a = p.parse_args()\ntrain(range(a.n), 2)": (0, 0, ""),
    "": (0, 0, ""),
    "train(open('not/here').readlines(), 2)": (0, 0, ""),
    "train((n for n in range(3)), 2)": (0, 0, ""),
    "from not_installed import data\ntrain(data(), 2)":
        (0, 0, "ModuleNotFoundError: No module named 'not_installed'"),
    # Rows of an absent package are as many as its files have, unless it makes whole windows.
    f"{TORCH}from not_installed import rows\ntrain(DataLoader(rows('train'), batch_size=4), 4)": (0, 0, ""),
    f"{TORCH}try:\n    from not_installed import rows\nexcept ImportError:\n    raise\n"
    "train(DataLoader(rows('train'), batch_size=4), 4)": (0, 0, ""),
    f"{TORCH}from not_installed import rows\naccumulation_steps = 4\n"
    "data = rows('train', multiple=accumulation_steps)\ntrain(DataLoader(data, batch_size=4), 4)":
        (0, 0, "ModuleNotFoundError: No module named 'not_installed'"),
    f"{TORCH}from not_installed import endless\ndata = endless()\ntrain(data, 4)\nDataLoader([1])":
        (0, 0, "ModuleNotFoundError: No module named 'not_installed'"),
}  # fmt: skip


BOTH = """
for epoch in range(2):
    for i, x in enumerate(range(8)):
        loss(x).backward()
        if (i + 1) % STEPS == 0 or i + 1 == len(data):
            optimizer.step()

STEPS, data = 4, range(8)
"""
REMAINDER = """
def train(loader, accumulate):
    for i, x in enumerate(loader):
        loss(x).backward()
        if i % accumulate == accumulate - 1:
            optimizer.step()

if __name__ == "__main__":
    for epoch in range(2):
        print(train(list(range(12)), 3))
"""
LIGHTNING = """
class Module(LightningModule):
    def __init__(self, accumulate=4):
        self.accumulate = accumulate

    def training_step(self, batch, number):
        self.manual_backward(loss(batch))
        if (number + 1) % self.accumulate == 0:
            self.optimizers().step()

Trainer({trainer}).fit(Module(), range(16))
"""
METHOD = """
class Trainer:
    def train(self, rows):
        loader = DataLoader(rows, batch_size=self.size)
        for i, x in enumerate(loader):
            loss(x).backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
"""
WRITTEN = {
    (TORCH + METHOD, 10): (0, 0),
    (BOTH, 6): (8, 4),
    (REMAINDER, 6): (12, 3),
    (LIGHTNING.format(trainer="max_epochs=1"), 9): (16, 4),
    (LIGHTNING.format(trainer="limit_train_batches=3"), 9): (0, 0),
    (LIGHTNING.format(trainer="devices=2"), 9): (0, 0),
}


@pytest.mark.parametrize(("text", "line"), WRITTEN)
def test_a_window_is_told_from_an_epochs_end_and_a_fit_from_a_loop(text: str, line: int) -> None:
    found = script_epoch(text, "train.py", line, 1)
    assert (found["length"], found["steps"]) == WRITTEN[text, line]


@pytest.mark.parametrize("call", CALLS)
def test_an_epoch_is_as_long_as_the_script_makes_it(call: str) -> None:
    found = script_epoch(f"{LOOP}\n{call}\n", "train.py", STEP, 1)
    assert (found["length"], found["steps"], found["unknown"]) == CALLS[call]


def test_ranks_share_an_epoch() -> None:
    assert script_epoch(f"{LOOP}\ntrain(range(9), 2)\n", "train.py", STEP, 2)["length"] == 5
