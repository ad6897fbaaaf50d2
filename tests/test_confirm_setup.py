"""Set-up files: what cannot be made up is asked for by name, and what is given is used."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
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


def confirmed(*arguments: str) -> list[dict[str, Any]]:
    """The confirmations of the losses that are not divided."""
    command = [sys.executable, "-m", "accumlint", "confirm", "--isolated", "--select", "ACC102"]
    ran = subprocess.run(
        [*command, "--output-format", "json", *arguments], capture_output=True, check=False
    )
    return json.loads(ran.stdout)


def test_what_cannot_be_made_up_is_asked_for_by_name() -> None:
    found = confirmed(*loops(WANTING))
    assert {Path(one["filename"]).stem: one["verdict"] for one in found} == dict.fromkeys(
        WANTING, "undecided"
    )
    for one in found:
        _, name = WANTING[Path(one["filename"]).stem]
        assert re.search(
            rf'# (.*; )?read at line \d.*\n( *#.*\n)* *"{name}": \.\.\.,', one["setup"]
        )
        assert "Without them: " in one["setup"]
        compile(one["setup"], "setup.py", "exec")


def test_what_is_given_is_used(tmp_path: Path) -> None:
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
    found += confirmed("--setup", str(LOOPS / f"{GIVEN[apart][0]}.py"), *loops([apart]))
    assert {Path(one["filename"]).stem for one in found} == set(GIVEN)
    for one in found:
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


def test_what_is_given_and_does_not_fit_is_told(tmp_path: Path) -> None:
    (tmp_path / "objects.py").write_text(
        "def setup(rank, world, device): return {'rank_loss': lambda scores: scores.mean()}"
    )
    (found,) = confirmed("--setup", str(tmp_path / "objects.py"), str(LOOPS / "train.py"))
    assert found["verdict"] == "undecided"
    assert found["setup"] is None
    assert "takes 1 positional argument but 2 were given" in found["reason"]
    assert "what the set-up file gives as `rank_loss` does not support" in found["advice"]


def test_a_framework_s_own_repository_has_the_framework(tmp_path: Path) -> None:
    """What it could do without and is not here is not made up for it; what keeps it from being imported is told."""
    own = tmp_path / "accelerate"
    own.mkdir()
    (own / "__init__.py").write_text(
        "import importlib.util\n"
        "if importlib.util.find_spec('a_package_that_is_not_here'):\n"
        "    raise ImportError('a fake was taken for a package')\n"
        "raise ImportError('built for another Python')\n"
    )
    (tmp_path / "train.py").write_text(
        "from accelerate import Accelerator\n\n\n"
        "def train(model, loader, optimizer, accumulation_steps):\n"
        "    accelerator = Accelerator()\n"
        "    for step, batch in enumerate(loader):\n"
        "        loss = model(**batch).loss\n"
        "        accelerator.backward(loss)\n"
        "        if (step + 1) % accumulation_steps == 0:\n"
        "            optimizer.step()\n"
        "            optimizer.zero_grad()\n"
    )
    (found,) = confirmed(str(tmp_path / "train.py"))
    assert "not installed" not in found["reason"]
    assert "built for another Python" in found["reason"]


def test_what_is_wrong_with_a_set_up_file_is_the_reason(tmp_path: Path) -> None:
    (tmp_path / "objects.py").write_text("loss = None")
    (found,) = confirmed("--setup", str(tmp_path / "objects.py"), str(LOOPS / "train.py"))
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
    }
"""


def test_a_trainer_takes_its_micro_batches_from_what_it_is_given_to_train_on(
    tmp_path: Path,
) -> None:
    (tmp_path / "pairs.py").write_text(TRAINER)
    (tmp_path / "objects.py").write_text(PAIRS)
    load_setup = ("--setup", str(tmp_path / "objects.py"))
    (found,) = confirmed("--select", "ACC601", *load_setup, str(tmp_path / "pairs.py"))
    assert found["verdict"] == "confirmed"
    first = found["passes"][0]["updates"][0]
    assert (first["microbatches"], first["targets"]) == ([1, 2, 3, 4], [12, 16, 20, 12])
