"""The first pass over a loop, in the first way in which the loop runs: its data, its flags, its loss."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportPrivateImportUsage=false, reportUnknownLambdaType=false
# torch's own annotations are partial.

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any

from accumlint.confirming.harness.job_rank import Rank
from accumlint.confirming.harness.pass_runner import make

_IN_VAIN = re.compile(r"waited in a collective|gloo|Connection closed|timed? ?out", re.IGNORECASE)
_KINDS = ("tokens", "rows", "values", "frames")


def run_first(job: Any, rank: Rank) -> dict[str, Any]:
    """The first pass, in the first way in which the loop runs on all ranks; else the one that got furthest.

    The loop's own loss first, and where the finding does not depend on it, any. What is a feature of the script and no
    part of its ordinary way may be in the way.
    """
    kinds = [job["kind"], *(k for k in _KINDS if k != job["kind"])]
    ways = itertools.product((False, True) if job["lenient"] else (False,), (True, False), kinds)
    job.update(unused=False, frozen=False, width=0, own_steps=0)
    numbers = itertools.count()
    tried: list[tuple[dict[str, Any], list[Any]]] = []
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
        made, told = _attempt(job, kind, rank, next(numbers))
        for name in _ADAPTED:
            if _adapts(job, name, told):
                made, told = _attempt(job, kind, rank, next(numbers))
        waits += any(one["waited"] for one in told)
        if any(one["refused"] for one in told) or all(one["good"] for one in told):
            return made
        tried.append((made, [one["stepped"] for one in told]))
        whole = (lenient, ordinary) if all(one["whole"] for one in told) else None
    # Or else the first, which says most about why none of them ran.
    made, _ = max(tried, key=lambda one: (all(one[1]), any(one[1])))
    job["leniently"], job["ordinarily"] = made["lenient"], made["ordinary"]
    if rank.world > 1:
        rank.join("way/best")
    return made


def _attempt(job: Any, kind: str, rank: Rank, number: int) -> tuple[dict[str, Any], list[Any]]:
    """A first pass, and what all ranks tell of theirs."""
    if number and rank.world > 1:
        rank.join(f"way/{number}")
    made = make(job, job["passes"][0], kind, rank)
    tells = {
        "unused": _raised(made, "parameters that were not used"), "frozen": _raised(made, "does not require grad"),
        "own_steps": made["steps"], "width": _width(made),
        "unwrapped": job["reduces"] and rank.world > 1 and _alone(made), "waited": _waited(made),
        "refused": is_refused(made), "good": _good(made, job), "stepped": has_stepped(made), "whole": _whole(made),
    }  # fmt: skip
    return made, rank.everywhere(f"tells/{number}", tells)


def _only(steps: Iterable[Iterable[int]]) -> int:
    found = {*itertools.chain(*steps)}
    return found.pop() if len(found) == 1 else 0


# What a job is told of once a try has shown it, by what ranks have to tell of it. A network of the file's own has rows
# as wide as it says. What is written in the source as the steps is as many everywhere. DDP gives up where a fake takes
# no part in the loss: the user's model may well have no such part. What thaws a part of what was frozen, as adapters
# are, is not here; nor is what wraps a model, or nothing that is run calls it.
_ADAPTED: dict[str, Callable[[Iterable[Any]], Any]] = {
    "width": max, "own_steps": _only, "unused": max, "frozen": max, "unwrapped": min,
}  # fmt: skip


def _adapts(job: Any, name: str, told: list[Any]) -> bool:
    """Whether a job has just learned something, and is to be tried with that."""
    value = _ADAPTED[name](one[name] for one in told)
    if job[name] or not value:
        return False
    job[name] = value
    if name == "own_steps":
        job["passes"] = [_of_steps(spec, value) for spec in job["passes"]]
    return True


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


def _raised(made: dict[str, Any], words: str) -> bool:
    """Whether a pass was ended by something that these words are said of."""
    return made["raised"] is not None and words in made["raised"]["message"]


def is_refused(made: dict[str, Any]) -> bool:
    """Whether the sandbox has refused something in the windows of a pass."""
    return any(refusal["inside"] for refusal in made["notes"]["refused"])


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
