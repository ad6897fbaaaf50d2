"""One rank: runs every job in a process of its own, and writes what its recorder noted.

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
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from accumlint.confirming.child import contracts, guard, kernel, script, uncompiled
from accumlint.confirming.child.batches import Data, Enough
from accumlint.confirming.child.binding import Binding
from accumlint.confirming.child.given import GivenError, given
from accumlint.confirming.child.networks import seed_with
from accumlint.confirming.child.notes import Settings
from accumlint.confirming.child.recorder import Recorder
from accumlint.confirming.child.running import run
from accumlint.confirming.child.scaling import Scaling
from accumlint.confirming.child.surroundings import surroundings
from accumlint.confirming.child.telling import even, raising
from accumlint.confirming.child.things import Unbound
from accumlint.confirming.child.wanting import missing_names

_STEPS = re.compile(r"\.accumulate\(|accumulation|accum_|sync_gradients")
_SCALE = 1024.0
_IN_VAIN = re.compile(r"waited in a collective|gloo|Connection closed|timed? ?out", re.IGNORECASE)
_KINDS = ("tokens", "rows", "values", "frames")
# What of a pass makes a difference only to some loops.
_SETTINGS = ("pressure", "unscaled", "growing")
# Nor do controls: where equal numbers of targets leave nothing unequal, their pass is one already.
_OF_CONTROLS = {"even": "uneven", "flush": "leaves"}


def main(path: str) -> None:
    """Runs the jobs in the file at `path`."""
    kernel.die_with_parent()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        # What torchrun does on a signal is not for its ranks to do.
        signal.signal(number, signal.SIG_DFL)
    uncompiled.keep_out()
    order = json.loads(Path(path).read_text(encoding="utf-8"))
    if any(job.get("accelerate") for job in order["jobs"]):
        # Accelerate asks whether models have such tensors, and their import takes half as long as torch's own.
        with contextlib.suppress(ImportError):
            importlib.import_module("torch.distributed.tensor")
    # Not faulthandler's timer, whose thread a fork would wait for in vain.
    signal.alarm(int(order["timeout"]))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
        timeout=timedelta(seconds=order["timeout"]),
    )  # fmt: skip
    out = Path(order["out"])
    for number, job in enumerate(order["jobs"]):
        file = out / f"{number}.{rank}.json"
        _in_a_fork(number, job, order, file, rank, world, store)
        if order["nodes"] > 1:
            _gather(number, file, out, rank, world, store)
        if rank == 0:
            print(f"done {number}", file=sys.stderr, flush=True)


def _gather(number: int, file: Path, out: Path, rank: int, world: int, store: Any) -> None:
    """Brings what other machines noted to the first rank, which alone shares a disk with the command."""
    if rank:
        store.set(f"result/{number}/{rank}", file.read_bytes())
        return
    for other in range(1, world):
        (out / f"{number}.{other}.json").write_bytes(store.get(f"result/{number}/{other}"))


def _in_a_fork(
    number: int, job: Any, order: Any, file: Path, rank: int, world: int, store: Any
) -> None:
    sys.stdout.flush()
    hung = file.with_suffix(".hung")
    child = os.fork()
    if not child:
        try:
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
            if "arguments" in job:
                _script(number, job, order, file, rank, world)
            _write(file, _job(number, job, order, rank, world))
        except BaseException:  # noqa: BLE001
            # A fault of ours: told with its traceback, and the other jobs go on.
            _write(file, {"fault": traceback.format_exc(), "passes": []})
        finally:
            os._exit(0)
    until = time.monotonic() + order["limit"]
    others = [r for r in range(world) if r != rank]
    grace = 0.0
    stopped = ""
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
            _end(child)
            _, status = os.waitpid(child, 0)
            break
        time.sleep(0.005)
    store.set(f"ended/{number}/{rank}", "1")
    if not file.exists():
        ended = {"how": stopped or "itself", "code": os.waitstatus_to_exitcode(status)}
        _write(file, {"ended": ended, "line": _last_line(hung, job["file"]), "passes": []})


def _silence() -> None:
    """What the user's code prints goes nowhere: an endless loop would fill the disk with it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


