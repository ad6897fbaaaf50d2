"""Whatever the loss is: right steps pass, and wrong ones are off by as much as an independent computation says."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import loops
import pytest
from helpers import NOWHERE, alone
from losses import LOSSES, STEPS, truth

from accumlint import check
from accumlint.check import Examined, Shared
from accumlint.common.place import Place
from accumlint.config import Settings
from accumlint.confirming.launch import Options
from accumlint.confirming.passes import Overrides
from accumlint.confirming.pipeline import confirm
from accumlint.confirming.plan import Plan, replanned
from accumlint.confirming.plan import question as of_path
from accumlint.confirming.result import Verdict
from accumlint.diagnostics.results.report import Mark, Report
from accumlint.files.inputs.discovery import Target
from accumlint.registry import packs
from accumlint.testing import Unmeasurable, assert_large_batch_equivalent
from accumlint.tracing.trace import Backward

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402 (it needs torch)

pytestmark = pytest.mark.torch


def made() -> tuple[Any, list[Any]]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    batches = [
        (torch.randn(6, 5).double(), torch.randint(3, (6,)), torch.randn(6, 3).double(), torch.rand(6).double() + 0.2)
        for _ in range(STEPS)
    ]  # fmt: skip
    return model.double(), batches


def stepping(expression: str, model: Any, divisor: float, every: str = "pass") -> Any:
    """A step of the loop, with a loss and what it is divided by."""
    space: dict[str, Any] = {
        "torch": torch, "F": F, "model": model, "seen": 0,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }  # fmt: skip
    divided = f"({expression}) / {divisor:g}" if divisor != 1 else expression
    source = f"""
def step(batch):
    global seen
    inputs, labels, values, weights = batch
    logits = model(inputs)
    loss = {divided}
    loss.backward()
    {every}
    seen += 1
    if seen % {STEPS} == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
    exec(compile(source, "step.py", "exec"), space)
    return space["step"]


# Divided by what each micro-batch holds: only beside a window of one, which `confirm` runs, is that no defect.
NORMALISED = "a partial likelihood"
# Every third, and all where CI asks for them.
THIRD = [
    pytest.param(name, marks=pytest.mark.whole if number % 3 else ())
    for number, name in enumerate(LOSSES)
]


@pytest.mark.parametrize("loss", [third for third in THIRD if third.values[0] != NORMALISED])
def test_a_right_step_passes_and_a_wrong_one_is_as_far_off_as_it_is(loss: str) -> None:
    expression = LOSSES[loss]
    model, batches = made()
    error, factor = truth(expression, copy.deepcopy(model), batches, STEPS)
    assert (error, factor) == pytest.approx((0, 1), abs=1e-9)
    assert_large_batch_equivalent(stepping(expression, model, STEPS), batches, model=model)

    model, batches = made()
    error, factor = truth(expression, copy.deepcopy(model), batches, 1)
    with pytest.raises(AssertionError) as failure:
        assert_large_batch_equivalent(stepping(expression, model, 1), batches, model=model)
    told = re.search(r"relative error (\S+), cosine (\S+), factor (\S+) \(K\)", str(failure.value))
    assert told is not None, failure.value
    assert float(told[1]) == pytest.approx(error, rel=0.01)
    assert float(told[2]) == pytest.approx(1, abs=1e-3)
    assert float(told[3]) == pytest.approx(factor, rel=1e-3)


@pytest.mark.parametrize("loss", THIRD)
def test_what_is_cleared_in_every_micro_batch_is_seen_whatever_the_loss(loss: str) -> None:
    model, batches = made()
    every = f"seen + 1 < {STEPS} and optimizer.zero_grad()"
    with pytest.raises(AssertionError, match="relative error"):
        assert_large_batch_equivalent(
            stepping(LOSSES[loss], model, STEPS, every), batches, model=model
        )


def mean_loss(expression: str, model: Any) -> Any:
    """The large batch's loss: that of all rows of a window in one."""

    def reference(window: Any) -> Any:
        inputs, labels, values, weights = (
            torch.cat(column) for column in zip(*window, strict=True)
        )
        names = {
            "torch": torch, "F": F, "model": model, "logits": model(inputs), "labels": labels,
            "values": values, "weights": weights,
        }  # fmt: skip
        return eval(expression, names)

    return reference


