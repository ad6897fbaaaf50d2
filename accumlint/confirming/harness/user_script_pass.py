"""One pass over a user's own script: run as torchrun would, watched, and ended after a few windows.

The process is this pass's own. It is over when enough was seen, so nothing that the script does at its end is done.
"""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportPrivateUsage=false, reportUnknownLambdaType=false
# pyright: reportPrivateImportUsage=false
# torch's own annotations are partial.

from __future__ import annotations

import io
import json
import os
import sys
import time
import traceback
import types
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import torch
import torch.distributed as dist

from accumlint.confirming import user_script_measurement
from accumlint.confirming.harness import line_marking, user_script_environment
from accumlint.confirming.harness.isolation import audit_hooks, mirror, no_compile
from accumlint.confirming.harness.isolation.confinement import confine
from accumlint.confirming.harness.recording.notes import Settings
from accumlint.confirming.harness.recording.torch_hooks import watching
from accumlint.confirming.harness.recording.user_script_recorder import OwnRecorder
from accumlint.confirming.passes import STEPS

# Micro-batches after which a script that never steps has been seen enough, for each update that was asked for.
_PATIENCE = 64
# Where libraries look for what they have kept, and its name in the usual folder.
_CACHES = {
    "HF_HOME": "huggingface", "TORCH_HOME": "torch", "MPLCONFIGDIR": "matplotlib", "NUMBA_CACHE_DIR": "numba",
}  # fmt: skip
# How long a rank that has seen enough waits for the others to have.
_GRACE = 20.0


class _Said(io.TextIOBase):
    """Keeps the last lines of what a script tells on standard error."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=20)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._lines.extend(line.strip() for line in text.splitlines() if line.strip())
        return len(text)

    @property
    def last(self) -> str:
        return self._lines[-1][:300] if self._lines else ""


def run(
    job: Any, order: Any, number: int, rank: int, world: int, device: torch.device, store: Any,
    write: Callable[[dict[str, Any]], None],
) -> NoReturn:  # fmt: skip
    """Runs one pass, writes what was noted and ends the process."""
    (spec,) = job["passes"]
    steps, pressure = 0, 0.0
    if number != job["first"]:
        steps, pressure = _earlier(order, job["first"], number, rank, world, store)
        if not steps or (spec["pressure"] and not pressure):
            write({"passes": []})
            os._exit(0)
    scratch = Path(order["scratch"]) / f"{number}.{rank}"
    scratch.mkdir()
    folder = mirror.mirrored(Path(job["folder"]), scratch)
    settings = Settings(
        file=job["file"], line=0, device=device, dtype=torch.float32,
        pressure=pressure if spec["pressure"] else None, updates=spec["updates"], most=_PATIENCE * spec["updates"],
        steps=steps or 1, totals=tuple(job["totals"]), sabotage=spec["sabotage"], graphs=job["graphs"], as_is=True,
        whole=job["whole"], inject=_placed(spec["inject"], steps), poison=_placed(spec["poison"], steps),
    )  # fmt: skip
    said = _Said()
    reached: set[tuple[str, int]] = set()
    told: dict[str, str] = {}

    def noted(raised: dict[str, Any] | None, how: str) -> dict[str, Any]:
        notes = recorder.notes
        return {
            "reached_into": reached_into,
            "passes": [
                {
                    "spec": spec, "raised": raised, "how": how, "said": said.last, "standins": told,
                    "pressure": pressure if spec["pressure"] else 0.0, "dtype": _dtype(recorder),
                    "sampled": recorder.sampled(), "unfit": recorder.unfit, "asked": recorder.asked_steps,
                    "reached": sorted(reached), "epoch": recorder.longest,
                    "notes": {
                        "events": notes.events, "losses": notes.losses, "scales": notes.scales,
                        "graphs": recorder.graphs.most, "initial_scale": notes.initial_scale, "refused": notes.refused,
                        "tampered": notes.tampered,
                    },
                }
            ]
        }  # fmt: skip

    def stop() -> NoReturn:
        write(noted(None, "stopped"))
        # What another rank still waits for from this one has to come before this one goes.
        store.set(f"enough/{number}/{rank}", "1")
        until = time.monotonic() + _GRACE
        while time.monotonic() < until and not all(
            store.check([f"enough/{number}/{other}"]) for other in range(world)
        ):
            time.sleep(0.01)
        os._exit(0)

    recorder = OwnRecorder(settings, rank, stop)
    meeting = dist.PrefixStore(f"pass/{number}", store)
    allowed = frozenset(job["allowed"])
    reached_into = audit_hooks.stay_inside((order["scratch"],), recorder.refuse, allowed)
    confine(order, job, world, device.type == "cuda", order["scratch"], allowed)
    no_compile.let_in()
    _settle(job, folder, said, order["seed"])
    raised: dict[str, Any] | None = None
    with ExitStack() as stack:

        def patch(owner: Any, name: str, new: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, new, create=True))

        user_script_environment.settle(recorder, device, meeting, told, patch, spec["unscaled"])
        averages = {(file, line) for file, lines in job["averages"].items() for line in lines}

        def passed(file: str, line: int) -> None:
            reached.add((file, line))
            if (file, line) in averages:
                recorder.note("average")

        line_marking.enter(job["texts"], job["marks"], passed, patch)
        try:
            with watching(recorder):
                exec(_code(job), _main(job).__dict__)
                recorder.feed.end()
        except SystemExit as left:
            if left.code not in (None, 0):
                told_code = left.code if isinstance(left.code, int) else 1
                said.write("" if isinstance(left.code, int) else str(left.code))
                raised = {"kind": "SystemExit", "message": str(told_code), "line": 0, "file": ""}
            else:
                recorder.feed.end()
        # Whatever the user's code raises is a result.
        except BaseException as error:  # noqa: BLE001
            raised = _raised(error, recorder)
    write(noted(raised, "raised" if raised else "ended"))
    os._exit(0)


def _placed(microbatch: int, steps: int) -> int:
    """The micro-batch of a window of this script's that has the place of one in a window of `STEPS`; 0 for none."""
    return max(microbatch - STEPS + steps, 1) if microbatch else 0