def _end(child: int) -> None:
    """Kills a job's process and those of its group."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(child, signal.SIGKILL)


def _last_line(hung: Path, file: str) -> int:
    """The user's line that was being executed when a job was found to hang, 0 where that is not known."""
    if not hung.exists():
        return 0
    text = hung.read_text(encoding="utf-8", errors="replace")
    # Threads that wait for work come first; the user's code is in the main one, innermost first.
    found = re.search(rf'File "{re.escape(file)}", line (\d+)', text)
    return int(found[1]) if found else 0


def _write(file: Path, value: Any) -> None:
    partial = file.with_suffix(".part")
    partial.write_text(json.dumps(value), encoding="utf-8")
    partial.replace(file)


def _script(number: int, job: Any, order: Any, file: Path, rank: int, world: int) -> NoReturn:
    """One pass over a script of the user's own, which ends this process."""
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
    device = _device(order["device"])
    if order["memory"] and device.type != "cuda":
        guard.limit_memory(order["memory"])
    script.run(
        job, order, number, rank, world, device, dist.PrefixStore("script", store), lambda found: _write(file, found)
    )  # fmt: skip


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
        _join(prefixed, order, rank, world, device)
    if device.type == "cpu":
        # Accelerate joins other processes on the CPU only when it is told to.
        os.environ["ACCELERATE_USE_CPU"] = "true"
    scratch = Path(order["scratch"]) / f"{number}.{rank}"
    scratch.mkdir()
    os.chdir(scratch)
    if device.type != "cuda":
        guard.limit_memory(order["memory"])
    recorders: list[Recorder] = []
    guard.stay_inside(
        (order["scratch"], order["out"]),
        lambda what: recorders[-1].refuse(what) if recorders else None,
    )
    guard.pretend_folders((order["scratch"], order["out"]))
    warnings.simplefilter("ignore")
    sys.path[:0] = job["roots"]
    passes: list[dict[str, Any]] = []
    first = _first(job, order, rank, world, device, prefixed, recorders)
    if any(refusal["inside"] for refusal in first["notes"]["refused"]):
        # It would try again in every other pass.
        return {"passes": [first]}
    kind = first["kind"]
    passes.append(first)
    pressure = _pressure(first["notes"]["events"], prefixed, rank, world)
    cut = first["raised"] is not None
    told = _everywhere(prefixed, "tells", rank, world, [_tells(first), cut or _steps(first)])
    tells = told[0][0]
    if not (job["stepless"] or any(more for _, more in told)):
        # There is nothing to compare.
        return {"passes": passes}
    for index, spec in enumerate(job["passes"][1:]):
        if not _agree(passes[-1], prefixed, index, rank, world):
            # What the ranks still have in the air would reach the wrong pass.
            break
        settings = [*filter(spec.get, _SETTINGS), _OF_CONTROLS.get(spec["sabotage"])]
        if not all(tells[setting] for setting in settings if setting):
            continue
        passes.append(_pass(job, spec, kind, order, rank, world, device, pressure, recorders))
    return {"passes": passes}


def _join(store: Any, order: Any, rank: int, world: int, device: torch.device) -> None:
    """A process group of all ranks."""
    per_rank = device.type == "cuda" and torch.cuda.device_count() >= int(
        os.environ["LOCAL_WORLD_SIZE"]
    )
    dist.init_process_group(
        "nccl" if per_rank else "gloo", store=store, rank=rank, world_size=world,
        # A rank that waits for one that has failed should still be heard.
        timeout=timedelta(seconds=max(5.0, order["limit"] / 4)),
    )  # fmt: skip


def _everywhere(store: Any, key: str, rank: int, world: int, value: Any) -> list[Any]:
    """What each rank has to tell, in their order."""
    store.set(f"{key}/{rank}", json.dumps(value))
    return [json.loads(store.get(f"{key}/{r}")) for r in range(world)]


