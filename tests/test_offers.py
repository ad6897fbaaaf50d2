"""A fix is offered where nothing but what the finding hid comes to light, and calls no method that may not be there."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest
from conftest import Run

from accumlint import reading
from accumlint.check import Shared
from accumlint.diagnostics.fix_selection import Health
from accumlint.editing import After, Insert
from accumlint.editing.receivers import Standing, standing
from accumlint.registry import packs

HEAD = """\
import torch
import torch.nn.functional as F
from torch import optim
from torch.amp import GradScaler
"""
TOP = """
def train(model, loader, n, epochs):
    optimizer = optim.AdamW(model.parameters())
    for _ in range(epochs):
        for i, (inputs, targets) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)DIVIDED
            loss.backward()
            if (i + 1) % n == 0:
                optimizer.step()
"""
DIVIDED = TOP.replace("DIVIDED", " / n")
SUMMED = TOP.replace("DIVIDED", "")
ONE_EPOCH = """
def train(model, loader, n):
    optimizer = optim.AdamW(model.parameters())
    for i, (inputs, targets) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets) / n
        loss.backward()
        if (i + 1) % n == 0:
            optimizer.step()
"""
UNCLEARED = """
def train(model, loader, n, optimizer):
    MADE
    while True:
        for _ in range(n):
            inputs, targets = next(loader)
            loss = F.cross_entropy(model(inputs), targets) / n
            loss.backward()
        optimizer.step()
"""
SCALED = """
def train(model, loader, n):
    optimizer = optim.AdamW(model.parameters())
    scaler = GradScaler()
    for i, (inputs, targets) in enumerate(loader):
        loss = F.cross_entropy(model(inputs), targets) / n
        loss = scaler.scale(loss)
        loss.backward()
        if (i + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def offered(run: Run, file: Path, source: str, code: str) -> str:
    """The line that heads the fix of the finding with a code, "" where none is offered."""
    file.write_text(source)
    told = run("check", "--output-format", "full", "--select", code, str(file)).out
    assert code in told
    heads = ("Fix: ", "Fix (unsafe): ", "Suggestion: ")
    lines = (line.removeprefix("   │ ").strip(" │") for line in told.splitlines())
    return next((line for line in lines if line.startswith(heads)), "")


@pytest.mark.parametrize(
    ("loop", "told"),
    [
        (ONE_EPOCH, "Fix: Clear after the step"),
        (
            DIVIDED,
            "Fix (unsafe): Clear after the step; then ACC501 (trailing-window-dropped) shows",
        ),
        (
            SUMMED,
            "Fix (unsafe): Clear after the step; "
            "then ACC102 (loss-not-divided) and ACC501 (trailing-window-dropped) show",
        ),
    ],
)
def test_a_fix_says_what_its_finding_hides(run: Run, tmp_path: Path, loop: str, told: str) -> None:
    assert offered(run, tmp_path / "train.py", HEAD + loop, "ACC402") == told


@pytest.mark.parametrize("loop", [DIVIDED, SUMMED])
def test_what_shows_next_is_fixed_in_the_same_run(run: Run, tmp_path: Path, loop: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(HEAD + loop)
    assert run("check", "--fix", "--unsafe-fixes", str(file)).code == 0
    after = file.read_text()
    ast.parse(after)
    assert "(loss / window).backward()" in after or "/ window\n" in after
    run("check", "--fix", "--unsafe-fixes", str(file))
    assert file.read_text() == after


@pytest.mark.parametrize(
    ("mended", "come", "better"),
    [
        ("ACC402", {}, True),
        ("ACC402", {"ACC102": True}, True),
        ("ACC402", {"ACC301": False, "ACC501": True}, True),
        ("ACC402", {"ACC401": True}, False),
        ("ACC402", {"ACC102": True, "ACC403": True}, False),
        ("ACC405", {"ACC301": False}, True),
        ("ACC405", {"ACC301": True}, False),
    ],
)
def test_only_infos_and_what_a_rule_hides_may_come(
    mended: str, come: dict[str, bool], better: bool
) -> None:
    """`come` are the codes that come with the fix, each with whether it is worse than an info."""
    before = Health(Counter([mended]), Counter([mended]), frozenset([mended]), 0, False)
    found = Counter(come.keys())
    after = Health(found, found, frozenset(code for code in come if come[code]), 0, False)
    assert after.improves_on(before, packs.rule(packs.find(mended))) is better


CLEARS = "Call `optimizer.zero_grad()` after the step"


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("optimizer = optim.AdamW(model.parameters())", f"Fix: {CLEARS}"),
        ("torch.optim.lr_scheduler.StepLR(optimizer, 3)", f"Fix: {CLEARS}"),
        ("optimizer.zero_grad()", f"Fix: {CLEARS}"),
        ("pass", f"Suggestion: {CLEARS}"),
        ("optimizer = Unknown(model.parameters())", f"Suggestion: {CLEARS}"),
    ],
)
def test_no_fix_calls_a_method_of_an_object_that_may_not_have_it(
    run: Run, tmp_path: Path, made: str, told: str
) -> None:
    source = HEAD + "from schedules import Unknown\n" + UNCLEARED.replace("MADE", made)
    assert offered(run, tmp_path / "train.py", source, "ACC401") == told


