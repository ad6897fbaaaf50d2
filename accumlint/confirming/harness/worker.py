"""A worker process of torchrun: runs every job of a rank in a forked process and writes the recorded notes.

A job's process is sandboxed and sends its result; only this process, which executes no user code, writes it.

torchrun starts it in a fork of its own process, so that torch is imported once for all ranks. Each job runs in a fork
of this process, so that a loop cannot affect the interpreter, memory or process group of another.
"""
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import itertools
import json
import math
import os
import re
import signal
import sys
import time
import traceback
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from accumlint.confirming.harness.environment import forget
from accumlint.confirming.harness.epochs import script_epoch
from accumlint.confirming.harness.first_pass import has_stepped, is_refused, run_first
from accumlint.confirming.harness.isolation import audit_hooks, kernel, no_compile
from accumlint.confirming.harness.isolation.confinement import confine, limit_memory
from accumlint.confirming.harness.isolation.integrity import Channel, Forged, Original
from accumlint.confirming.harness.job_rank import Rank
from accumlint.confirming.harness.pass_runner import make

# Settings of a pass that only matter for some loops.
_SETTINGS = ("pressure", "unscaled", "growing")
# Controls that only matter where target counts differ, or where whole windows leave micro-batches.
_OF_CONTROLS = {"even": "uneven", "flush": "leaves"}
_FORGED: dict[str, Any] = {"forged": True, "passes": []}
# The seconds for which a rank waits for the reports of others.
_PEER_TIMEOUT = 300
# The part of a hang's traceback that is read: user code can write there.
_MOST_LOG = 2**20
# The limits of what a job may write, and the interval of the check in seconds.
_MOST_WRITTEN, _MOST_FILES, _EVERY = 4 * 2**30, 50_000, 0.5


def main(path: str) -> None:
    """Runs the jobs of the order file at `path`."""
    kernel.die_with_parent()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        # torchrun's own signal handlers must not run in its ranks.
        signal.signal(number, signal.SIG_DFL)
    no_compile.install()
    order = json.loads(Path(path).read_text(encoding="utf-8"))
    if any(job.get("accelerate") for job in order["jobs"]):
        # Accelerate probes models for such tensors; the import takes half as long as torch's own.
        with contextlib.suppress(ImportError):
            importlib.import_module("torch.distributed.tensor")
    # Not faulthandler's timer: a fork would wait for its thread.
    signal.alarm(int(order["timeout"]))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # Before torch 2.4, torchrun leaves the store to the first rank.
    hosts = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "False"
    store = _store(hosts, order["timeout"])
    for number, job in enumerate(order["jobs"]):
        _in_a_fork(job, Rank(order, rank, world, number, store))
        # A rank that hangs would be missed in the next job, and the store ends with the process that hosts it.
        store.wait([f"ended/{number}/{other}" for other in range(world)])


def _store(hosts: bool, timeout: float) -> dist.TCPStore:
    """The store that all ranks share; one of them, or torchrun, hosts it."""
    return dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=hosts, wait_for_workers=False,
        timeout=timedelta(seconds=timeout),
    )  # fmt: skip


def _in_a_fork(job: Any, rank: Rank) -> None:
    """Runs a job in a forked process, and writes its result or how it ended."""
    sys.stdout.flush()
    file = Path(rank.order["out"], f"{rank.number}.{rank.rank}.json")
    hung = file.with_suffix(".hung")
    channel = Channel()
    child = os.fork()
    if not child:
        try:
            _send(job, rank, channel, hung)
        except BaseException:  # noqa: BLE001
            # A bug in accumlint is reported with its traceback, and the other jobs go on.
            with contextlib.suppress(OSError):
                channel.send({"fault": traceback.format_exc(), "passes": []})
        finally:
            os._exit(0)
    channel.keep_receiving()
    ended = _ended(child, rank, channel)
    rank.store.set(f"ended/{rank.number}/{rank.rank}", "1")
    try:
        found = channel.result()
    except Forged:
        found = json.dumps(_FORGED).encode()
    if found is None:
        line = _last_line(hung, job["file"])
        found = json.dumps({"ended": ended, "line": line, "passes": []}).encode()
    partial = file.with_suffix(".part")
    partial.write_bytes(found)
    partial.replace(file)


