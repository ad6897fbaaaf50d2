"""One rank: runs every job in a process of its own, and writes what its recorder noted.

A job's process is in the sandbox and sends its result; only this one, which executes no code of the user's, writes it.

Started by torchrun, in a fork of its process, with the path of a file of jobs: torch is imported once for all ranks.
Each job is run in a fork of this process, so that what one loop does to the interpreter, the memory or the process
group touches no other.
"""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportPrivateImportUsage=false, reportUnknownLambdaType=false
# torch's own annotations are partial.

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

import torch
import torch.distributed as dist

from accumlint.confirming.harness.environment import forget
from accumlint.confirming.harness.epochs import own_epoch
from accumlint.confirming.harness.first_pass import has_stepped, is_refused, run_first
from accumlint.confirming.harness.isolation import audit_hooks, kernel, no_compile
from accumlint.confirming.harness.isolation.confinement import confine, limit_memory
from accumlint.confirming.harness.isolation.integrity import Channel, Forged, Original
from accumlint.confirming.harness.job_rank import Rank
from accumlint.confirming.harness.pass_runner import make

# What of a pass makes a difference only to some loops.
_SETTINGS = ("pressure", "unscaled", "growing")
# Nor do controls: where equal numbers of targets leave nothing unequal, their pass is one already.
_OF_CONTROLS = {"even": "uneven", "flush": "leaves"}
_FORGED: dict[str, Any] = {"forged": True, "passes": []}
# As many seconds a rank waits for what others have to tell.
_FOR_OTHERS = 300
# As much is read of where a job hung: the user's code can write there.
_MOST_TOLD = 2**20
# What a loop on fakes may write in all, and how often that is looked at, in seconds.
_MOST_WRITTEN, _MOST_FILES, _EVERY = 4 * 2**30, 50_000, 0.5


def main(path: str) -> None:
    """Runs the jobs in the file at `path`."""
    kernel.die_with_parent()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        # What torchrun does on a signal is not for its ranks to do.
        signal.signal(number, signal.SIG_DFL)
    no_compile.keep_out()
    order = json.loads(Path(path).read_text(encoding="utf-8"))
    if any(job.get("accelerate") for job in order["jobs"]):
        # Accelerate asks whether models have such tensors, and their import takes half as long as torch's own.
        with contextlib.suppress(ImportError):
            importlib.import_module("torch.distributed.tensor")
    # Not faulthandler's timer, whose thread a fork would wait for in vain.
    signal.alarm(int(order["timeout"]))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # Before torch 2.4, torchrun's rendezvous leaves the store to the first rank.
    hosts = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "False"
    store = _store(hosts, order["timeout"])
    for number, job in enumerate(order["jobs"]):
        _in_a_fork(job, Rank(order, rank, world, number, store))
    if hosts and order["jobs"]:
        # The store ends with this process.
        last = len(order["jobs"]) - 1
        store.wait([f"ended/{last}/{other}" for other in range(world)])


def _store(hosts: bool, timeout: float) -> dist.TCPStore:
    """What all ranks can read; one of them, or torchrun, hosts it."""
    return dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=hosts, wait_for_workers=False,
        timeout=timedelta(seconds=timeout),
    )  # fmt: skip


def _in_a_fork(job: Any, rank: Rank) -> None:
    """Runs a job in a process of its own, and writes what that sends, or how it ended."""
    sys.stdout.flush()
    file = Path(rank.order["out"], f"{rank.number}.{rank.rank}.json")
    hung = file.with_suffix(".hung")
    channel = Channel()
    child = os.fork()
    if not child:
        try:
            _send(job, rank, channel, hung)
        except BaseException:  # noqa: BLE001
            # A fault of ours: told with its traceback, and the other jobs go on.
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
    """In the process of a job: runs it and sends what was noted; where it hangs is written to `hung`."""
    _let_go(channel.sending_end())
    kernel.die_with_parent()
    # Whatever it starts ends with it.
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _silence()
    # Nothing is left beside the modules of the user's project.
    sys.dont_write_bytecode = True
    faulthandler.dump_traceback_later(
        max(rank.order["limit"] - 0.5, 0.5), file=hung.open("w", encoding="utf-8")
    )
    original = Original()
    found = _job(job, rank)
    changed = original.changed()
    channel.send({**_FORGED, "changed": changed} if changed else found)


