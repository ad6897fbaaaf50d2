"""`confirm` on the releases of torch that there are: what one release asks for, another does not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from accumlint.confirming.harness.environment import without_cuda  # noqa: E402 (it needs torch)
from accumlint.confirming.launch import why  # noqa: E402 (it follows torch)

pytestmark = pytest.mark.torch


class Streams:
    """Asking for the stream of an accelerator begins CUDA, which a forked process cannot."""

    @staticmethod
    def current_stream() -> None:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")


def health_check() -> None:
    """What Adam does before each step since torch 2.15."""
    if torch.accelerator.current_accelerator(check_available=True) is not None:
        Streams.current_stream()


def patched() -> dict[str, Any]:
    """What `without_cuda` puts in place, by name."""
    without_cuda(patch := mock.Mock(), torch.device("cpu"))
    return {call.args[1]: call.args[2] for call in patch.call_args_list}


def test_no_accelerator_is_available_and_the_script_is_given_a_device() -> None:
    current = patched()["current_accelerator"]
    with mock.patch.object(torch.accelerator, "current_accelerator", current):
        health_check()
        assert torch.accelerator.current_accelerator() == torch.device("cpu")


def test_a_release_without_accelerators_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "accelerator")
    assert "current_accelerator" not in patched()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("AttributeError: module 'torch.amp' has no attribute 'GradScaler'", "2.3 or newer"),
        ("ModuleNotFoundError: No module named 'torch'", "torch is not installed here"),
        ("RuntimeError: another one", "torchrun ended with 1: RuntimeError: another one"),
    ],
)
def test_a_torch_that_cannot_be_used_is_told(tmp_path: Path, line: str, told: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"Traceback\n{line}\n")
    assert told in why(log, 1)