def _earlier(
    order: Any, first: int, number: int, rank: int, world: int, store: Any
) -> tuple[int, float]:
    """The accumulation steps that the first pass showed, and a clipping threshold that acts; 0 where it showed none."""
    made = json.loads(Path(order["out"], f"{first}.{rank}.json").read_text(encoding="utf-8"))
    found = made["passes"][0] if made["passes"] else None
    steps, bite = 0, 0.0
    if found is not None:
        events = found["notes"]["events"]
        steps = found["asked"] or user_script_measurement.usual_steps(events)
        bite = user_script_measurement.bite(events, found["sampled"])
    # The same on all ranks.
    store.set(f"bite/{number}/{rank}", json.dumps([steps, bite]))
    every = [json.loads(store.get(f"bite/{number}/{other}")) for other in range(world)]
    return min(steps for steps, _ in every), min(bite for _, bite in every)


def _settle(job: Any, folder: Path, said: _Said, seed: int) -> None:
    """The process as the script expects it: folder, arguments, path, environment."""
    os.chdir(folder)
    for name, kept in _CACHES.items():
        # A cache that is not there yet would be made.
        if name not in os.environ and not (Path.home() / ".cache" / kept).exists():
            os.environ[name] = str(folder.parent / "cache" / kept)
    sys.argv = [job["shown"], *job["arguments"]]
    sys.path[0:1] = job["roots"]
    # It writes as a stream does, and is none by its type.
    sys.stderr = said  # pyright: ignore[reportAttributeAccessIssue]
    warnings.simplefilter("ignore")
    torch.manual_seed(seed)


def _main(job: Any) -> types.ModuleType:
    module = types.ModuleType("__main__")
    module.__file__ = job["file"]
    module.__package__ = job["package"]
    sys.modules["__main__"] = module
    return module


def _code(job: Any) -> Any:
    file = job["file"]
    text = job["texts"].get(file)
    if text is None:
        text = Path(file).read_text(encoding="utf-8")
    return line_marking.compiled(text, file, job["marks"].get(file, ()))


def _dtype(recorder: OwnRecorder) -> str:
    """The lowest precision of the parameters that train."""
    order = ["float64", "float32", "float16", "bfloat16"]
    found = {str(p.dtype).removeprefix("torch.") for p in recorder.parameters()}
    return max((d for d in found if d in order), key=order.index, default="float32")


def _raised(error: BaseException, recorder: OwnRecorder) -> dict[str, Any]:
    steps = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if recorder.is_own(frame)
    ]
    file, line = steps[-1] if steps else ("", 0)
    lines = str(error).strip().split("\n")
    return {"kind": type(error).__name__, "message": lines[0][:300], "line": line, "file": file}
