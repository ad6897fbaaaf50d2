"""What a framework's trainer calls is found by the class that it derives from, wherever that stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from accumlint import reading
from accumlint.reading.hooks import HOOKS, METHODS, driven
from accumlint.reading.project import Project

STEP = "class C({}):\n    def training_step(self, batch, batch_idx):\n        return self.loss(batch)\n"
LOSS = """\
class C({}):
    def compute_loss(self, model, inputs, return_outputs=False{}):
        loss = model(**inputs).loss
        return (loss, None) if return_outputs else loss{}
"""
BACK = """\
class C({}):
    def training_step(self, model, inputs{}):
        loss = self.compute_loss(model, inputs)
        self.accelerator.backward(loss)
        return loss.detach()
"""
COUNT = ", num_items_in_batch=None"
ITSELF = "\n\n    def training_step(self, model, inputs):\n        self.compute_loss(model, inputs).backward()"


def found(file: Path, text: str) -> list[tuple[str, str, bool]]:
    """What is driven in a text: the framework, the method, and whether its loss is divided by the steps."""
    file.write_text(text)
    project = Project()
    program = reading.read(text, str(file), project)
    return [(d.hook.framework, d.function.name, d.divides) for d in driven(program, project)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import lightning as L\n" + STEP.format("L.LightningModule"), [("lightning", True)]),
        (
            "import pytorch_lightning as pl\n" + STEP.format("Mixin, pl.LightningModule"),
            [("lightning", True)],
        ),
        ("from elsewhere import LightningModule\n" + STEP.format("LightningModule"), []),
        (
            "import lightning as L\n"
            + STEP.format("L.LightningModule")
            + "    automatic_optimization = False\n",
            [],
        ),
        (
            "import lightning as L\n"
            + STEP.format("L.LightningModule").replace("batch_idx", "batch_idx, optimizer_idx"),
            [],
        ),
        (
            "import lightning as L\n"
            + STEP.format("L.LightningModule").replace(
                "self.loss(batch)", "super().training_step(batch, batch_idx)"
            ),
            [],
        ),
        (
            "from transformers import Trainer\n" + LOSS.format("Trainer", "", ""),
            [("transformers", True)],
        ),
        (
            "from transformers.trainer import *\n" + LOSS.format("Trainer", "", ""),
            [("transformers", True)],
        ),
        # Who takes the count and does not use it is told by ACC601, who uses it divides.
        ("from transformers import Trainer\n" + LOSS.format("Trainer", COUNT, ""), []),
        (
            "from transformers import Trainer\n"
            + LOSS.format("Trainer", COUNT, "").replace("loss, None", "loss / num_items_in_batch"),
            [],
        ),
        (
            "from transformers import Trainer\n"
            + LOSS.format("Trainer", COUNT, "\n\n    loss_is_scaled_for_ga = False"),
            [("transformers", True)],
        ),
        (
            "from transformers import Trainer\n"
            + LOSS.format("Trainer", COUNT, "\n\n    loss_is_scaled_for_ga = True"),
            [],
        ),
        ("from trl import DPOTrainer\n" + LOSS.format("DPOTrainer", COUNT, ""), [("trl", True)]),
        ("from trl import SFTTrainer\n" + LOSS.format("SFTTrainer", COUNT, ""), []),
        ("from transformers import Trainer\n" + LOSS.format("Trainer", "", ITSELF), [("transformers", True)]),
        ("from transformers import Trainer\n" + BACK.format("Trainer", ""), [("transformers", True)]),
        (
            "from transformers import Trainer\n" + BACK.format("Trainer, Mixin", COUNT),
            [("transformers", False)],
        ),
    ],
)  # fmt: skip
def test_a_row_holds_where_its_base_class_is_the_framework_s(
    tmp_path: Path, text: str, expected: list[tuple[str, bool]]
) -> None:
    assert [(name, divides) for name, _, divides in found(tmp_path / "a.py", text)] == expected


def test_a_base_class_of_the_project_is_followed_to_the_framework_s(tmp_path: Path) -> None:
    (tmp_path / "setup.py").touch()
    (tmp_path / "base.py").write_text(
        "from lightning.pytorch import LightningModule\n\n\nclass Base(LightningModule):\n    pass\n"
    )
    text = "from base import Base\n\n\n" + STEP.format("Base")
    assert found(tmp_path / "train.py", text) == [("lightning", "training_step", True)]


def test_every_contract_says_where_it_was_read() -> None:
    assert {hook.method for hook in HOOKS} == METHODS
    for hook in HOOKS:
        assert all((hook.bases, hook.packages, hook.steps))
        assert hook.version[0].isdigit()
        assert hook.source.partition("/")[0] in hook.packages


@pytest.mark.parametrize(
    ("beside", "accumulates"),
    [
        ({}, False),
        ({"scripts/start.py": "trainer = Trainer(accumulate_grad_batches=8)\n"}, True),
        ({"scripts/start.py": "trainer = Trainer(max_epochs=8)\n"}, False),
        ({"tests/start.py": "trainer = Trainer(accumulate_grad_batches=8)\n"}, False),
        ({"conf/trainer.yaml": "accumulate_grad_batches: 8\n"}, True),
        ({"scripts/train.sh": "python train.py --accumulate_grad_batches 8\n"}, True),
        ({"conf/trainer.yaml": "max_epochs: 8\n"}, False),
        ({"conf/notes.txt": "accumulate_grad_batches: 8\n"}, False),
    ],
)
def test_any_file_of_the_project_may_set_the_steps(
    tmp_path: Path, beside: dict[str, str], accumulates: bool
) -> None:
    (tmp_path / "setup.py").touch()
    for name, content in beside.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(content)
    text = "import lightning as L\n" + STEP.format("L.LightningModule")
    program = reading.read(text, str(tmp_path / "train.py"), project := Project())
    assert [d.accumulates for d in driven(program, project)] == [accumulates]


@pytest.mark.parametrize(
    ("made", "accumulates"),
    [
        ("trainer = L.Trainer(max_epochs=3)", False),
        ("trainer = L.Trainer(accumulate_grad_batches=1)", True),
        ("trainer = L.Trainer(**options)", True),
        ("trainer = make(C())", True),
    ],
)
def test_a_script_that_tells_its_trainer_no_steps_does_not_accumulate(
    tmp_path: Path, made: str, accumulates: bool
) -> None:
    (tmp_path / "setup.py").touch()
    (tmp_path / "other.py").write_text("trainer = Trainer(accumulate_grad_batches=8)\n")
    text = (
        f"import lightning as L\n{STEP.format('L.LightningModule')}\n\n{made}\ntrainer.fit(C())\n"
    )
    program = reading.read(text, str(tmp_path / "train.py"), project := Project())
    assert [d.accumulates for d in driven(program, project)] == [accumulates]
