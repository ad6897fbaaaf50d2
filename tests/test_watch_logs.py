"""A watch tells what it finds where it is asked to: a function, TensorBoard, W&B; else on standard error."""

from __future__ import annotations

from typing import Any

import pytest

from accumlint.runtime.logs import Log

NEW, FINDINGS = ("4 updates", "train.py:3: ACC102"), ("train.py:3: ACC102",)


class Writer:
    """What a watch uses of `torch.utils.tensorboard.SummaryWriter`."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> None:
        self.seen.append((tag, text_string, global_step))

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        self.seen.append((tag, scalar_value, global_step))


class WandbRun:
    """What a watch uses of a run of W&B."""

    def __init__(self) -> None:
        self.summary: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = [{}]

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool = True) -> None:
        self.rows[-1] |= data
        if commit:
            self.rows.append({})


def told(log: object) -> None:
    made = Log(log)
    made.lines(NEW, FINDINGS, 6)
    made.lines((), FINDINGS, 9)


def test_a_function_takes_each_line_and_nothing_else_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines: list[str] = []
    told(lines.append)
    assert lines == [*NEW]
    assert capsys.readouterr().err == ""


def test_tensorboard_takes_the_lines_as_text_and_the_number_of_findings_by_update(
    capsys: pytest.CaptureFixture[str],
) -> None:
    writer = Writer()
    told(writer)
    assert writer.seen == [
        ("accumlint", "    4 updates\n    train.py:3: ACC102", 6),
        ("accumlint/findings", 1, 6),
        ("accumlint/findings", 1, 9),
    ]
    assert capsys.readouterr().err == "accumlint: 4 updates\naccumlint: train.py:3: ACC102\n"


def test_a_run_of_wandb_takes_the_findings_without_a_step_of_its_own() -> None:
    run = WandbRun()
    told(run)
    run.log({"loss": 0.5})
    assert run.rows == [{"accumlint/findings": 1, "loss": 0.5}, {}]
    assert run.summary == {"accumlint/found": "train.py:3: ACC102"}


def test_no_log_such_as_the_run_of_wandb_where_none_is_active_is_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told(None)
    assert capsys.readouterr().err.splitlines() == [f"accumlint: {line}" for line in NEW]


@pytest.mark.parametrize("log", [3, "watch.log", object()])
def test_what_is_no_log_is_told_in_one_line(log: object) -> None:
    with pytest.raises(ValueError, match=f"^log wants a function.*, not {type(log).__name__}$"):
        Log(log)