def _send(job: Any, rank: Rank, channel: Channel, hung: Path) -> None:
    """In the process of a job: runs it and sends the notes; the traceback of a hang is written to `hung`."""
    _let_go(channel.sending_end())
    kernel.die_with_parent()
    # Its own process group, so that everything it starts can be killed.
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _silence()
    # No byte code beside the modules of the project.
    sys.dont_write_bytecode = True
    faulthandler.dump_traceback_later(
        max(rank.order["limit"] - 0.5, 0.5), file=hung.open("w", encoding="utf-8")
    )
    original = Original()
    found = _job(job, rank)
    changed = original.changed()
    channel.send({**_FORGED, "changed": changed} if changed else found)


def _ended(child: int, rank: Rank, channel: Channel) -> dict[str, Any]:
    """Waits for the process of a job while reading its result, and kills it at a limit; returns how it ended."""
    until = time.monotonic() + rank.order["limit"]
    keys = [f"ended/{rank.number}/{r}" for r in range(rank.world) if r != rank.rank]
    grace = math.inf
    stopped = ""
    measured = time.monotonic()
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        now = time.monotonic()
        if grace == math.inf and any(rank.store.check([key]) for key in keys):
            # Another rank has finished: a process that is still running waits for it.
            grace = now + max(5.0, rank.order["limit"] / 6)
        if now > min(until, grace):
            stopped = "time" if now > until else "waited"
        elif now > measured + _EVERY:
            stopped = "" if _fits(rank.scratch) else "disk"
            measured = now
        if stopped:
            _end(child)
            _, status = os.waitpid(child, 0)
            break
        if not channel.wait(0.005):
            time.sleep(0.005)
    return {"how": stopped or "itself", "code": os.waitstatus_to_exitcode(status)}


def _let_go(keep: int) -> None:
    """Redirects inherited file descriptors but one to the null device; their owners may still close them."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/dev/fd"):
        if (number := int(name)) > 2 and number not in (keep, nowhere):
            # The descriptor of the listing itself is closed by now.
            with contextlib.suppress(OSError):
                os.fstat(number)
                os.dup2(nowhere, number)


def _silence() -> None:
    """Discards the output of user code, which could fill the disk."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


def _fits(folder: Path) -> bool:
    """Whether a job has stayed within its limits for files."""
    size = entries = 0
    for here, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(here, name)).st_blocks * 512
        entries += len(names) + 1
        if size > _MOST_WRITTEN or entries > _MOST_FILES:
            return False
    return True


def _end(child: int) -> None:
    """Kills a job's process and its group."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(child, signal.SIGKILL)


def _last_line(hung: Path, file: str) -> int:
    """The user's line that a hung job was executing, 0 for unknown."""
    if not hung.exists():
        return 0
    with hung.open(encoding="utf-8", errors="replace") as log:
        text = log.read(_MOST_LOG)
    # Idle threads come first; user code runs in the main thread, innermost first.
    found = re.search(rf'File "{re.escape(file)}", line (\d+)', text)
    return int(found[1]) if found else 0