def _first(
    job: Any, order: Any, rank: int, world: int, device: torch.device, store: Any, recorders: list[Recorder]
) -> dict[str, Any]:  # fmt: skip
    """The first pass, in the first way in which the loop runs on all ranks; else the one that got furthest.

    The loop's own loss first, and where the finding does not depend on it, any. What is a feature of the script and no
    part of its ordinary way may be in the way.
    """
    kinds = [job["kind"], *(k for k in _KINDS if k != job["kind"])]
    ways = itertools.product((False, True) if job["lenient"] else (False,), (True, False), kinds)
    tried: list[dict[str, Any]] = []
    steps: list[list[bool]] = []
    job["unused"] = False
    number = 0

    def attempt(kind: str) -> tuple[dict[str, Any], list[Any]]:
        nonlocal number
        if number and world > 1:
            # What a rank that has failed has left in the air would reach this try.
            dist.destroy_process_group()
            _join(dist.PrefixStore(f"way/{number}", store), order, rank, world, device)
        made = _pass(job, job["passes"][0], kind, order, rank, world, device, 0.0, recorders)
        number += 1
        refused = any(refusal["inside"] for refusal in made["notes"]["refused"])
        tells = [
            _leaves_unused(made), refused, _good(made, job), _steps(made), _whole(made), _waited(made),
            world > 1 and _alone(made),
        ]  # fmt: skip
        return made, _everywhere(store, f"way/{number}/tells", rank, world, tells)

    whole: tuple[bool, bool] | None = None
    waits = 0
    for lenient, ordinary, kind in ways:
        if whole == (lenient, ordinary):
            # It never steps, and would not on other data.
            continue
        if waits > lenient:
            # To wait for a rank in vain takes long: where one has, only another loss may help.
            continue
        job["leniently"], job["ordinarily"] = lenient, ordinary
        made, told = attempt(kind)
        if not job["unused"] and any(unused for unused, *_ in told):
            job["unused"] = True
            made, told = attempt(kind)
        if job["reduces"] and not job["unwrapped"] and all(alone for *_, alone in told):
            # What wraps the model is not here, or nothing that is run calls it.
            job["unwrapped"] = True
            made, told = attempt(kind)
        _, refused, good, stepped, ran, waited, _ = map(list, zip(*told, strict=True))
        waits += any(waited)
        if any(refused) or all(good):
            return made
        tried.append(made)
        steps.append(stepped)
        whole = (lenient, ordinary) if all(ran) else None
    # Or else the first, which says most about why none of them ran.
    best = max(range(len(tried)), key=lambda index: (all(steps[index]), any(steps[index]), -index))
    made = tried[best]
    job["leniently"], job["ordinarily"] = made["lenient"], made["ordinary"]
    if world > 1:
        dist.destroy_process_group()
        _join(dist.PrefixStore("way/best", store), order, rank, world, device)
    return made


def _good(made: dict[str, Any], job: Any) -> bool:
    """Whether a pass shows what it is for, and may be followed by others like it."""
    raised = made["raised"]
    if raised is None or raised["scaler"]:
        return _steps(made) or bool(raised and made["notes"]["losses"])
    return not job["lenient"] and _steps(made)


def _waited(made: dict[str, Any]) -> bool:
    """Whether this rank waited in vain for another."""
    return made["raised"] is not None and bool(_IN_VAIN.search(made["raised"]["message"]))


def _alone(made: dict[str, Any]) -> bool:
    """Whether a rank has gone backward and reduced nothing."""
    kinds = {e["kind"] for e in made["notes"]["events"]}
    return "backward" in kinds and "reduce" not in kinds and not made["wraps"]


def _leaves_unused(made: dict[str, Any]) -> bool:
    """Whether DDP gave up since a stand-in takes no part in the loss: the user's model may well have no such part."""
    return (
        made["raised"] is not None and "parameters that were not used" in made["raised"]["message"]
    )


def _steps(made: dict[str, Any]) -> bool:
    """Whether a pass has shown what it is for: a loss with a gradient, and a step of an optimizer."""
    return _trains(made) and any(e["kind"] == "step" for e in made["notes"]["events"])


def _trains(made: dict[str, Any]) -> bool:
    """Whether a pass came to a loss with a gradient."""
    events = made["notes"]["events"]
    return any(any(part["gradient"]) for e in events for part in e.get("contributions", ()))


def _whole(made: dict[str, Any]) -> bool:
    """Whether a pass trained to its end."""
    return made["raised"] is None and _trains(made)


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