@pytest.mark.parametrize("loss", ["cross-entropy", "half of it", "focal", "min-SNR", "Huber"])
def test_a_reference_of_ones_own_says_what_the_large_batch_is(loss: str) -> None:
    model, batches = made()
    reference = mean_loss(LOSSES[loss], model)
    step = stepping(LOSSES[loss], model, STEPS)
    assert_large_batch_equivalent(step, batches, model=model, reference=reference)
    step = stepping(LOSSES[loss], model, 1)
    with pytest.raises(AssertionError, match=r"relative error 3, cosine 1\.000, factor 4"):
        assert_large_batch_equivalent(step, batches, model=model, reference=reference)


def test_a_reference_tells_a_root_from_the_large_batchs() -> None:
    loss = LOSSES["root of the mean square"]
    model, batches = made()
    with pytest.raises(AssertionError, match=r"relative error 0\.0"):
        assert_large_batch_equivalent(
            stepping(loss, model, STEPS), batches, model=model, reference=mean_loss(loss, model)
        )


def test_what_weighs_its_targets_and_has_different_numbers_wants_a_reference() -> None:
    model, batches = made()
    batches[1] = tuple(part[:3] for part in batches[1])
    with pytest.raises(Unmeasurable, match="`reference=` tells"):
        assert_large_batch_equivalent(stepping(LOSSES["focal"], model, STEPS), batches, model=model)


LOOP = """\
import torch
import torch.nn.functional as F


def train(model, loader, optimizer, accumulation_steps):
    for step, (inputs, labels, values, weights) in enumerate(loader):
        logits = model(inputs)
        loss = ({loss}){divided}
        loss.backward()
        if (step + 1) % {steps} == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


# A loss is the same in each update.
FEW = Overrides(updates=2)


def question(text: str, folder: Path) -> Plan:
    """Whether a loop divides its loss by its window, put to it whatever `check` finds."""
    rule = next(packs.rule(entry) for entry in packs.catalogue() if entry.code == "ACC102")
    target = Target("train.py", str(folder / "train.py"), Settings(folder))
    examined = check.examine(text.encode(), target, Shared())
    assert isinstance(examined, Examined)
    mark = Mark(Place(1, 1, 1, 1), "")
    report = Report(target.shown, target.file, rule.code, rule.name, "", "", "", mark)
    return replanned(Plan(report, rule, rule.ranks, None), examined, FEW)


def asking(text: str) -> Plan:
    """As `question`, on the path through the loop of a script that has nothing else."""
    rule = next(packs.rule(entry) for entry in packs.catalogue() if entry.code == "ACC102")
    target = alone()
    examined = check.examine(text.encode(), target, Shared())
    assert isinstance(examined, Examined)
    paths = (trace for traces in examined.exploration.traces for trace in traces)
    trained = next(p for p in paths if p.main.of(Backward) and not p.exceptional)
    return of_path(rule, trained, examined, target, FEW)


def loop(loss: str, divided: bool, steps: str = "4") -> str:
    return LOOP.format(loss=loss, divided=f" / {steps}" if divided else "", steps=steps)


# Windows of a number that is written and of one that is given, for every eighth loss each; CI asks for both of all.
@pytest.mark.long
@pytest.mark.parametrize(
    "every", [8, pytest.param(1, marks=pytest.mark.whole)], ids=["every eighth", "all"]
)
def test_confirm_measures_each_loss_and_confirms_no_right_one(every: int) -> None:
    asked = [
        (loss, divided, steps)
        for at, steps in enumerate(("4", "accumulation_steps"))
        for loss in [*LOSSES][at % every :: every]
        for divided in (False, True)
    ]
    texts = [loop(LOSSES[loss], divided, steps) for loss, divided, steps in asked]
    answers = confirm([question(text, NOWHERE) for text in texts], Options(), lambda _: None)
    for (loss, divided, steps), answer in zip(asked, answers, strict=True):
        if divided:
            assert answer.verdict is Verdict.REFUTED, f"{loss}, {steps}: {answer.reason}"
        else:
            assert answer.verdict is Verdict.CONFIRMED, f"{loss}, {steps}: {answer.reason}"
            model, batches = made()
            _, factor = truth(LOSSES[loss], model, batches, 1)
            found = answer.measured.get("scale", answer.measured.get("share"))
            assert found == pytest.approx(factor, rel=1e-6), loss


@pytest.mark.long
@pytest.mark.parametrize(
    "every", [4, pytest.param(1, marks=pytest.mark.whole)], ids=["every fourth", "all"]
)
def test_confirm_tells_right_scripts_from_wrong_ones(every: int) -> None:
    """With the factor that is known from how the two differ."""
    asked = [(name, right) for name in [*loops.SCRIPTS][::every] for right in (False, True)]
    texts = [loops.written(name, right) for name, right in asked]
    answers = confirm([asking(text) for text in texts], Options(), lambda _: None)
    for (name, right), answer in zip(asked, answers, strict=True):
        wanted = Verdict.REFUTED if right else Verdict.CONFIRMED
        assert answer.verdict is wanted, f"{name}: {answer.reason}"
        if not right:
            found = answer.measured.get("scale", answer.measured.get("share"))
            assert found == pytest.approx(loops.SCRIPTS[name][1], rel=1e-6), name


def test_what_another_file_divides_by_the_windows_number_is_not_confirmed(tmp_path: Path) -> None:
    focal = LOSSES["focal"]
    (tmp_path / "losses.py").write_text(
        "import torch\nimport torch.nn.functional as F\n\n"
        f"def focal(logits, labels):\n    return {focal} / 4\n"
    )
    text = f"from losses import focal\n{loop('focal(logits, labels)', divided=False)}"
    (answer,) = confirm([question(text, tmp_path)], Options(), lambda _: None)
    assert answer.verdict is Verdict.UNDECIDED
    assert "is divided by 4 all the same" in answer.reason


TRACED = """
import torch
import torch.nn.functional as F
from accumlint.testing import assert_large_batch_equivalent

