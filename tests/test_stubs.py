"""What stands in for things of a loop has what loops ask of such things."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

pytest.importorskip("torch")

import torch

from accumlint.confirming.harness.fakes.batches import Data
from accumlint.confirming.harness.fakes.optimizers import Optimizer
from accumlint.confirming.harness.fakes.steps_number import Steps
from accumlint.confirming.harness.fakes.stub import UNKNOWN, Stub
from accumlint.confirming.harness.fakes.usual_settings import LOSS_LIKE, setting

pytestmark = pytest.mark.torch

SETTINGS = {
    "max_grad_norm": 1.0,
    "clip": 1.0,
    "train_n_clips": 1,
    "num_frames": 1,
    "clips": UNKNOWN,
    "blank": 0,
    "blank_id": 0,
    "eos_token_id": 1,
    "mask_id": 1,
    "masks": UNKNOWN,
}
# Names of what a loss is computed from, which is never made up, and of what may be.
COMPUTED = {
    "loss": True,
    "total_loss": True,
    "logits": True,
    "loss_mask": False,
    "eval_loss": False,
}


def test_what_a_failed_function_would_have_returned_is_no_number_whatever_divides_it() -> None:
    answers = mock.Mock()
    for text in ("returned", "focal_loss()"):
        assert isinstance(Stub(text, answers) / Steps(4), Stub)
    half: Any = Stub("args.size", answers)
    assert half / 2 == 2


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_what_its_name_says(name: str) -> None:
    assert setting(name) == SETTINGS[name]


@pytest.mark.parametrize("name", COMPUTED)
def test_what_is_computed_on_the_way_to_a_backward_is_told_by_its_name(name: str) -> None:
    assert bool(LOSS_LIKE.search(name)) is COMPUTED[name]


def test_a_group_of_parameters_has_what_the_loop_keeps_in_it() -> None:
    optimizer = Optimizer([torch.zeros(1, requires_grad=True)], lambda name: f"made up for {name}")
    (group,) = optimizer.param_groups
    assert (group["max_grad_norm"], group["kind"]) == (1.0, "made up for group.kind")
    # What torch itself looks for is not there.
    assert "initial_lr" not in group


def test_a_micro_batch_gives_lengths_and_lets_go_of_what_it_never_had() -> None:
    data = Data("tokens", lambda _: 3, 8, 0, 0, torch.device("cpu"), torch.float64)
    batch = data.fetch().use()
    del batch["question_ids"]
    assert torch.equal(batch["audio_lengths"], batch.mask.sum(-1))
    assert batch["transcripts"] is batch.labels
