"""`check --watch` checks at once, again after each change, and ends when it is interrupted."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from conftest import Run
from helpers import LOOP

PLAIN = LOOP.replace("  # error: ACC102", "")
WAITING = ["accumlint: checking\n", "Watching for changes; Ctrl+C ends it\n"]


def said(stream: IO[str]) -> list[str]:
    return [stream.readline(), stream.readline()]


def interrupt(process: subprocess.Popen[str]) -> None:
    """Interrupts until it ends: Python drops an interrupt that comes while it tidies an object away."""
    for _ in range(20):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
            return
    process.kill()


def test_a_change_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(PLAIN)
    with subprocess.Popen(
        [sys.executable, "-m", "accumlint", "check", "--watch", "--statistics"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What is started in the background by a shell would ignore the interrupt.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as watching:
        assert watching.stdout
        assert watching.stderr
        assert said(watching.stderr) == WAITING
        file.write_text(PLAIN.replace("loss.b", "(loss / accumulation_steps).b"))
        assert said(watching.stderr) == WAITING
        (tmp_path / "accumlint.toml").write_text('selekt = ["ALL"]')
        assert said(watching.stderr)[1].startswith("accumlint: accumlint.toml: ")
        interrupt(watching)
        out = watching.stdout.read()
    assert watching.returncode == 130
    first, _, _, second = out.splitlines()
    assert first.split() == ["1", "ACC102", "error", "loss-not-divided"]
    assert second == "All clear: no finding in 1 file"


def test_without_the_library_it_says_what_to_install(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    ran = run("check", "--watch")
    message = "accumlint: --watch needs watchfiles: pip install watchfiles\n"
    assert (ran.code, ran.out, ran.err) == (2, "", message)


@pytest.mark.parametrize("other", ["--fix", "--diff", "--add-ignore", "-"])
def test_what_it_cannot_be_combined_with(run: Run, other: str) -> None:
    ran = run("check", "--watch", other)
    assert ran.code == 2
    assert f"--watch and {other} exclude each other." in ran.err