def _ended(child: int, rank: Rank, channel: Channel) -> dict[str, Any]:
    """Waits for the process of a job, taking what it sends, and ends it where it has to: how it ended."""
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
            # Another has finished: what is still running waits for a rank that will not come.
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


def _let_go(kept: int) -> None:
    """Leads the files and sockets of this process's parents nowhere, but one.

    Their numbers stay taken: objects that have them may still close them.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/dev/fd"):
        if (number := int(name)) > 2 and number not in (kept, nowhere):
            # The folder that was just listed is closed by now.
            with contextlib.suppress(OSError):
                os.fstat(number)
                os.dup2(nowhere, number)


def _silence() -> None:
    """What the user's code prints goes nowhere: an endless loop would fill the disk with it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


def _fits(folder: Path) -> bool:
    """Whether what a job has written so far is no more than it may."""
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
    """Kills a job's process and those of its group."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(child, signal.SIGKILL)


def _last_line(hung: Path, file: str) -> int:
    """The user's line that was being executed when a job was found to hang, 0 where that is not known."""
    if not hung.exists():
        return 0
    with hung.open(encoding="utf-8", errors="replace") as told:
        text = told.read(_MOST_TOLD)
    # Threads that wait for work come first; the user's code is in the main one, innermost first.
    found = re.search(rf'File "{re.escape(file)}", line (\d+)', text)
    return int(found[1]) if found else 0


def _job(job: Any, rank: Rank) -> dict[str, Any]:
    """What this rank noted in each pass of a job."""
    rank.store = dist.PrefixStore(f"job/{rank.number}", _store(False, _FOR_OTHERS))
    reached_into = _prepare(job, rank)
    passes: list[dict[str, Any]] = []
    made: dict[str, Any] = {"passes": passes, "reached_into": reached_into}
    if job["epochs"]:
        before = frozenset(sys.modules)
        share = rank.world if job["accelerate"] else 1
        made["epoch"] = own_epoch(job["text"], job["file"], job["line"], share)
        forget(before)
    first = run_first(job, rank)
    passes.append(first)
    if is_refused(first):
        # It would try again in every other pass.
        return made
    job["stepped"] = rank.everywhere("stepped", _stepped(first))[0]
    pressure = min(rank.everywhere("pressure", _pressure(first["notes"]["events"])))
    more = first["raised"] is not None or has_stepped(first)
    told = rank.everywhere("tells", {**_tells(first), "more": more})
    if not (job["stepless"] or any(one["more"] for one in told)):
        # There is nothing to compare.
        return made
    parted = False
    for index, spec in enumerate(job["passes"][1:]):
        raised = passes[-1]["raised"]
        ends = rank.everywhere(f"pass/{index}", raised and [raised["kind"], raised["line"]])
        if any(end != ends[0] for end in ends):
            # What the ranks still have in the air would reach the wrong pass; to wait once more takes too long.
            if parted:
                break
            parted = True
            rank.join("parted")
        settings = [*filter(spec.get, _SETTINGS), _OF_CONTROLS.get(spec["sabotage"])]
        if all(told[0][setting] for setting in settings if setting):
            passes.append(make(job, spec, first["kind"], rank, pressure))
    return made


def _prepare(job: Any, rank: Rank) -> list[str]:
    """Has this process run a job and nothing else; the list gets what the job used to reach into what is recorded."""
    order, device = rank.order, rank.device
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if rank.world > 1 or job["distributed"]:
        rank.join()
    if device.type == "cpu":
        # Accelerate joins other processes on the CPU only when it is told to.
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


def _tells(first: dict[str, Any]) -> dict[str, bool]:
    """Which settings of a pass make a difference: a threshold where something clips, a scale where something scales.

    "uneven": whether micro-batches have as many targets as they will, whatever the data; "leaves": whether an epoch of
    whole windows leaves something all the same.
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
    """After how many micro-batches of its first epoch a pass has stepped, whole windows left out."""
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
    """A clipping threshold that bites: half the norm of the first window.

    Of a window that was cut short, a quarter: the mean of fewer micro-batches is larger.
    """
    steps = [index for index, event in enumerate(events) if event["kind"] == "step"]
    window = events[: steps[0]] if steps else events
    parts = [part for event in window for part in event.get("contributions", ())]
    count = sum(part["count"] for part in parts)
    total = map(sum, zip(*(part["gradient"] for part in parts), strict=True))
    norm = sum(x * x for x in total) ** 0.5 / max(count, 1)
    return (0.5 if steps else 0.25) * norm
