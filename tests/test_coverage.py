"""What was not read is told: each backward call is read whole, partly or not, and the reason stands beside it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from conftest import Run

from accumlint import check, reading, tracing
from accumlint.diagnostics import coverage

HEAD = "import torch\nfrom lib import helper, work, adjust\n"
LOOP = """
for i, x in enumerate(loader):
    loss = model(x).mean() / 4
    loss.backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
WHOLE = [(6, "whole", ())]
# A file, and its backward calls: line, how far they were read, and what the first reason holds.
FILES = [
    (LOOP, WHOLE),
    # No step.
    (
        "\nfor x in loader:\n    loss = model(x).mean()\n    loss.backward()\n",
        [(6, "partly", ("no optimizer step is reached",))],
    ),
    # A call that may do anything with the loss.
    (
        LOOP.replace("    loss.backward()", "    helper(loss, optimizer)\n    loss.backward()"),
        [
            (
                7,
                "partly",
                (
                    "`lib.helper()` at line 6 receives the loss and the optimizer and could not be followed",
                ),
            )
        ],
    ),
    # A loop is read past an exception behind a condition, and not past one without.
    (
        LOOP.replace("optimizer.step()", "optimizer.step()\n        raise ValueError(i)"),
        WHOLE,
    ),
    (
        "\ndef train():\n    for x in loader:\n        raise NotImplementedError\n"
        "        model(x).mean().backward()\n        optimizer.step()\n",
        [(7, "not", ("the run raises NotImplementedError at line 6 before it gets here",))],
    ),
    # A window of one micro-batch, where the file has accumulation steps.
    (
        LOOP.replace("(i + 1) % 4 == 0", "loss > 0 or config.accumulation_steps"),
        [
            (
                6,
                "partly",
                ("every window has one micro-batch, although the file names `accumulation_steps`",),
            )
        ],
    ),
    # Windows of which a clear leaves one micro-batch are windows of several.
    (
        LOOP.replace("loss.backward()", "optimizer.zero_grad()\n    loss.backward()").replace(
            "% 4", "% accumulation_steps"
        ),
        [(7, "whole", ())],
    ),
    # A method of the file's is no backward pass: the one in it is.
    (
        "\nclass Trainer:\n    def backward(self, loss):\n        loss.backward()\n\n"
        "    def fit(self):\n        for x in loader:\n"
        "            self.backward(model(x).mean())\n            optimizer.step()\n"
        "            optimizer.zero_grad()\n",
        [(6, "whole", ())],
    ),
    # An autograd function goes backward for others.
    (
        LOOP + "\nclass Twice(torch.autograd.Function):\n    @staticmethod\n"
        "    def backward(ctx, given):\n        ctx.out.backward(given)\n        return given\n",
        WHOLE,
    ),
]


@pytest.mark.parametrize(("text", "expected"), FILES)
def test_each_backward_call_is_told_with_how_far_it_was_read(
    text: str, expected: list[tuple[int, str, tuple[str, ...]]]
) -> None:
    project = check.Shared().project
    program = reading.read(HEAD + text, "/train.py", project)
    sites = coverage.coverage(program, tracing.explore(program, project))
    assert [(program.place(s.node).line, s.state, s.reasons) for s in sites] == expected


def test_a_run_is_not_all_clear_where_a_loop_was_not_read(run: Run) -> None:
    Path("train.py").write_text(HEAD + LOOP.replace("        optimizer.step()\n", ""))
    Path("whole.py").write_text(HEAD + LOOP)
    assert run("check", "whole.py").out == "All clear: no finding in 1 file\n"
    told = "train.py:6: read partly: no optimizer step is reached"
    first = run("check", "--ignore", "ACC505").out.splitlines()
    assert first == ["No finding in 2 files", "2 backward calls read: 1 whole, 1 partly", told]
    asked = ("check", "--ignore", "ACC505", "--coverage")
    assert run(*asked).out.splitlines() == [*first, "whole.py:6: read whole"]


def test_a_cached_run_tells_the_same(run: Run, tmp_path: Path) -> None:
    Path("train.py").write_text(HEAD + LOOP.replace("        optimizer.step()\n", ""))
    os.utime("train.py", (0, 0))
    asked = ("check", "train.py", "--coverage", "--output-format", "json", "--exit-zero")
    told = run(*asked, "--cache-dir", str(tmp_path / "cache"))
    (site,) = json.loads(told.out)["coverage"]
    assert (site["read"], site["reasons"]) == ("partly", ["no optimizer step is reached"])
    assert list((tmp_path / "cache").glob("*.json"))
    assert run(*asked, "--cache-dir", str(tmp_path / "cache")).out == told.out


# A loop whose backward stands in a base class or in an object of another package, and whether its step is told of.
UNJUDGED = {
    "the method of a base class": ("self.training_step(model, x)", True),
    "an object's method": ("work.accumulate_gradients(x)", True),
    "a backward of the loop": ("model(x).mean().backward()", False),
}


@pytest.mark.parametrize(("trained", "told"), UNJUDGED.values(), ids=UNJUDGED)
def test_a_step_without_a_backward_that_can_be_followed_is_told(
    run: Run, trained: str, told: bool
) -> None:
    loop = f"class Own(Base):\n    def train(self):\n        for i, x in enumerate(loader):\n            {trained}\n"
    text = f"{HEAD}{loop}            optimizer.step()\n            optimizer.zero_grad()\n"
    Path("train.py").write_text(text)
    done = run("check", "--isolated", "train.py")
    warning = (
        "`optimizer.step()` was not judged: no backward call that leads to it could be followed"
    )
    assert (f"train.py:7: warning: {warning}" in done.err, "All clear" in done.out) == (
        told,
        not told,
    )