model = torch.nn.Linear(5, 3)

def step(batch):
    F.cross_entropy(model(batch), torch.zeros(7).long()).backward()

def test_raises():
    assert_large_batch_equivalent(step, [torch.randn(4, 5)], model=model)

def test_is_wrong():
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def double(batch):
        (2 * F.mse_loss(model(batch), torch.zeros(4, 3))).backward()
        optimizer.zero_grad()
        optimizer.step()

    assert_large_batch_equivalent(double, [torch.randn(4, 5)], model=model)
"""


def test_a_traceback_holds_frames_of_the_test_only(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TRACED)
    done = pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider")
    done.assert_outcomes(failed=2)
    assert "ValueError" in done.stdout.str()
    assert "site-packages/accumlint" not in done.stdout.str()
    assert "accumlint/" not in done.stdout.str()


RANKS = """
import sys
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from accumlint.testing import assert_large_batch_equivalent

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(5, 3).double()
wrapped = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
batches = [(i, torch.randn(4, 5).double(), torch.randint(3, (4,))) for i in range(8)]

def step(batch):
    i, inputs, labels = batch
    (F.cross_entropy(wrapped(inputs), labels) / divisor).backward()
    if i % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()

def reference(window):
    return sum(F.cross_entropy(model(inputs), labels) for _, inputs, labels in window) / len(window)

for divisor in (4, 1):
    for given in (None, reference):
        try:
            assert_large_batch_equivalent(step, batches, model=model, reference=given)
        except AssertionError as wrong:
            told = str(wrong).splitlines()[1].strip()
        else:
            told = "right"
        print(f"{dist.get_rank()} {divisor} {told}\\n", end="", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.whole
def test_every_rank_is_told_the_same(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    # torchrun imports torch once for all ranks.
    start = ["--nproc-per-node=2", "--standalone", "--start-method=fork", "--run-path"]
    command = [sys.executable, "-m", "torch.distributed.run", *start, "ranks.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200
    )
    wrong = "update 1 (micro-batches 1-4): relative error 3, cosine 1.000, factor 4 (K)"
    told = [f"{rank} 4 right" for rank in (0, 0, 1, 1)] + [f"{r} 1 {wrong}" for r in (0, 0, 1, 1)]
    assert sorted(done.stdout.splitlines()) == sorted(told), done.stderr
