"""Set-up files: what cannot be made up is asked for by name, and what is given is used."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from helpers import ROOT

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

LOOPS = ROOT / "fixtures" / "setup"
# Loops that cannot be run with fakes alone: the file that gives what is missing, and the name that is asked for.
WANTING = {
    "train": ("objects", "ranking.rank_loss"),
    "penalty_of_an_adapter": ("penalty_objects", "context.adapter.penalty"),
    "criterion_given_the_steps": ("steps_objects", "criterion"),
    "steps_on_large_batches": ("batch_objects", "X"),
}
# What may be given though something stands in for it.
GIVEN = {**WANTING, "criterion_from_a_registry": ("criterion_objects", "self.criterion")}
# Set-up files that are not usable, with the reason that the finding gets.
WRONG = {
    "loss = None": "the set-up file defines no 'setup'",
    "def setup(rank, world, device): return 1": "`setup` in the set-up file returns no dictionary",
    "def setup(rank, world, device): return {'rank_loss': ...}": "the set-up file leaves `rank_loss` open",
    "def setup(rank, world, device): return missing": (
        "the set-up file raised NameError: name 'missing' is not defined"
    ),
}


Confirmed = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture
def confirmed(run: Run) -> Confirmed:
    """The confirmations of the losses that are not divided, by the names of their files."""

    def confirmed(*arguments: str) -> dict[str, dict[str, Any]]:
        options = ("--isolated", "--select", "ACC102", "--output-format", "json")
        found = json.loads(run("confirm", *options, *arguments).out)
        return {Path(one["filename"]).stem: one for one in found}

    return confirmed


# A package that a framework's own repository holds: what it could do without is not here.
OWN = """\
import importlib.util
if importlib.util.find_spec('a_package_that_is_not_here'):
    raise ImportError('a fake was taken for a package')
raise ImportError('built for another Python')
"""
USER = """\
from accelerate import Accelerator


def train(model, loader, optimizer, accumulation_steps):
    accelerator = Accelerator()
    for step, batch in enumerate(loader):
        loss = model(**batch).loss
        accelerator.backward(loss)
        if (step + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_what_cannot_be_made_up_is_asked_for_by_name(tmp_path: Path, confirmed: Confirmed) -> None:
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "__init__.py").write_text(OWN)
    (tmp_path / "user_of_its_own_repository.py").write_text(USER)
    found = confirmed(*loops(WANTING), "user_of_its_own_repository.py")
    # Nothing is made up for a framework in its own repository; what keeps it from being imported is told.
    reason = found.pop("user_of_its_own_repository")["reason"]
    assert "not installed" not in reason
    assert "built for another Python" in reason
    assert {name: one["verdict"] for name, one in found.items()} == dict.fromkeys(
        WANTING, "undecided"
    )
    for loop, one in found.items():
        _, name = WANTING[loop]
        assert re.search(
            rf'# (.*; )?read at line \d.*\n( *#.*\n)* *"{name}": \.\.\.,', one["setup"]
        )
        assert "Without them: " in one["setup"]
        compile(one["setup"], "setup.py", "exec")


def test_what_is_given_is_used(tmp_path: Path, confirmed: Confirmed) -> None:
    # What this one gives has names that the others have as well.
    apart = "steps_on_large_batches"
    together = [loop for loop in GIVEN if loop != apart]
    files = [str(LOOPS / f"{GIVEN[loop][0]}.py") for loop in together]
    (tmp_path / "objects.py").write_text(
        "import runpy\n\n\n"
        "def setup(*asked):\n"
        f"    made = [runpy.run_path(file)['setup'](*asked) for file in {files}]\n"
        "    return {name: given for one in made for name, given in one.items()}\n"
    )
    found = confirmed("--setup", str(tmp_path / "objects.py"), *loops(together))
    found |= confirmed("--setup", str(LOOPS / f"{GIVEN[apart][0]}.py"), *loops([apart]))
    assert found.keys() == GIVEN.keys()
    for one in found.values():
        assert (one["verdict"], one["setup"]) == ("confirmed", None), one
        assert one["measured"]["factor"] == "K"
        assert any(told.endswith("`: as the set-up file gives it") for told in one["fakes"])


