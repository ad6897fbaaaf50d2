"""The first pass over a loop: finds the kind of data, the flags and the loss with which the loop runs."""
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from accumlint.confirming.harness.job_rank import Rank
from accumlint.confirming.harness.pass_runner import make

_TIMEOUT = r"(?i)waited in a collective|gloo|Connection closed|timed? ?out"
_KINDS = ("tokens", "rows", "values", "frames")


def run_first(job: Any, rank: Rank) -> dict[str, Any]:
    """The first pass, in the first mode in which the loop runs on all ranks; else the attempt that came furthest.

    The loop's own loss comes first; where the finding does not depend on it, a substitute loss is next. Unknown flags
    are on first, then off.
    """
    kinds = [job["kind"], *(k for k in _KINDS if k != job["kind"])]
    modes = itertools.product((False, True) if job["lenient"] else (False,), (True, False), kinds)
    job.update(unused=False, frozen=False, width=0, source_steps=0)
    numbers = itertools.count()
    tried: list[tuple[dict[str, Any], list[Any]]] = []
    whole: tuple[bool, bool] | None = None
    waits = 0
    for lenient, ordinary, kind in modes:
        if whole == (lenient, ordinary):
            # The loop never steps, whatever its data.
            continue
        if waits > (lenient and not job["exact"]):
            # A collective timeout takes long: after one, only a substitute loss may help, whose size is independent of
            # ranks.
            continue
        job["leniently"], job["ordinarily"] = lenient, ordinary
        made, reports = _attempt(job, kind, rank, next(numbers))
        for name in _ADAPTED:
            if _adapts(job, name, reports):
                made, reports = _attempt(job, kind, rank, next(numbers))
        waits += any(one["waited"] for one in reports)
        if any(one["refused"] for one in reports) or all(one["good"] for one in reports):
            return made
        tried.append((made, [one["stepped"] for one in reports]))
        whole = (lenient, ordinary) if all(one["whole"] for one in reports) else None
    # The first attempt says most about why none ran.
    made, _ = max(tried, key=lambda one: (all(one[1]), any(one[1])))
    job["leniently"], job["ordinarily"] = made["lenient"], made["ordinary"]
    if rank.world > 1:
        rank.join("attempt/best")
    return made


def _attempt(job: Any, kind: str, rank: Rank, number: int) -> tuple[dict[str, Any], list[Any]]:
    """One attempt at the first pass, with the reports of all ranks."""
    if number and rank.world > 1:
        rank.join(f"attempt/{number}")
    made = make(job, job["passes"][0], kind, rank)
    report = {
        "unused": _raised(made, "parameters that were not used"), "frozen": _raised(made, "does not require grad"),
        "source_steps": made["steps"], "width": _width(made),
        "unwrapped": job["reduces"] and rank.world > 1 and _is_unreduced(made), "waited": _raised(made, _TIMEOUT),
        "refused": is_refused(made), "good": _good(made, job), "stepped": has_stepped(made), "whole": _whole(made),
    }  # fmt: skip
    return made, rank.all_gather(f"report/{number}", report)


def _only(steps: Iterable[Iterable[int]]) -> int:
    found = {*itertools.chain(*steps)}
    return found.pop() if len(found) == 1 else 0


# Facts that an attempt reveals, each with the reduction over ranks. `width`: the feature width of the user's network.
# `source_steps`: the literal accumulation steps. `unused`: DDP requires all parameters in the loss, and a fake has
# others than the user's model. `frozen`: code that unfreezes adapters is absent. `unwrapped`: the wrapper is in a file
# that does not run.
_ADAPTED: dict[str, Callable[[Iterable[Any]], Any]] = {
    "width": max, "source_steps": _only, "unused": max, "frozen": max, "unwrapped": min,
}  # fmt: skip


def _adapts(job: Any, name: str, reports: list[Any]) -> bool:
    """Updates a job with a fact that an attempt revealed; whether there was one."""
    value = _ADAPTED[name](one[name] for one in reports)
    if job[name] or not value:
        return False
    job[name] = value
    if name == "source_steps":
        job["passes"] = [_of_steps(spec, value) for spec in job["passes"]]
    return True


def _of_steps(spec: dict[str, Any], steps: int) -> dict[str, Any]:
    """A pass with windows of the literal size in the source."""
    if spec["steps"] == 1:
        return spec
    poison = spec["poison"] and steps - (spec["steps"] - spec["poison"])
    return {**spec, "steps": steps, "poison": poison}


def _good(made: dict[str, Any], job: Any) -> bool:
    """Whether a pass succeeded with the loop's own loss, so that further passes run in the same mode."""
    raised = made["raised"]
    if made["notes"]["replaced"]:
        return False
    if raised is None or raised["scaler"]:
        return has_stepped(made) or bool(raised and made["notes"]["losses"])
    return not job["lenient"] and has_stepped(made)


def _is_unreduced(made: dict[str, Any]) -> bool:
    """Whether a rank went backward without any reduction."""
    kinds = {e["kind"] for e in made["notes"]["events"]}
    return "backward" in kinds and "reduce" not in kinds and not made["wraps"]


_MISMATCH = re.compile(r"shapes cannot be multiplied \(\d+x\d+ and (\d+)x\d+\)")
# All gradients are stored number by number.
_MOST_PARAMETERS = 20_000


def _width(made: dict[str, Any]) -> int:
    """The row width that a user's network requires, from the error message; 0 for none."""
    messages = [f["reason"] for f in made["failed"]] + [
        (made["raised"] or {"message": ""})["message"]
    ]
    found = next((m for m in map(_MISMATCH.search, messages) if m), None)
    return int(found[1]) if found and made["size"] <= _MOST_PARAMETERS else 0


def _raised(made: dict[str, Any], pattern: str) -> bool:
    """Whether an exception with a message like this ended a pass."""
    return made["raised"] is not None and bool(re.search(pattern, made["raised"]["message"]))


def is_refused(made: dict[str, Any]) -> bool:
    """Whether the sandbox refused something in the windows of a pass."""
    return any(refusal["inside"] for refusal in made["notes"]["refused"])


def has_stepped(made: dict[str, Any]) -> bool:
    """Whether a pass reached a loss with a gradient and an optimizer step."""
    return _trains(made) and any(e["kind"] == "step" for e in made["notes"]["events"])


def _trains(made: dict[str, Any]) -> bool:
    """Whether a pass reached a loss with a gradient."""
    events = made["notes"]["events"]
    parts = (part for e in events for part in e.get("contributions", ()))
    return any(x and math.isfinite(x) for part in parts for x in part["gradient"])


def _whole(made: dict[str, Any]) -> bool:
    """Whether a pass ended normally and trained on the loop's own loss."""
    return made["raised"] is None and _trains(made) and not made["notes"]["replaced"]
