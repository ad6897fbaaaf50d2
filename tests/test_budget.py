"""Work is counted, ends where the budget does, and what was not read is told."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from conftest import Run

from accumlint.reading import ir as p
from accumlint.tracing import budget
from accumlint.tracing import trace as t
from accumlint.tracing.gradients.ledger import Ledger
from accumlint.tracing.values import Object

HEAD = (
    "import torch\nmodel = torch.nn.Linear(8, 1)\noptimizer = torch.optim.SGD(model.parameters())\n"
)
STEP = "    loss.backward()\n    optimizer.step()\n    optimizer.zero_grad()\n"


def functions(count: int) -> str:
    """Functions that train, with a loss that is never divided."""
    return HEAD + "".join(
        f"def train_{i}(loader):\n    for step, x in enumerate(loader):\n        loss = model(x).mean()\n"
        "        loss.backward()\n        if (step + 1) % 4 == 0:\n            optimizer.step()\n"
        "            optimizer.zero_grad()\n"
        for i in range(count)
    )


def one_loop(count: int) -> str:
    body = "".join("    model(x).mean().backward()\n" for _ in range(count))
    return f"{HEAD}for x in loader:\n{body}    loss = model(x).mean()\n{STEP}"


def calls_twice(count: int) -> str:
    """Functions that call the next one twice each: what they do doubles with each of them."""
    chain = "".join(f"def f{i}(x):\n    f{i + 1}(x)\n    f{i + 1}(x)\n" for i in range(count))
    last = f"def f{count}(x):\n    loss = model(x).mean()\n    loss.backward()\n"
    return f"{HEAD}{chain}{last}for x in loader:\n    f0(x)\n    optimizer.step()\n"


def names(count: int) -> str:
    """A loop after more code than is followed."""
    return HEAD + "a = 1\n" * count + "for x in loader:\n    loss = model(x).mean()\n" + STEP


# A text, and what is told of it.
LARGE: dict[str, tuple[Callable[[int], str], int, tuple[str, ...]]] = {
    "functions that train": (functions, 600, ("takes too many steps", "not read: `backward()` at lines", "no fix")),
    "backwards in one loop": (one_loop, 4_000, ("too many events", "not read: `backward()` at lines 3005, ")),
    "calls that double": (calls_twice, 40, ("too many events",)),
    "names": (names, 110_000, ("takes too many steps", "not read: `backward()` at line 110006")),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_what_takes_too_much_is_told_with_the_lines_that_were_not_read(
    run: Run, tmp_path: Path, name: str
) -> None:
    make, count, told = LARGE[name]
    (tmp_path / "train.py").write_text(make(count))
    ran = run("check")
    assert ran.code in (0, 1)
    assert "warning: not followed to the end: " in ran.err
    for words in told:
        assert words in ran.err


def test_findings_do_not_depend_on_how_fast_the_machine_is(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(functions(40))
    monkeypatch.setattr(budget.Budget.__init__, "__defaults__", (12_000, budget.SECONDS))
    fast = run("check", "--no-cache")
    # Each look at the clock is a tenth of a second.
    clock = iter(i / 10 for i in range(100_000))
    monkeypatch.setattr("accumlint.tracing.budget.time.process_time", lambda: next(clock))
    slow = run("check", "--no-cache")
    assert "takes too many steps" in fast.err
    assert (slow.code, slow.out, slow.err) == (fast.code, fast.out, fast.err)


def test_the_last_resort_is_told(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(functions(2))
    monkeypatch.setattr(budget.Budget.__init__, "__defaults__", (budget.STEPS, -1.0))
    ran = run("check")
    assert f"{budget.LATE}; what was known by then is reported; not read" in ran.err


def test_a_look_at_what_many_optimizers_own_takes_as_long_as_is_counted() -> None:
    ledger, node = Ledger(), p.Opaque(ast.Pass())
    backward = t.Backward(node, 0, 1, 1, "loss", "tensor", "loss")
    for number in range(60):
        ledger.know(Object(f"optimizer_{number}", networks=frozenset({f"other_{number}"})))
        for microbatch in range(20):
            came = backward, f"model_{number}", Fraction(1), (), "mean", "", False, None, "loss"
            ledger.add(t.Contribution(microbatch, *came))
    for optimizer in ledger.optimizers[:-1]:
        ledger.clear(optimizer)
    start = time.process_time()
    looks = [len(ledger.lying()) for _ in range(60)]
    assert time.process_time() - start < 1
    assert looks == [1_200] * 60
    assert ledger.looked > 60 * 60 * 20