def test_an_annotated_parameter_is_known(run: Run, tmp_path: Path) -> None:
    source = UNCLEARED.replace("n, optimizer", "n, optimizer: optim.Optimizer").replace(
        "MADE", "pass"
    )
    assert offered(run, tmp_path / "train.py", HEAD + source, "ACC401") == f"Fix: {CLEARS}"


def test_a_scaled_loss_is_not_taken_for_its_scaler(run: Run, tmp_path: Path) -> None:
    told = offered(run, tmp_path / "train.py", HEAD + SCALED, "ACC206")
    assert told == "Fix: Step by `scaler.step(optimizer)`"


SHIFTED = """
def train(model, loader, n, epochs):
    optimizer = optim.AdamW(model.parameters())
    for _ in range(epochs):
        for i, (inputs, targets) in enumerate(loader):
            loss = F.cross_entropy(model(inputs), targets) / n
            loss.backward()
            if TEST % n == 0 or i == len(loader) - 1:
                optimizer.step()
                optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("test", "told"),
    [("(i + 1)", "Fix (unsafe): Divide the partial window by its own length"), ("i", "")],
)
def test_lengths_are_counted_only_from_where_windows_begin(
    run: Run, tmp_path: Path, test: str, told: str
) -> None:
    source = HEAD + SHIFTED.replace("TEST", test)
    assert offered(run, tmp_path / "train.py", source, "ACC502") == told


def test_a_suggestion_is_not_made(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    source = HEAD + UNCLEARED.replace("MADE", "pass")
    file.write_text(source)
    assert run("check", "--fix", "--unsafe-fixes", str(file)).code == 1
    assert file.read_text() == source


ROLES = """\
import torch
from accelerate import Accelerator


class Warmup:
    def step(self):
        self.inner.step()


class Clearing(Warmup):
    def zero_grad(self):
        self.inner.zero_grad()


class Mine(torch.optim.Optimizer):
    def step(self):
        pass


warmup = Warmup()
clearing = Clearing()
mine = Mine()
adam = torch.optim.Adam([])
model, adam_too = Accelerator().prepare(model, adam)
made = make()
loss = scaler.scale(loss)
scaler.update()
"""


@pytest.mark.parametrize(
    ("call", "known"),
    [
        ("warmup.zero_grad()", Standing.LACKING),
        ("clearing.zero_grad()", Standing.CERTAIN),
        ("mine.zero_grad()", Standing.CERTAIN),
        ("adam.zero_grad()", Standing.CERTAIN),
        ("adam_too.zero_grad()", Standing.CERTAIN),
        ("made.zero_grad()", Standing.UNKNOWN),
        ("nobody.zero_grad()", Standing.UNKNOWN),
        ("loss.step(adam)", Standing.UNKNOWN),
        ("scaler.step(adam)", Standing.CERTAIN),
        ("made.sub.step(made)", Standing.UNKNOWN),
        ("torch.cuda.synchronize()", Standing.CERTAIN),
        ("total = 0", Standing.CERTAIN),
    ],
)
def test_what_a_file_tells_of_an_object(call: str, known: Standing) -> None:
    program = reading.read(ROLES, "/train.py", Shared().project)
    assert standing([Insert(call, After(program.body[0]))], program) is known


TRAILING = """
def train(model, loader, n, epochs):
    optimizer = optim.AdamW(model.parameters())
    MADE
    for _ in range(epochs):
        for i, (inputs, targets) in enumerate(loader):
            loss = F.cross_entropy(model(inputs), targets) / n
            loss.backward()
            if (i + 1) % n == 0:
                optimizer.step()
                optimizer.zero_grad()
"""
STEPS_IT = "Step the partial window, divided by its own length"


@pytest.mark.parametrize(
    ("head", "made", "told"),
    [
        ("", "loader = torch.utils.data.DataLoader(rows)", f"Fix (unsafe): {STEPS_IT}"),
        ("", "print(len(loader))", f"Fix (unsafe): {STEPS_IT}"),
        ("", "pass", f"Fix (unsafe): {STEPS_IT}; `loader` must have a length"),
        ("import lhotse\n", "pass", f"Suggestion: {STEPS_IT}; `loader` must have a length"),
    ],
)
def test_a_length_that_may_not_be_there_is_told(
    run: Run, tmp_path: Path, head: str, made: str, told: str
) -> None:
    source = HEAD + head + TRAILING.replace("MADE", made)
    assert offered(run, tmp_path / "train.py", source, "ACC501") == told