def _job(job: Any, rank: Rank) -> dict[str, Any]:
    """The notes of this rank for each pass of a job."""
    rank.store = dist.PrefixStore(f"job/{rank.number}", _store(False, _PEER_TIMEOUT))
    reached_into = _prepare(job, rank)
    passes: list[dict[str, Any]] = []
    made: dict[str, Any] = {"passes": passes, "reached_into": reached_into}
    if job["epochs"]:
        before = frozenset(sys.modules)
        share = rank.world if job["accelerate"] else 1
        # The ranks of torchrun are there already, and a GPU may not be.
        with (
            mock.patch.object(dist, "init_process_group"),
            mock.patch.object(torch.cuda, "set_device"),
        ):
            made["epoch"] = script_epoch(job["text"], job["file"], job["line"], share)
        forget(before)
    first = run_first(job, rank)
    passes.append(first)
    if is_refused(first):
        # The loop would try again in every other pass.
        return made
    job["stepped"] = rank.all_gather("stepped", _stepped(first))[0]
    pressure = min(rank.all_gather("pressure", _pressure(first["notes"]["events"])))
    more = first["raised"] is not None or has_stepped(first)
    reports = rank.all_gather("tells", {**_effective_settings(first), "more": more})
    if not (job["stepless"] or any(one["more"] for one in reports)):
        # There is nothing to compare.
        return made
    parted = False
    for index, spec in enumerate(job["passes"][1:]):
        raised = passes[-1]["raised"]
        ends = rank.all_gather(f"pass/{index}", raised and [raised["kind"], raised["line"]])
        if any(end != ends[0] for end in ends):
            # Pending messages would reach the wrong pass; a second timeout would take too long.
            if parted:
                break
            parted = True
            rank.join("parted")
        settings = [*filter(spec.get, _SETTINGS), _OF_CONTROLS.get(spec["sabotage"])]
        if all(reports[0][setting] for setting in settings if setting):
            passes.append(make(job, spec, first["kind"], rank, pressure))
    return made


def _prepare(job: Any, rank: Rank) -> list[str]:
    """Prepares and confines this process for a job; returns the list of functions used that can change the recorder."""
    order, device = rank.order, rank.device
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if rank.world > 1 or job["distributed"]:
        rank.join()
    if device.type == "cpu":
        # Accelerate uses the CPU only if requested.
        os.environ["ACCELERATE_USE_CPU"] = "true"
    rank.scratch.mkdir()
    os.chdir(rank.scratch)
    if device.type != "cuda":
        limit_memory(order["memory"])
    reached_into = audit_hooks.stay_inside(
        order["scratch"],
        lambda what: rank.recorders[-1].refuse(what) if rank.recorders else None,
        readable=(*order["sandbox"]["readable"], *job["readable"]),
    )
    audit_hooks.pretend_folders(order["scratch"])
    confine(order, job, rank.world, device.type == "cuda")
    warnings.simplefilter("ignore")
    sys.path[:0] = job["roots"]
    return reached_into


def _effective_settings(first: dict[str, Any]) -> dict[str, bool]:
    """Which settings of a pass matter for a loop: a threshold if it clips, a scale if it uses a GradScaler.

    "uneven": target counts differ between micro-batches; "leaves": whole windows leave micro-batches at the end of an
    epoch.
    """
    notes = first["notes"]
    cut = first["raised"] is not None
    clips = cut or any(e["kind"] == "clip" for e in notes["events"])
    scales = cut or bool(notes["initial_scale"])
    events = notes["events"]
    counts = {part["count"] for e in events for part in e.get("contributions", ())}
    kinds = [e["kind"] for e in events if e["kind"] in ("step", "backward", "epoch")]
    return {
        "pressure": clips, "unscaled": scales, "growing": scales, "uneven": len(counts) > 1,
        "leaves": ("backward", "epoch") in itertools.pairwise(kinds),
    }  # fmt: skip


def _stepped(first: dict[str, Any]) -> list[int]:
    """The numbers of micro-batches after which the first epoch steps, modulo whole windows."""
    events = itertools.takewhile(lambda e: e["kind"] != "epoch", first["notes"]["events"])
    seen: set[int] = set()
    found: set[int] = set()
    for event in events:
        if event["kind"] == "backward":
            seen.add(event["microbatch"])
        elif event["kind"] == "step":
            found.add(len(seen) % first["spec"]["steps"])
    return sorted(found)


def _pressure(events: list[dict[str, Any]]) -> float:
    """A clipping threshold that takes effect: half the norm of the first window, a quarter of an incomplete one."""
    steps = [index for index, event in enumerate(events) if event["kind"] == "step"]
    window = events[: steps[0]] if steps else events
    parts = [part for event in window for part in event.get("contributions", ())]
    count = sum(part["count"] for part in parts)
    total = map(sum, zip(*(part["gradient"] for part in parts), strict=True))
    norm = sum(x * x for x in total) ** 0.5 / max(count, 1)
    return (0.5 if steps else 0.25) * norm
