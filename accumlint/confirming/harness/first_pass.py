"""The first pass over a loop, in the first way in which the loop runs: its data, its flags, its loss."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportPrivateImportUsage=false, reportUnknownLambdaType=false
# torch's own annotations are partial.

from __future__ import annotations

import itertools
import json
import os
import re
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from accumlint.confirming.harness.pass_runner import make
from accumlint.confirming.harness.recording.recorder import Recorder

_IN_VAIN = re.compile(r"waited in a collective|gloo|Connection closed|timed? ?out", re.IGNORECASE)
_KINDS = ("tokens", "rows", "values", "frames")


def join(store: Any, order: Any, rank: int, world: int, device: torch.device) -> None:
    """A process group of all ranks."""
    per_rank = device.type == "cuda" and torch.cuda.device_count() >= int(
        os.environ["LOCAL_WORLD_SIZE"]
    )
    dist.init_process_group(
        "nccl" if per_rank else "gloo", store=store, rank=rank, world_size=world,
        # A rank that waits for one that has failed should still be heard.
        timeout=timedelta(seconds=max(5.0, order["limit"] / 4)),
    )  # fmt: skip


def everywhere(store: Any, key: str, rank: int, world: int, value: Any) -> list[Any]:
    """What each rank has to tell, in their order."""
    store.set(f"{key}/{rank}", json.dumps(value))
    return [json.loads(store.get(f"{key}/{r}")) for r in range(world)]


def run_first(
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
    job["unused"] = job["frozen"] = False
    job["width"] = 0
    number = 0

    adapted = False

    def attempt(kind: str) -> tuple[dict[str, Any], list[Any]]:
        nonlocal number
        if number and world > 1:
            # What a rank that has failed has left in the air would reach this try.
            dist.destroy_process_group()
            join(dist.PrefixStore(f"way/{number}", store), order, rank, world, device)
        made = make(job, job["passes"][0], kind, order, rank, world, device, 0.0, recorders)
        number += 1
        refused = any(refusal["inside"] for refusal in made["notes"]["refused"])
        tells = [
            _leaves_unused(made), _is_frozen(made), refused, _good(made, job), has_stepped(made), _whole(made),
            _waited(made), made["steps"], world > 1 and _alone(made), _width(made),
        ]  # fmt: skip
        return made, everywhere(store, f"way/{number}/tells", rank, world, tells)

    whole: tuple[bool, bool] | None = None
    waits = 0
    for lenient, ordinary, kind in ways:
        if whole == (lenient, ordinary):
            # It never steps, and would not on other data.
            continue
        if waits > (lenient and not job["exact"]):
            # To wait for a rank in vain takes long: where one has, only another loss may help, whose size is its own.
            continue
        job["leniently"], job["ordinarily"] = lenient, ordinary
        made, told = attempt(kind)
        if not job["width"] and (widths := {width for *_, width in told} - {0}):
            # A network of the file's own, in which rows are as wide as it says.
            job["width"] = max(widths)
            made, told = attempt(kind)
        own = {steps for *_, found, _, _ in told for steps in found}
        if len(own) == 1 and not adapted:
            # What is written in the source is as many everywhere.
            adapted = True
            job["passes"] = [_of_steps(spec, *own) for spec in job["passes"]]
            made, told = attempt(kind)
        if not job["unused"] and any(unused for unused, *_ in told):
            job["unused"] = True
            made, told = attempt(kind)
        if not job["frozen"] and any(frozen for _, frozen, *_ in told):
            job["frozen"] = True
            made, told = attempt(kind)
        if job["reduces"] and not job["unwrapped"] and all(alone for *_, alone, _ in told):
            # What wraps the model is not here, or nothing that is run calls it.
            job["unwrapped"] = True
            made, told = attempt(kind)
        _, _, refused, good, stepped, ran, waited, *_ = map(list, zip(*told, strict=True))
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
        join(dist.PrefixStore("way/best", store), order, rank, world, device)
    return made


def _of_steps(spec: dict[str, Any], steps: int) -> dict[str, Any]:
    """A pass with windows of as many micro-batches as the source is written with."""
    if spec["steps"] == 1:
        return spec
    poison = spec["poison"] and steps - (spec["steps"] - spec["poison"])
    return {**spec, "steps": steps, "poison": poison}


def _good(made: dict[str, Any], job: Any) -> bool:
    """Whether a pass shows what it is for, and may be followed by others like it.

    Where another loss went backward, other data may let the loop's own do so.
    """
    raised = made["raised"]
    if made["notes"]["replaced"]:
        return False
    if raised is None or raised["scaler"]:
        return has_stepped(made) or bool(raised and made["notes"]["losses"])
    return not job["lenient"] and has_stepped(made)


def _waited(made: dict[str, Any]) -> bool:
    """Whether this rank waited in vain for another."""
    return made["raised"] is not None and bool(_IN_VAIN.search(made["raised"]["message"]))


def _alone(made: dict[str, Any]) -> bool:
    """Whether a rank has gone backward and reduced nothing."""
    kinds = {e["kind"] for e in made["notes"]["events"]}
    return "backward" in kinds and "reduce" not in kinds and not made["wraps"]


_MISMATCH = re.compile(r"shapes cannot be multiplied \(\d+x\d+ and (\d+)x\d+\)")
# What is measured is every gradient, number by number.
_MOST_PARAMETERS = 20_000


def _width(made: dict[str, Any]) -> int:
    """How wide the rows are that a network of the user's own asks for; 0 where it takes those that it is given."""
    said = [f["reason"] for f in made["failed"]] + [(made["raised"] or {"message": ""})["message"]]
    found = next((m for m in map(_MISMATCH.search, said) if m), None)
    return int(found[1]) if found and made["size"] <= _MOST_PARAMETERS else 0


def _leaves_unused(made: dict[str, Any]) -> bool:
    """Whether DDP gave up since a fake takes no part in the loss: the user's model may well have no such part."""
    return (
        made["raised"] is not None and "parameters that were not used" in made["raised"]["message"]
    )


def _is_frozen(made: dict[str, Any]) -> bool:
    """Whether what the loop calls was frozen: what thaws a part of it, as adapters are, is not here."""
    return made["raised"] is not None and "does not require grad" in made["raised"]["message"]


def has_stepped(made: dict[str, Any]) -> bool:
    """Whether a pass has shown what it is for: a loss with a gradient, and a step of an optimizer."""
    return _trains(made) and any(e["kind"] == "step" for e in made["notes"]["events"])


def _trains(made: dict[str, Any]) -> bool:
    """Whether a pass came to a loss with a gradient."""
    events = made["notes"]["events"]
    return any(any(part["gradient"]) for e in events for part in e.get("contributions", ()))


def _whole(made: dict[str, Any]) -> bool:
    """Whether a pass trained to its end, on a loss that the loop has divided."""
    return made["raised"] is None and _trains(made) and not made["notes"]["replaced"]
