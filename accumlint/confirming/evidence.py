"""The measured passes of one job, keyed by their data and control, and the failures that prevented a measurement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from accumlint.confirming.launch import Launched
from accumlint.confirming.measurement import Unmeasurable, Window, measured, windows
from accumlint.confirming.result import Pass

# Differences above the first limit are real, those below the second are rounding; in between the run is undecided.
# Correct loops stay below 4e-16 in float64; the mildest defect that was measured causes 6e-2.
LIMITS = {
    "float64": (1e-3, 1e-6),
    "float32": (1e-3, 1e-5),
    "bfloat16": (5e-2, 1e-2),
    "float16": (5e-2, 1e-2),
}


# An absent object is reported itself, unless it needs at most this many other names to be built.
_FEW = 2


class Undecided(Exception):
    """The run does not answer the claim; the message says why. A set-up file that provides `names` would decide it."""

    def __init__(self, reason: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.names = names


class Evidence:
    """The passes of one job by key, with what the verdict needs to know about the loop."""

    def __init__(self, launched: Launched, line: int, dtype: str) -> None:
        self.high, self.low = LIMITS[dtype]
        self.notes = launched.ranks
        self.passes: dict[str, Pass] = {}
        self.failures: dict[str, str] = {}
        self.raw: dict[str, Mapping[str, Any]] = {}
        # The loop's loss is unknown: a stub took part in its computation, or a substitute replaced it.
        self.loss_unknown = False
        # The loop requests a loss with reduction="sum" and divides it itself.
        self.summed = False
        # The defect may be a window that lacks a micro-batch and is divided as if it were whole.
        self.shortens = False
        # Integer literals above 1 in the source.
        self.numbers = frozenset[int]()
        # The source mentions accumulation steps.
        self.mentions_steps = True
        # Calls into absent code that may correct the gradients: those that receive an optimizer, those that receive a
        # model.
        self.opaque_calls: set[str] = set()
        self.wrapped: set[str] = set()
        # Epoch and window length of the script, where the job requested them.
        self.epoch: Mapping[str, Any] = self.notes[0].get("epoch", {})
        _mark_composed_losses([found for rank in self.notes for found in rank["passes"]])
        count = min(len(rank["passes"]) for rank in self.notes)
        for index in range(count):
            ranks = [rank["passes"][index] for rank in self.notes]
            key = key_of(ranks[0]["spec"])
            self.raw[key] = ranks[0]
            self.opaque_calls |= {text for r in ranks for text in r["notes"]["opaque_calls"]}
            self.wrapped |= {text for r in ranks for text in r["notes"]["wrapped"]}
            self.summed |= any(r["notes"]["summed"] for r in ranks)
            self.loss_unknown |= any(
                r["notes"]["touched"] or r["notes"]["factors"] or r["notes"]["substitute_loss"]
                for r in ranks
            )
            try:
                self.passes[key] = measured(ranks, ranks[0]["spec"]["steps"], line)
            except Unmeasurable as reason:
                self.failures[key] = str(reason)

    def get(self, key: str) -> Pass:
        """The pass with this key.

        Raises:
            Undecided: where it did not run or cannot be measured.
        """
        if key in self.passes:
            return self.passes[key]
        raise Undecided(self.failures.get(key, not_run(key)))

    def windows(self, key: str) -> list[Window]:
        """The windows that the first rank recorded in a pass.

        Raises:
            Undecided: where the pass did not run.
        """
        if key not in self.raw:
            raise Undecided(not_run(key))
        return windows(self.raw[key]["notes"]["events"])

    def averages(self, key: str) -> bool:
        """Whether the ranks average parameters: they apply different gradients and hold equal parameters afterwards."""
        made = [
            found for rank in self.notes for found in rank["passes"] if key_of(found["spec"]) == key
        ]
        steps = [[e for e in one["notes"]["events"] if e["kind"] == "step"] for one in made]
        for before, after in pairwise(zip(*steps, strict=False)):
            moved = (
                before[0]["held"] != after[0]["held"] and before[0]["wraps"] == after[0]["wraps"]
            )
            if moved and not _same(before, "applied") and _same(after, "held"):
                return True
        return False

    def substitute_unscaled(self) -> None:
        """Replaces passes in which the GradScaler raises by those that run with the scaler disabled."""
        found = self.passes.get("equal")
        if not found or not found.raised or not is_expected(found.raised.message):
            return
        for name in ("equal", "equal pressure", "trailing"):
            regime, _, pressure = name.partition(" ")
            key = f"{regime} unscaled {pressure}".strip()
            other = self.passes.get(key)
            if other and len(other.updates) > len(found.updates):
                self.passes[name] = self.passes.pop(key)

    def refused(self, inside: bool) -> list[Mapping[str, Any]]:
        """The operations that the sandbox refused on any rank, in the windows (`inside`) or before them."""
        every = (
            refusal
            for rank in self.notes
            for made in rank["passes"]
            for refusal in made["notes"]["refused"]
        )
        return [refusal for refusal in every if refusal["inside"] == inside]


# Weights that differ by less than this differ by rounding.
_ROUNDING = 1e-6


def _mark_composed_losses(passes: Sequence[Mapping[str, Any]]) -> None:
    """Marks losses as composed (`shaped`) whose micro-batch weights depend on the content of the micro-batch.

    With equal target counts the weights differ between micro-batches, in the same way as in windows of one micro-batch,
    so that a mean over the targets is not the large batch of such a loss.
    """
    several, single = (_weights(passes, key) for key in ("equal", "equal one"))
    for line, found in several.items():
        single_line = single.get(line, {})
        both = [
            (count, w, single_line[m][1]) for m, (count, w) in found.items() if m in single_line
        ]
        weights, ratios = [w for _, w, _ in both], [w / one for _, w, one in both if one]
        uneven = len({count for count, *_ in both}) == 1 and _differ(weights)
        if uneven and len(ratios) == len(weights) and not _differ(ratios):
            for part in (part for one in passes for _, part in _parts(one) if part["loss"] == line):
                part["shaped"] = True


def _differ(numbers: Sequence[float]) -> bool:
    return max(numbers) - min(numbers) > _ROUNDING * max(map(abs, numbers))


def _weights(
    passes: Sequence[Mapping[str, Any]], key: str
) -> dict[int, dict[int, tuple[int, float]]]:
    """By loss line and micro-batch, the number of targets and their total weight."""
    found: dict[int, dict[int, tuple[int, float]]] = {}
    first = next((one for one in passes if key_of(one["spec"]) == key), None)
    for event, part in _parts(first) if first else ():
        weight = part["weight"] * part["count"] / event["scale"]
        found.setdefault(part["loss"], {}).setdefault(part["microbatch"], (part["count"], weight))
    return found


def _parts(one: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
    """The contributions to each backward of a pass, with their event."""
    for event in one["notes"]["events"]:
        for part in event.get("contributions", ()):
            yield event, part


def _same(steps: Sequence[Mapping[str, Any]], key: str) -> bool:
    """Whether all ranks recorded the same value under a key."""
    return all(step[key] == steps[0][key] for step in steps[1:])


# The settings that a pass names in its key when they are on.
_KEY_FLAGS = ("unscaled", "growing", "pressure", "large", "undefined")


def key_of(spec: Mapping[str, Any]) -> str:
    words = [spec["regime"]]
    if spec["steps"] == 1:
        words.append("one")
    words.extend(name for name in _KEY_FLAGS if spec[name])
    if spec["poison"] >= spec["steps"]:
        words.append("last")
    if spec["sabotage"]:
        words.append(spec["sabotage"])
    return " ".join(words)


# Messages that torch raises when a GradScaler is used in the wrong order.
_EXPECTED = (
    "unscale_() has already been called", "unscale_() is being called after step()", "step() has already been called",
    "No inf checks were recorded", "Attempted step but _scale is None", "Attempted to call",
)  # fmt: skip


_DATA = {
    "equal": "micro-batches of equal size", "ragged": "micro-batches of different sizes",
    "trailing": "epochs that end inside a window", "overflow": "a gradient that overflows",
}  # fmt: skip


def not_run(key: str) -> str:
    """The reason for a pass that did not run."""
    return f"the loop could not be run on {_DATA.get(key.partition(' ')[0], 'such data')}"


def is_expected(message: str) -> bool:
    return any(words in message for words in _EXPECTED)


def deciding(failures: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The failed statement that most likely prevented training: the first in the loop, else the last before it."""
    inside = next((one for one in failures if one["inside"]), None)
    return inside or (failures[-1] if failures else None)


def roots(
    failures: Sequence[Mapping[str, Any]], wanted: Sequence[tuple[str, int]], at: int
) -> dict[str, int]:
    """The names, each with its line, whose values would have prevented a failure.

    A name that has a fake because an earlier statement failed is replaced by the names which that statement needs,
    unless those are many. `at` is the number of earlier failures.
    """
    found: dict[str, int] = {}
    for name, line in wanted:
        before = next((i for i in range(at - 1, -1, -1) if name in failures[i]["names"]), None)
        earlier = roots(failures, failures[before]["wanted"], before) if before is not None else {}
        for one, where in (earlier if 0 < len(earlier) <= _FEW else {name: line}).items():
            found.setdefault(one, where)
    return found