def _counts(regime: str, kind: str, rank: int) -> Any:
    """The counted targets of each micro-batch on a rank; numbers of rows can be cut into four."""
    ragged = ((3, 10, 5, 8, 2, 9, 4), (9, 2, 7, 4, 10, 3, 6))[rank % 2]
    if kind in ("rows", "values"):
        ragged = ((4, 12, 8, 16, 4, 12, 8), (12, 4, 8, 4, 16, 8, 4))[rank % 2]
    if regime == "ragged":
        return lambda number: ragged[(number - 1) % len(ragged)]
    return lambda _: 4


def _pass(
    job: Any,
    spec: Any,
    kind: str,
    order: Any,
    rank: int,
    world: int,
    device: torch.device,
    pressure: float,
    recorders: list[Recorder],
) -> dict[str, Any]:
    seed_with(order["seed"])
    steps = spec["steps"]
    dtype = getattr(torch, order["dtype"])
    # What the user's code makes without saying so is of the precision of the run.
    torch.set_default_dtype(dtype)
    length = 2 * steps + (max(1, steps - 1) if spec["regime"] == "trailing" else 0)
    data = Data(
        kind=kind, counts=_counts(spec["regime"], kind, rank), length=length, seed=order["seed"], rank=rank,
        device=device, dtype=dtype, ignored=job["ignored"], pads=job["pads"], limit=40 * length,
    )  # fmt: skip
    settings = Settings(
        file=job["file"], line=job["line"], device=device, dtype=dtype,
        pressure=pressure if spec.get("pressure") else None,
        steps=steps, updates=spec["updates"], totals=tuple(job["totals"]), sabotage=spec.get("sabotage", ""),
        inject=spec.get("inject", 0), large=spec.get("large", False),
        undefined=spec.get("undefined", False), graphs=job["graphs"],
    )  # fmt: skip
    data.poisoned, data.exhausts = spec.get("poison", 0), spec.get("exhausts", False)
    recorder = Recorder(data, settings)
    recorders.append(recorder)
    copies = world if job["accelerate"] else 1
    raised: dict[str, Any] | None = None
    unbound = ""
    objects: dict[str, Any] = {}
    if order["setup"]:
        try:
            objects = given(order["setup"], data, world, device)
        except GivenError as problem:
            unbound = str(problem)
    binding = Binding(
        recorder, data, steps, job["roles"], job["choices"], world, objects, copies,
        contracts.PACKAGES if job["entry"]["driver"] else (), job["unwrapped"], job["leniently"], job["ordinarily"],
        tuple(job["steppers"]), ".prepare(" in job["text"],
        bool(_STEPS.search(job["text"])), job["scaled"], job["scripted"],
    )  # fmt: skip
    binding.unused = job["unused"]
    wanted: list[tuple[str, int]] = []
    scaling = Scaling(
        0.0 if spec["unscaled"] else _SCALE,
        1 if spec["growing"] else 2000,
        binding.tell if job["scaled"] else None,
    )
    with surroundings(binding, scaling):
        try:
            if not unbound:
                with recorder.watching():
                    run(job, binding)
        except (Enough, StopIteration):
            pass
        except Unbound as reason:
            unbound = str(reason)
        # Whatever the user's code raises is a result.
        except BaseException as error:  # noqa: BLE001
            raised = raising(error, job["file"], order["memory"])
            wanted = missing_names(error, job["file"], job["text"], binding.standins)
    notes = recorder.notes
    even(notes.events)
    return {
        "spec": spec, "kind": kind, "raised": raised, "unbound": unbound, "standins": binding.standins,
        "wraps": recorder.wraps, "wanted": wanted, "lenient": job["leniently"], "ordinary": job["ordinarily"],
        "failed": list(dict.fromkeys(binding.failed))[:8], "pressure": pressure if spec.get("pressure") else 0.0,
        "notes": {
            "events": notes.events, "losses": notes.losses, "scales": notes.scales, "touched": notes.touched,
            "graphs": recorder.graphs.most, "initial_scale": notes.initial_scale, "fetched": data.fetched,
            "refused": notes.refused, "own_loss": notes.own_loss, "handed": notes.handed,
            "wrapped": notes.wrapped, "summed": notes.summed,
        },
    }  # fmt: skip
