"""Runs torchrun on a list of jobs and returns the notes of every rank.

Jobs of one world size share a launch, so that torch is imported once per rank. torch is not imported here.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from accumlint.common.frozen import frozen
from accumlint.common.problem import Misuse
from accumlint.confirming import sandbox
from accumlint.diagnostics.reporting.terminal import printable

# The environment that a child process inherits: paths, the language, and what torch and the GPUs need.
_INHERITED = (
    "PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "SYSTEMROOT", "TZ",
    "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_DEBUG", "NCCL_IB_DISABLE",
)  # fmt: skip
OFFLINE = {
    "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "WANDB_MODE": "disabled",
}  # fmt: skip
QUIET = {
    "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false", "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TORCHDYNAMO_DISABLE": "1", "PYTHONWARNINGS": "ignore",
}  # fmt: skip

# CUDA's message for an index out of range, after which the process cannot use the GPU.
_GPU_LOST = "device-side assert"
# torchrun forks its ranks from a process that has imported torch.
_RANK = Path(__file__).with_name("harness") / "__main__.py"


@frozen
class Options:
    """How to run: `device` "auto", "cpu" or "cuda"; `limit` seconds for each finding; `memory` in GiB for each rank.

    `setup` is the path of a set-up file, "" for none; `sandbox` the available sandbox, None to detect it.
    """

    device: str = "auto"
    dtype: str = "float64"
    limit: float = 60.0
    seed: int = 0
    memory: float = 16.0
    setup: str = ""
    sandbox: sandbox.Sandbox | None = None

    def run(self, ranks: int) -> sandbox.Run:
        """The properties of a run that its sandbox depends on."""
        return sandbox.Run(ranks=ranks, gpu=self.device != "cpu" and sandbox.has_gpu())


class Plain(Protocol):
    """A job that can be sent as JSON."""

    def plain(self) -> dict[str, Any]: ...


@frozen
class Launched:
    """The result of a job: the notes of each rank, or `failure` in one sentence. `fault` is a traceback of accumlint.

    `how` is "time" for a job that timed out, "killed" for one that a signal ended; `line` is where, 0 for unknown.
    `reached_into` are functions that the code used and that can change recorded results.
    """

    ranks: tuple[Mapping[str, Any], ...] = ()
    failure: str = ""
    fault: str = ""
    how: str = ""
    line: int = 0
    reached_into: tuple[str, ...] = ()

    def mode(self) -> tuple[object, ...] | None:
        """The mode in which a loop ran, None if it did not: its data, its loss and its flags."""
        passes: Sequence[Mapping[str, Any]] = self.ranks[0]["passes"] if self.ranks else ()
        return tuple(passes[0][x] for x in ("kind", "lenient", "ordinary")) if passes else None


class LaunchError(Misuse):
    """torchrun could not be started; the message is one line."""


def launch(
    jobs: Sequence[Plain], ranks: int, options: Options, progress: Callable[[int], None]
) -> list[Launched]:
    """Runs jobs on `ranks` processes; `progress` receives the number of each finished job.

    Raises:
        LaunchError: where torch is not installed, or torchrun ends without running anything.
    """
    with tempfile.TemporaryDirectory(prefix="accumlint-", ignore_cleanup_errors=True) as folder:
        out, scratch = Path(folder, "out"), Path(folder, "scratch")
        out.mkdir()
        scratch.mkdir()
        has = options.sandbox or sandbox.available()
        confinement = sandbox.confinement(has)
        plain = [_with_files(job.plain(), options.setup) for job in jobs]
        total = (options.limit + 2) * len(jobs) + 60
        settings = {name: value for name, value in vars(options).items() if name != "sandbox"}
        folders = {"out": str(out), "scratch": str(scratch)}
        order = {
            "jobs": plain,
            "sandbox": confinement.plain(),
            "timeout": total,
            **folders,
            **settings,
        }
        plan, log = Path(folder, "jobs.json"), Path(folder, "log")
        plan.write_text(json.dumps(order), encoding="utf-8")
        readable = [path for job in plain for path in job["readable"]]
        command = sandbox.inside(has, confinement, readable, folder, _command(ranks, plan))
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command, cwd=scratch, env=_environment(scratch, confinement.isolated), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
                # This process has one thread, and torchrun must end with it even if it is killed.
                preexec_fn=sandbox.entering(has, confinement),  # noqa: PLW1509
            )  # fmt: skip
            results = [
                [out / f"{job}.{rank}.json" for rank in range(ranks)] for job in range(len(jobs))
            ]
            code = _wait(process, total + 30, results, progress)
        found = [_read(out, number, ranks, options) for number in range(len(jobs))]
        # On the CPU an index out of range raises, and the loop is tried with other data.
        lost = [number for number, one in enumerate(found) if _GPU_LOST in one.fault]
        if lost:
            print(
                f"accumlint: {len(lost)} of {len(jobs)} run on the CPU, as a GPU's process ends there",
                file=sys.stderr,
            )
            on_cpu = replace(options, device="cpu")
            for number, one in zip(
                lost, launch([jobs[n] for n in lost], ranks, on_cpu, lambda _: None), strict=True
            ):
                found[number] = one
        for fault in dict.fromkeys(filter(None, (one.fault for one in found))):
            # Bugs in accumlint are shown with their traceback.
            print("\n".join(map(printable, fault.splitlines())), file=sys.stderr)
        if code and all(x.failure and not x.ranks for x in found):
            raise LaunchError(why(log, code))
        return found


def _with_files(job: dict[str, Any], setup: str) -> dict[str, Any]:
    """A job with the files that it may read besides Python and the system."""
    readable, listable = sandbox.project(job["file"], job["roots"])
    if setup:
        more, names = sandbox.project(setup, ())
        readable, listable = readable + more, listable + names
    return {**job, "readable": readable, "listable": listable}


def _command(ranks: int, plan: Path) -> list[str]:
    return [
        sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--rdzv-backend=c10d",
        "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1", "--max-restarts=0",
        "--monitor-interval=0.02", "--start-method=fork", "--run-path", str(_RANK), str(plan),
    ]  # fmt: skip


def _environment(folder: Path, isolated: bool) -> dict[str, str]:
    # The package of this process, wherever it is installed.
    package = str(Path(__file__).parents[2])
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    # An isolated network has no other interface.
    loopback = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"} if isolated else {}
    return {
        **inherited, **OFFLINE, **QUIET, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
        "HOME": str(folder), "TMPDIR": str(folder), "PYTHONPATH": package, **loopback,
    }  # fmt: skip


def _wait(
    process: subprocess.Popen[bytes],
    limit: float,
    results: list[list[Path]],
    progress: Callable[[int], None],
) -> int:
    """The exit code of torchrun, 0 where all results are there; `progress` receives the number of each job with one.

    torchrun is killed at the limit, and with the last result: it takes long to end by itself.
    """
    until = time.monotonic() + limit
    number = 0
    try:
        while process.poll() is None and time.monotonic() < until:
            while number < len(results) and results[number][0].exists():
                progress(number)
                number += 1
            if number == len(results) and all(file.exists() for job in results for file in job):
                _kill(process)
                return 0
            time.sleep(0.02)
    finally:
        _end(process)
    return process.returncode or 0


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends torchrun; its workers die with it."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            _kill(process)


def _read(out: Path, number: int, world: int, options: Options) -> Launched:
    notes: list[Mapping[str, Any]] = []
    ended: list[Mapping[str, Any]] = []
    for rank in range(world):
        file = out / f"{number}.{rank}.json"
        if not file.exists():
            return Launched(failure=f"rank {rank} left no result")
        found = json.loads(file.read_text(encoding="utf-8"))
        if found.get("fault"):
            return Launched(
                failure="accumlint failed here, which is its own fault", fault=found["fault"]
            )
        if found.get("forged"):
            changed = found.get("changed")
            what = f"replaced `{changed}`" if changed else "wrote a result of its own"
            return Launched(failure=f"the loop {what}, so nothing that it noted counts")

        if found.get("ended"):
            ended.append({**found, "rank": rank})
        notes.append(found)
    if ended:
        # A rank that ended by itself is the cause for those that waited for it.
        first = min(
            ended, key=lambda e: ("itself", "time", "disk", "waited").index(e["ended"]["how"])
        )
        how = first["ended"]["how"]
        how = "killed" if first["ended"]["code"] < 0 and how != "time" else how
        return Launched(failure=_ending(first, world, options), how=how, line=first["line"])
    reached_into = dict.fromkeys(name for found in notes for name in found.get("reached_into", ()))
    return Launched(tuple(notes), reached_into=tuple(reached_into))


def _ending(end: Mapping[str, Any], world: int, options: Options) -> str:
    """Why a rank has no notes, in a sentence."""
    where = f" at line {end['line']}" if end["line"] else ""
    who = f"rank {end['rank']}" if world > 1 else "the loop"
    how, code = end["ended"]["how"], end["ended"]["code"]
    if how == "time":
        return f"the loop did not end within {options.limit:g} s{where}"
    if how == "disk":
        return f"{who} wrote more than a run may{where}"
    if how == "waited":
        return f"{who} waited{where} for a rank that had ended"
    if code < 0:
        return f"{who} ended its process, by {_signal(-code)}"
    return f"{who} ended its process, with code {code}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def why(log: Path, code: int) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    if any("No module named 'torch'" in line for line in lines):
        return "torch is not installed here: pip install torch"
    if any("has no attribute 'GradScaler'" in line for line in lines):
        return "torch is too old here: accumlint confirm needs 2.3 or newer"
    last = next((line.strip() for line in reversed(lines) if "Error" in line), "")
    return f"torchrun ended with {code}{': ' + last if last else ''}"
