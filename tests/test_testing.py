"""`assert_large_batch_equivalent` passes steps that are right, and tells what is wrong with those that are not."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
from helpers import ROOT

# A step by its parts; every case replaces some of them.
STEP = """
import torch
import torch.nn.functional as F
from torch.nn.utils import clip_grad_norm_ as clip
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.3), torch.nn.Linear(6, 4)
).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=SCALED)
counts = COUNTS
batches = [(i, torch.randn(n, 5).double(), torch.randint(4, (n,))) for i, n in enumerate(counts)]
total = lambda i: sum(counts[i - i % 4 : i - i % 4 + 4])

def step(batch):
    i, inputs, labels = batch
    BEFORE
    loss = LOSS
    scaler.scale(loss).backward()
    EVERY
    if (i + 1) % 4 == 0:
        scaler.unscale_(optimizer)
        CLIP
        scaler.step(optimizer)
        scaler.update()
        CLEAR

def loop(batches):
    for batch in batches:
        step(batch)
"""
PARTS = {
    "SCALED": "False",
    "COUNTS": "[6] * 8",
    "BEFORE": "pass",
    "LOSS": "F.cross_entropy(model(inputs), labels) / 4",
    "EVERY": "pass",
    "CLIP": "pass",
    "CLEAR": "optimizer.zero_grad()",
}
BY_COUNT = "F.cross_entropy(model(inputs), labels, reduction='sum') / total(i)"
UNEVEN = "[3, 9, 4, 6, 8, 2, 5, 7]"

RIGHT: dict[str, dict[str, str]] = {
    "a mean over equal counts, divided by the steps": {},
    "a sum divided by the window's count": {"LOSS": BY_COUNT, "COUNTS": UNEVEN},
    "clipped once, by a name taken before": {"CLIP": "clip(model.parameters(), 0.01)"},
    "clipped once, under a GradScaler": {
        "SCALED": "True",
        "CLIP": "clip(model.parameters(), max_norm=0.01)",
    },
    "a mean written by hand": {"LOSS": "(model(inputs) - 1).square().mean() / 4"},
}
WRONG: dict[str, tuple[dict[str, str], str]] = {
    "not divided": (
        {"LOSS": "F.cross_entropy(model(inputs), labels)"},
        r"^2 of 2 updates apply another gradient than the large batch's \(relative error above 1e-09\):\n"
        r"  update 1 \(micro-batches 1-4\): relative error 3, cosine 1.000, factor 4 \(K\)\n"
        r"  update 2 \(micro-batches 5-8\): relative error 3, cosine 1.000, factor 4 \(K\)$",
    ),
    "divided twice": (
        {"LOSS": "F.cross_entropy(model(inputs), labels) / 16"},
        r"factor 0\.25 \(1/K\)",
    ),
    "cleared in every micro-batch": (
        {"BEFORE": "optimizer.zero_grad()"},
        r"update 1 \(micro-batches 1-4\): relative error 0\.\d+, cosine 0\.\d+, factor 0\.\d+\n",
    ),
    "never cleared": ({"CLEAR": "pass"}, r"^1 of 2 updates .*\n  update 2 "),
    "a mean over counts that differ": (
        {"COUNTS": UNEVEN},
        r"with 3/9/4/6 targets, one target weighs up to 3 times another",
    ),
    "clipped in every micro-batch": (
        {"EVERY": "clip(model.parameters(), 0.01)"},
        r"^2 of 2 updates",
    ),
    "a partial window left behind": (
        {"COUNTS": "[6] * 7"},
        r"^micro-batches 5-7 went backward, and no update of their pass applies them$",
    ),
    "never stepped": (
        {"COUNTS": "[6] * 3"},
        r"^the optimizer never stepped in 3 micro-batches$",
    ),
}
UNMEASURED: dict[str, tuple[dict[str, str], str]] = {
    "no loss of torch's": (
        {"LOSS": "model(inputs).flatten()[0] / 4"},
        "no loss was seen",
    ),
    "clipped by value": (
        {"CLIP": "torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)"},
        "by their 2-norm",
    ),
    "a part clipped": ({"CLIP": "clip(model[0].parameters(), 0.01)"}, "by their 2-norm"),
}


def ran(parts: dict[str, str], *, loop: bool = False, **given: Any) -> None:
    from accumlint.testing import assert_large_batch_equivalent

    source = re.sub("|".join(PARTS), lambda m: (PARTS | parts)[m[0]], STEP)
    module: Any = ModuleType("step")
    exec(compile(source, "step.py", "exec"), module.__dict__)
    step = module.loop if loop else module.step
    with mock.patch.dict(sys.modules, {"step": module}):
        assert_large_batch_equivalent(step, module.batches, model=module.model, loop=loop, **given)


pytestmark = pytest.mark.torch


@pytest.mark.parametrize("loop", [False, True], ids=["step", "loop"])
@pytest.mark.parametrize("parts", RIGHT.values(), ids=RIGHT)
def test_what_is_right_passes(parts: dict[str, str], loop: bool) -> None:
    assert ran(parts, loop=loop) is None


@pytest.mark.parametrize(("parts", "told"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told(parts: dict[str, str], told: str) -> None:
    with pytest.raises(AssertionError, match=told) as failure:
        ran(parts)
    assert re.search(told, str(failure.value))


@pytest.mark.parametrize(("parts", "told"), UNMEASURED.values(), ids=UNMEASURED)
def test_what_cannot_be_compared_is_no_failure(parts: dict[str, str], told: str) -> None:
    from accumlint.testing import Unmeasurable

    with pytest.raises(Unmeasurable, match=told):
        ran(parts)


def test_the_tolerance_is_the_relative_error_that_passes() -> None:
    ran(WRONG["not divided"][0], tolerance=3.1)
    with pytest.raises(AssertionError):
        ran(WRONG["not divided"][0], tolerance=2.9)


def test_nothing_stays_patched() -> None:
    import torch

    names: list[tuple[Any, str]] = [
        (torch.autograd, "backward"),
        (torch.nn.utils, "clip_grad_norm_"),
        (torch.optim.Optimizer, "zero_grad"),
        (torch.amp.GradScaler, "scale"),
    ]
    before = [getattr(owner, name) for owner, name in names]
    with pytest.raises(AssertionError):
        ran(WRONG["not divided"][0])
    assert [getattr(owner, name) for owner, name in names] == before


def test_torch_is_imported_when_it_is_needed() -> None:
    script = "import accumlint.testing, sys; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert found.stdout.decode().strip() == "False"


def test_the_example_of_the_docs_passes() -> None:
    page = (ROOT / "docs" / "confirm.md").read_text(encoding="utf-8")
    (example,) = re.findall(
        r"```python\n((?:(?!```).)*assert_large_batch_equivalent.*?)```", page, re.DOTALL
    )
    space: dict[str, Any] = {}
    exec(example, space)
    tests: list[Callable[[], None]] = [f for n, f in space.items() if n.startswith("test_")]
    assert len(tests) == 1
    tests[0]()
