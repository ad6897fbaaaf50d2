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
from accumlint.confirming.harness.first_pass import everywhere, has_stepped, join, run_first
from accumlint.confirming.harness.isolation import audit_hooks, kernel, no_compile
from accumlint.confirming.harness.isolation.confinement import confine, limit_memory
from accumlint.confirming.harness.isolation.integrity import Channel, Forged, Original
from accumlint.confirming.harness.pass_runner import make
from accumlint.confirming.harness.recording.recorder import Recorder

# What of a pass makes a difference only to some loops.
_SETTINGS = ("pressure", "unscaled", "growing")
# Nor do controls: where equal numbers of targets leave nothing unequal, their pass is one already.
_FORGED: dict[str, Any] = {"forged": True, "passes": []}
# As much is read of where a job hung: the user's code can write there.
_MOST_TOLD = 2**20
# What a loop on fakes may write in all, and how often that is looked at, in seconds.
_MOST_WRITTEN, _MOST_FILES, _EVERY = 4 * 2**30, 50_000, 0.5
_OF_CONTROLS = {"even": "uneven", "flush": "leaves"}


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
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=hosts, wait_for_workers=False,
        timeout=timedelta(seconds=order["timeout"]),
    )  # fmt: skip
    out = Path(order["out"])
    for number, job in enumerate(order["jobs"]):
        file = out / f"{number}.{rank}.json"
        _in_a_fork(number, job, order, file, rank, world, store)
        if rank == 0:
            print(f"done {number}", file=sys.stderr, flush=True)
    if hosts and order["jobs"]:
        # The store ends with this process.
        last = len(order["jobs"]) - 1
        store.wait([f"ended/{last}/{other}" for other in range(world)])


def _in_a_fork(
    number: int, job: Any, order: Any, file: Path, rank: int, world: int, store: Any
) -> None:
    sys.stdout.flush()
    hung = file.with_suffix(".hung")
    channel = Channel()
    child = os.fork()
    if not child:
        try:
            _let_go(channel.sending_end())
            kernel.die_with_parent()
            # Whatever it starts ends with it.
            os.setpgid(0, 0)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            _silence()
            # Nothing is left beside the modules of the user's project.
            sys.dont_write_bytecode = True
            faulthandler.dump_traceback_later(
                max(order["limit"] - 0.5, 0.5), file=hung.open("w", encoding="utf-8")
            )
            original = Original()

            def send(found: dict[str, Any]) -> None:
                changed = original.changed()
                channel.send({**_FORGED, "changed": changed} if changed else found)

            send(_job(number, job, order, rank, world))
        except BaseException:  # noqa: BLE001
            # A fault of ours: told with its traceback, and the other jobs go on.
            with contextlib.suppress(OSError):
                channel.send({"fault": traceback.format_exc(), "passes": []})
        finally:
            os._exit(0)
    channel.keep_receiving()
    until = time.monotonic() + order["limit"]
    others = [r for r in range(world) if r != rank]
    grace = 0.0
    stopped = ""
    measured = time.monotonic()
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        now = time.monotonic()
        if not grace and any(store.check([f"ended/{number}/{other}"]) for other in others):
            # Another has finished: what is still running waits for a rank that will not come.
            grace = now + max(5.0, order["limit"] / 6)
        if now > until or (grace and now > grace):
            stopped = "time" if now > until else "waited"
        elif now > measured + _EVERY:
            stopped = "" if _fits(Path(order["scratch"], f"{number}.{rank}")) else "disk"
            measured = time.monotonic()
        if stopped:
            _end(child)
            _, status = os.waitpid(child, 0)
            break
        if not channel.wait(0.005):
            time.sleep(0.005)
    store.set(f"ended/{number}/{rank}", "1")
    try:
        found = channel.result()
    except Forged:
        _write(file, _FORGED)
        return
    if found is not None:
        _put(file, found)
    else:
        ended = {"how": stopped or "itself", "code": os.waitstatus_to_exitcode(status)}
        _write(file, {"ended": ended, "line": _last_line(hung, job["file"]), "passes": []})


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


def _write(file: Path, value: Any) -> None:
    _put(file, json.dumps(value).encode())


def _put(file: Path, text: bytes) -> None:
    partial = file.with_suffix(".part")
    partial.write_bytes(text)
    partial.replace(file)