def loops(names: Iterable[str]) -> list[str]:
    return [str(LOOPS / f"{name}.py") for name in names]


@pytest.mark.parametrize("text", WRONG)
def test_a_set_up_file_that_gives_nothing_says_why(text: str, tmp_path: Path) -> None:
    import torch

    from accumlint.confirming.harness.fakes.batches import Data
    from accumlint.confirming.harness.setup_objects import SetupError, load_setup

    cpu = torch.device("cpu")
    data = Data("rows", lambda _: 4, 8, 0, 0, cpu, torch.float64)
    (tmp_path / "objects.py").write_text(text)
    with pytest.raises(SetupError) as told:
        load_setup(str(tmp_path / "objects.py"), data, 1, cpu)
    assert str(told.value) == WRONG[text]


def test_what_is_left_open_is_made_up(tmp_path: Path) -> None:
    import torch

    from accumlint.confirming.harness.fakes.batches import Data
    from accumlint.confirming.harness.setup_objects import load_setup

    cpu = torch.device("cpu")
    data = Data("rows", lambda _: 4, 8, 0, 0, cpu, torch.float64)
    (tmp_path / "objects.py").write_text(
        "def setup(rank, world, device): return {'args.rows': 3, 'rank_loss': ...}"
    )
    assert load_setup(str(tmp_path / "objects.py"), data, 1, cpu) == {"args.rows": 3}


def test_what_is_wrong_with_a_set_up_file_is_the_reason(
    tmp_path: Path, confirmed: Confirmed
) -> None:
    (tmp_path / "objects.py").write_text("loss = None")
    found = confirmed("--setup", "objects.py", *loops(["train"]))["train"]
    assert (found["verdict"], found["reason"]) == ("undecided", WRONG["loss = None"])


TRAINER = """\
import torch
import torch.nn.functional as F
from transformers import Trainer

from .pairing import paired


class PairTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        batch = paired(inputs)
        labels = batch["both_labels"]
        logits = model(batch["both_tokens"]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return (loss, logits) if return_outputs else loss


def run(model, arguments, dataset):
    PairTrainer(model=model, args=arguments, train_dataset=dataset).train()
"""
PAIRS = """\
import torch


def batch(size):
    made = {}
    for side in ("first", "second"):
        made[f"{side}_tokens"] = torch.randint(1, 11, (2, size))
        made[f"{side}_labels"] = torch.randint(1, 11, (2, size))
    return made


def paired(batch):
    sides = [batch["first_tokens"], batch["second_tokens"]]
    labels = [batch["first_labels"], batch["second_labels"]]
    return {"both_tokens": torch.cat(sides), "both_labels": torch.cat(labels)}


def setup(rank, world, device):
    return {
        "self.train_dataset": [batch(3 + n % 3) for n in range(8)],
        "paired": paired,
        "rank_loss": lambda scores: scores.mean(),
    }
"""


def test_a_trainer_takes_its_micro_batches_from_what_it_is_given_to_train_on(
    tmp_path: Path, confirmed: Confirmed
) -> None:
    (tmp_path / "pairs.py").write_text(TRAINER)
    (tmp_path / "objects.py").write_text(PAIRS)
    load = ("--setup", "objects.py", "--select", "ACC102,ACC601")
    found = confirmed(*load, "pairs.py", *loops(["train"]))
    assert found["pairs"]["verdict"] == "confirmed"
    first = found["pairs"]["passes"][0]["updates"][0]
    assert (first["microbatches"], first["targets"]) == ([1, 2, 3, 4], [12, 16, 20, 12])
    # What is given there as `rank_loss` does not fit, which is told.
    misfit = found["train"]
    assert (misfit["verdict"], misfit["setup"]) == ("undecided", None)
    assert "takes 1 positional argument but 2 were given" in misfit["reason"]
    assert "what the set-up file gives as `rank_loss` does not support" in misfit["advice"]
