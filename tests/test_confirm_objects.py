"""Confirm gives a loop the objects that libraries promise, and confirms nothing by those that it made itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from accumlint.config import Settings
from accumlint.confirming.launch import Options
from accumlint.confirming.passes import Overrides
from accumlint.confirming.pipeline import Request, confirm, gathered
from accumlint.confirming.plan import Plan
from accumlint.confirming.result import Verdict
from accumlint.files.inputs.discovery import Target

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

STEP = """\
        loss.backward()
        if (step + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
HEAD = "import kit\nimport torch\nimport torch.nn.functional as F\n\n\n"
UNDIVIDED = f"""{HEAD}def train(model, loader, optimizer, tokenizer, vae):
    for step, batch in enumerate(loader):
"""
# Loops whose windows are not divided, by what a library gives them.
GIVEN = {
    "texts of a tokenizer": """\
        inputs = tokenizer(batch["texts"], return_tensors="pt").to("cuda")
        loss = model(inputs.input_ids, attention_mask=inputs.attention_mask, labels=inputs.input_ids).loss
""",
    "latents": """\
        latents = vae.encode(batch["images"]).latent_dist.sample() * vae.config.scaling_factor
        loss = F.mse_loss(model(latents), torch.zeros_like(latents))
""",
    "an object with a loss": """\
        outputs = model.compute_loss(batch["inputs"], labels=batch["labels"])
        loss = outputs.loss
""",
}
# The steps of an epoch that a caller gives; what only a fake schedules.
EPOCH = """\
def train_epoch(model, data, optimizer, iters_per_epoch, accumulation_steps):
    optimizer.zero_grad()
    for step in range(iters_per_epoch):
        inputs, labels = next(data)
        loss = F.cross_entropy(model(inputs), labels) / accumulation_steps
        loss.backward()
        if (step + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
SCHEDULED = """\
def train(model, loader, optimizer, accumulation_steps):
    scheduler = kit.schedule(optimizer, len(loader) // accumulation_steps)
    for step, (inputs, labels) in enumerate(loader):
        loss = F.cross_entropy(model(inputs), labels) / accumulation_steps
        loss.backward()
        if (step + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
"""
# An optimizer that goes backward; what an unknown one divides by is not known.
SCALED = f"""\
from apex.optimizers import FP16_Optimizer
{HEAD}def train(model, loader, kit):
    optimizer = FP16_Optimizer(model.parameters())
    for step, (inputs, labels) in enumerate(loader):
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.backward(loss)
        if (step + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
SIZED = "kit.schedule(optimizer, ", "torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max="
CONFIRMED, UNDECIDED = Verdict.CONFIRMED, Verdict.UNDECIDED
LOOPS = {
    **{what: (f"{UNDIVIDED}{loop}{STEP}", "ACC102", CONFIRMED) for what, loop in GIVEN.items()},
    "Apex's optimizer that scales the loss": (SCALED, "ACC102", CONFIRMED),
    "an unknown optimizer that scales the loss": (
        SCALED.replace("from apex.optimizers", "from kit"), "ACC102", UNDECIDED
    ),
    "an epoch of so many steps": (HEAD + EPOCH, "ACC501", CONFIRMED),
    "an unknown schedule": (HEAD + SCHEDULED, "ACC506", UNDECIDED),
    "a known schedule": (HEAD + SCHEDULED.replace(*SIZED), "ACC506", CONFIRMED),
}  # fmt: skip


@pytest.mark.long
def test_loops_are_decided_with_what_libraries_promise(tmp_path: Path) -> None:
    plans: list[Plan] = []
    for number, (text, code, _) in enumerate(LOOPS.values()):
        file = tmp_path / f"train{number}.py"
        file.write_text(text)
        target = Target(file.name, str(file), Settings(tmp_path, select=(code,)))
        found, problems = gathered([Request(target)], Overrides(), mend=False)
        assert (len(found), problems) == (1, []), text
        plans += found
    answers = confirm(plans, Options(), lambda _: None)
    found = {
        what: (one.verdict, "" if one.verdict is wanted else one.reason)
        for (what, (_, _, wanted)), one in zip(LOOPS.items(), answers, strict=True)
    }
    assert found == {what: (wanted, "") for what, (_, _, wanted) in LOOPS.items()}


# The optimizer is another file's, and may reduce; the loop itself reduces a flag alone.
FLAGGED = f"""\
import torch.distributed as dist
{HEAD}def train(model, loader, kit, accumulation_steps, flag):
    optimizer = kit.optimizer(model)
    scaler = torch.amp.GradScaler("cuda")
    for step, (inputs, labels) in enumerate(loader):
        labels[:, :2] = -100
        loss = F.cross_entropy(model(inputs).view(-1, 8), labels.view(-1))
        scaler.scale(loss / accumulation_steps).backward()
        if (step + 1) % accumulation_steps == 0:
            dist.all_reduce(flag)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""


def test_means_are_asked_about_on_one_rank_where_no_gradient_is_reduced(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(FLAGGED)
    target = Target(file.name, str(file), Settings(tmp_path, select=("ACC101",)))
    plans, _ = gathered([Request(target)], Overrides(), mend=False)
    assert [plan.ranks for plan in plans] == [1]
    (answer,) = confirm(plans, Options(), lambda _: None)
    assert answer.verdict is CONFIRMED
    assert answer.control is not None
    assert answer.control.what.startswith("equal numbers of targets")


def test_the_loop_of_a_stock_trainer_is_left_to_a_run_of_the_script(tmp_path: Path) -> None:
    file = tmp_path / "tune.py"
    file.write_text(
        "import transformers\nfrom transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n\n"
        'model = AutoModelForCausalLM.from_pretrained("m")\n'
        'settings = TrainingArguments("out", evaluation_strategy="no", gradient_accumulation_steps=4)\n'
        "collator = transformers.DataCollatorForSeq2Seq(None, label_pad_token_id=-100)\n"
        "Trainer(model=model, args=settings, data_collator=collator).train()\n"
    )
    (tmp_path / "requirements.txt").write_text("transformers==4.31\n")
    target = Target(file.name, str(file), Settings(tmp_path, select=("ACC101",)))
    plans, _ = gathered([Request(target)], Overrides(), mend=False)
    (answer,) = confirm(plans, Options(), lambda _: None)
    assert answer.reason.startswith("`Trainer` holds the loop")
    assert answer.advice.startswith("`accumlint confirm tune.py:7 --run -- tune.py`")
