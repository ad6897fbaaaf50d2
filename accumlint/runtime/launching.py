"""Starts the user's command with torch observed, and waits for it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from accumlint.common.frozen import frozen
from accumlint.common.problem import Misuse
from accumlint.diagnostics.reporting.phrases import count

# The event of a process that stopped early, and the time that the others may take then.
_STOPPED = b'"how": "stopped"'
_GRACE = 30.0
_PULSE = 0.1


@frozen
class Watch:
    """What to observe; becomes the recorder's `WatchOptions`."""

    windows: int = 6
    patience: int = 256
    parameters: int = 8
    keep_going: bool = False


@frozen
class Ended:
    """How a command ended: its exit code, its duration in seconds, and whether it timed out."""

    code: int
    seconds: float
    timed_out: bool = False

    def failure(self, updates: int, *, noted: bool) -> str:
        """Why a script could not be judged, or did not complete; "" for nothing."""
        if not noted:
            what = f"failed with exit code {self.code}" if self.code else "ended"
            return f"the script {what} before torch went backward or an optimizer stepped"
        if self.timed_out:
            return f"the script was stopped after {count(updates, 'update')}"
        if self.code:
            return f"the script failed with exit code {self.code} after {count(updates, 'update')}"
        return "" if updates else "no optimizer stepped"


def command(words: Sequence[str], module: str, ranks: int) -> list[str]:
    """The command line for a script or module with arguments, or for a command of the user.

    Raises:
        Misuse: where there is nothing to execute.
    """
    if module:
        return _with_python(["-m", module, *words], ["--module", module, *words], ranks)
    if not words:
        raise Misuse("run wants a script: accumlint run -- train.py --lr 0.1")
    first, *arguments = words
    if first.endswith(".py"):
        if not os.path.isfile(first):
            raise Misuse(f"{first}: there is no such file")
        return _with_python([first, *arguments], [first, *arguments], ranks)
    found = shutil.which(first)
    if found is None:
        raise Misuse(f"{first}: neither a Python script nor a command")
    if ranks > 1:
        raise Misuse("--nproc-per-node is for scripts; a command such as torchrun has its own")
    return [found, *arguments]


def _with_python(single: list[str], distributed: list[str], ranks: int) -> list[str]:
    if find_spec("torch") is None:
        raise Misuse(
            "torch is not installed here; name the Python that has it: accumlint run -- python train.py"
        )
    if ranks == 1:
        return [sys.executable, *single]
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    launcher = [sys.executable, "-m", "torch.distributed.run", *rendezvous]
    return [*launcher, f"--nproc-per-node={ranks}", *distributed]


def environment(watch: Watch, folder: Path) -> dict[str, str]:
    """The user's environment, with the observers enabled."""
    boot = str(Path(__file__).parent / "boot")
    options = {
        "folder": str(folder), "windows": watch.windows, "patience": watch.patience,
        "parameters": watch.parameters, "stop": not watch.keep_going,
    }  # fmt: skip
    path = os.pathsep.join(filter(None, (boot, os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": path, "ACCUMLINT_RUN": json.dumps(options)}


def launch(words: Sequence[str], watch: Watch, folder: Path, timeout: float | None) -> Ended:
    """Runs a command until it ends or every process has seen enough; its output goes to standard error.

    Raises:
        Misuse: where it cannot be started.
    """
    begun = time.monotonic()
    try:
        process = subprocess.Popen(words, env=environment(watch, folder), stdout=2)
    except OSError as problem:
        raise Misuse(f"{words[0]}: cannot be started: {problem.strerror}") from None
    stopped = timed_out = False
    deadline = begun + timeout if timeout else float("inf")
    try:
        while process.poll() is None:
            time.sleep(_PULSE)
            if not stopped and any(map(_is_stopped, folder.glob("*.jsonl"))):
                stopped = True
                deadline = min(deadline, time.monotonic() + _GRACE)
            if time.monotonic() > deadline:
                timed_out = not stopped
                _end(process)
    except KeyboardInterrupt:
        # The command was interrupted as well; the events so far are judged.
        _end(process)
        timed_out = True
    return Ended(process.returncode, time.monotonic() - begun, timed_out)


def _is_stopped(file: Path) -> bool:
    with contextlib.suppress(OSError), file.open("rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(stream.tell() - 256, 0))
        return _STOPPED in stream.read()
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