def _job(number: int, job: Any, order: Any, rank: int, world: int) -> dict[str, Any]:
    """What this rank noted in each pass of one job."""
    device = _device(order["device"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
    prefixed = dist.PrefixStore(f"job/{number}", store)
    if world > 1 or job["distributed"]:
        join(prefixed, order, rank, world, device)
    if device.type == "cpu":
        # Accelerate joins other processes on the CPU only when it is told to.
        os.environ["ACCELERATE_USE_CPU"] = "true"
    scratch = Path(order["scratch"]) / f"{number}.{rank}"
    scratch.mkdir()
    os.chdir(scratch)
    if device.type != "cuda":
        limit_memory(order["memory"])
    recorders: list[Recorder] = []
    reached_into = audit_hooks.stay_inside(
        (order["scratch"],),
        lambda what: recorders[-1].refuse(what) if recorders else None,
        readable=(*order["sandbox"]["readable"], *job["readable"]),
    )
    audit_hooks.pretend_folders((order["scratch"],))
    confine(order, job, world, device.type == "cuda", order["scratch"])
    warnings.simplefilter("ignore")
    sys.path[:0] = job["roots"]
    passes: list[dict[str, Any]] = []
    made: dict[str, Any] = {"passes": passes, "reached_into": reached_into}
    if job["epochs"]:
        before = frozenset(sys.modules)
        share = world if job["accelerate"] else 1
        made["epoch"] = own_epoch(job["text"], job["file"], job["line"], share)
        forget(before)
    first = run_first(job, order, rank, world, device, prefixed, recorders)
    if any(refusal["inside"] for refusal in first["notes"]["refused"]):
        # It would try again in every other pass.
        passes.append(first)
        return made
    kind = first["kind"]
    passes.append(first)
    job["stepped"] = everywhere(prefixed, "stepped", rank, world, _stepped(first))[0]
    pressure = _pressure(first["notes"]["events"], prefixed, rank, world)
    cut = first["raised"] is not None
    told = everywhere(prefixed, "tells", rank, world, [_tells(first), cut or has_stepped(first)])
    tells = told[0][0]
    if not (job["stepless"] or any(more for _, more in told)):
        # There is nothing to compare.
        return made
    parted = False
    for index, spec in enumerate(job["passes"][1:]):
        if not _agree(passes[-1], prefixed, index, rank, world):
            # What the ranks still have in the air would reach the wrong pass; to wait once more takes too long.
            if parted:
                break
            parted = True
            dist.destroy_process_group()
            join(dist.PrefixStore("parted", prefixed), order, rank, world, device)
        settings = [*filter(spec.get, _SETTINGS), _OF_CONTROLS.get(spec["sabotage"])]
        if not all(tells[setting] for setting in settings if setting):
            continue
        passes.append(make(job, spec, kind, order, rank, world, device, pressure, recorders))
    return made


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


def _agree(made: dict[str, Any], store: Any, index: int, rank: int, world: int) -> bool:
    """True when a pass ended in the same way on all ranks."""
    if world == 1:
        return True
    raised = made["raised"]
    store.set(f"pass/{index}/{rank}", f"{raised['kind']} {raised['line']}" if raised else "")
    return len({store.get(f"pass/{index}/{r}") for r in range(world)}) == 1


def _device(name: str) -> torch.device:
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())


def _pressure(events: list[dict[str, Any]], store: Any, rank: int, world: int) -> float:
    """A clipping threshold that bites: half the norm of the first window, the same on all ranks.

    Of a window that was cut short, a quarter: the mean of fewer micro-batches is larger.
    """
    total: list[float] = []
    count = 0
    share = 0.25
    for event in events:
        if event["kind"] == "step":
            share = 0.5
            break
        for part in event.get("contributions", ()):
            count += part["count"]
            total = (
                [a + b for a, b in zip(total, part["gradient"], strict=True)]
                if total
                else part["gradient"]
            )
    norm = sum(x * x for x in total) ** 0.5 / max(count, 1)
    if world > 1:
        store.set(f"norm/{rank}", repr(norm))
        norms = [float(store.get(f"norm/{r}")) for r in range(world)]
        norm = min(norms)
    return share * norm
