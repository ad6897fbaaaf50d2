"""Work is counted, ends where the budget does, and what was not read is told."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import libcst as cst
import pytest
from conftest import Run
from helpers import alone

from accumlint import reading, tracing
from accumlint.check import check_bytes
from accumlint.common.memo import Memory, Overspent
from accumlint.editing import name_bindings, statement_moves
from accumlint.reading import ir as p
from accumlint.reading.program import Program
from accumlint.reading.project import Project
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


def test_fixes_are_tried_with_the_steps_that_are_left(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(functions(2))
    given: list[int] = []
    explore_alone = tracing.explore_alone

    def explore(program: Program, project: Project, trial: budget.Budget) -> tracing.Exploration:
        given.append(trial.steps)
        return explore_alone(program, project, trial)

    monkeypatch.setattr("accumlint.tracing.explore_alone", explore)
    run("check", "--no-cache")
    assert len(given) > 1
    assert all(later < earlier for earlier, later in pairwise((budget.STEPS, *given)))


def test_what_other_files_tell_is_asked_as_far_as_the_budget_goes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    loops = functions(1).replace("train_0", "train_{0}").removeprefix(HEAD)
    for number in range(3):
        text = f"{HEAD}{loops.format(number)}{functions(60).removeprefix(HEAD).replace('train_', 'other_')}"
        (tmp_path / f"helpers_{number}.py").write_text(text)
    imports = "".join(f"from helpers_{i} import train_{i}\n" for i in range(3))
    calls = "".join(f"    train_{i}(loader)\n" for i in range(3))
    (tmp_path / "train.py").write_text(f"{imports}{functions(1)}def main(loader):\n{calls}")
    told = "findings in files that this one uses are left to their own checks"
    assert told not in run("check", "--no-cache", "train.py").err
    monkeypatch.setattr("accumlint.tracing.budget.STEPS", 10_000)
    assert told in run("check", "--no-cache", "train.py").err


def test_the_last_resort_is_told(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(functions(2))
    monkeypatch.setattr("accumlint.check.SECONDS", -1.0)
    ran = run("check")
    assert f"{budget.LATE}; what was known by then is reported; not read" in ran.err


def test_what_a_run_looks_at_again_and_again_ends_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(one_loop(100))
    monkeypatch.setattr("accumlint.tracing.machine.MAX_LOOKED", 50)
    assert "the run has too many events" in run("check").err


def test_generators_that_call_themselves_are_nested_as_deep_as_functions_may_be() -> None:
    source = (
        "def groups():\n    for x in groups():\n        yield x\n    yield 1\n"
        f"for x in groups():\n    loss = model(x).mean()\n{STEP}"
    )
    program = reading.read(HEAD + source, "train.py", project := Project())
    (_, found), *_ = tracing.explore(program, project).idle
    assert found.stopped == "calls nested too deeply"


def test_a_move_goes_through_what_it_passes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def goes(passed: int) -> int:
        """How often a fix asks for the statements below one, with so many of them on the way."""
        asked: list[object] = []

        def units(node: cst.CSTNode) -> object:
            asked.append(node)
            return name_bindings.units(node)

        monkeypatch.setattr(statement_moves, "units", units)
        between = "".join(f"            a{i} = x + {i}\n" for i in range(passed))
        source = (
            f"{HEAD}def train(loader, steps):\n    for group in loader:\n        for x in group:\n"
            f"            optimizer.zero_grad()\n{between}            loss = model(x).mean() / steps\n"
            "            loss.backward()\n        optimizer.step()\n"
        )
        checked = check_bytes(source.encode(), alone())
        assert any(report.fix for report in checked.reports)
        return len(asked)

    assert goes(60) == goes(2) > 0


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


def test_no_budget_is_struck_before_work_on_a_file_has_begun() -> None:
    memory = Memory(most=10)
    assert memory.afford("/a.py", "text", 50)
    memory.begin("/b.py")
    with pytest.raises(Overspent):
        memory.afford("/a.py", "text", 50)
