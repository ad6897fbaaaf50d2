"""The passes of one job as evidence: what was done in each, and what kept others from being measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from accumlint.confirming.launch import Launched
from accumlint.confirming.measurement import Unmeasurable, Window, measured, windows
from accumlint.confirming.result import Pass

# Above the first a difference is real, below the second it is rounding; between them nobody knows. Clean loops stay
# under 4e-16 in float64, the mildest defect measured makes 6e-2.
LIMITS = {
    "float64": (1e-3, 1e-6),
    "float32": (1e-3, 1e-5),
    "bfloat16": (5e-2, 1e-2),
    "float16": (5e-2, 1e-2),
}


# As many names are easier to give than what was to be made of them.
_FEW = 2


class Undecided(Exception):
    """The run does not answer the claim; the message says why. What `names` stand for would tell."""

    def __init__(self, reason: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.names = names


class Evidence:
    """The passes of one job, by what was done in them."""

    def __init__(self, launched: Launched, line: int, dtype: str) -> None:
        self.high, self.low = LIMITS[dtype]
        self.notes = launched.ranks
        self.passes: dict[str, Pass] = {}
        self.failures: dict[str, str] = {}
        self.raw: dict[str, Mapping[str, Any]] = {}
        # What the loop's loss is, nobody knows: a stub reached it, or took its place.
        self.made_up = False
        # A loss was asked for as a sum, and divided by the user.
        self.summed = False
        # Whole numbers above 1 that the source is written with.
        self.numbers = frozenset[int]()
        # The source asks for windows of several micro-batches.
        self.asks = True
        # What is not here and could put right what is asked about.
        self.handed: set[str] = set()
        self.wrapped: set[str] = set()
        # How long the script's own epochs are, as far as they were asked for.
        self.epoch: Mapping[str, Any] = self.notes[0].get("epoch", {})
        _weigh_whole([found for rank in self.notes for found in rank["passes"]])
        count = min(len(rank["passes"]) for rank in self.notes)
        for index in range(count):
            ranks = [rank["passes"][index] for rank in self.notes]
            key = key_of(ranks[0]["spec"])
            self.raw[key] = ranks[0]
            self.handed |= {text for r in ranks for text in r["notes"]["handed"]}
            self.wrapped |= {text for r in ranks for text in r["notes"]["wrapped"]}
            self.summed |= any(r["notes"]["summed"] for r in ranks)
            self.made_up |= any(r["notes"]["touched"] or r["notes"]["own_loss"] for r in ranks)
            try:
                self.passes[key] = measured(ranks, ranks[0]["spec"]["steps"], line)
            except Unmeasurable as reason:
                self.failures[key] = str(reason)

    def get(self, key: str) -> Pass:
        """A pass.

        Raises:
            Undecided: where it was not made or could not be measured.
        """
        if key in self.passes:
            return self.passes[key]
        raise Undecided(self.failures.get(key, unmade(key)))

    def windows(self, key: str) -> list[Window]:
        """The windows of a pass on the first rank.

        Raises:
            Undecided: where it was not made.
        """
        if key not in self.raw:
            raise Undecided(unmade(key))
        return windows(self.raw[key]["notes"]["events"])

    def averages(self, key: str) -> bool:
        """Whether ranks that have applied different gradients have the same parameters at the next update."""
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

    def stand_in(self) -> None:
        """Where the GradScaler refuses to go on, what the loop does is seen with the scaler switched off."""
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
        """What the guard refused, in the windows or before them, on any rank."""
        every = (
            refusal
            for rank in self.notes
            for made in rank["passes"]
            for refusal in made["notes"]["refused"]
        )
        return [refusal for refusal in every if refusal["inside"] == inside]


# Weights differ by more than this, or by rounding.
_ROUNDING = 1e-6


def _weigh_whole(passes: Sequence[Mapping[str, Any]]) -> None:
    """Has losses count as a whole that weigh their micro-batches by what these hold, as by a number of events in them.

    Micro-batches of as many targets weigh differently then, and each as it does alone: no mean over the targets is the
    large batch of such a loss.
    """
    several, alone = (_weights(passes, key) for key in ("equal", "equal one"))
    for line, found in several.items():
        apart = alone.get(line, {})
        both = [(count, w, apart[m][1]) for m, (count, w) in found.items() if m in apart]
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
    """By the line of a loss and by micro-batch, how many targets it has and what they weigh together."""
    found: dict[int, dict[int, tuple[int, float]]] = {}
    first = next((one for one in passes if key_of(one["spec"]) == key), None)
    for event, part in _parts(first) if first else ():
        weight = part["weight"] * part["count"] / event["scale"]
        found.setdefault(part["loss"], {}).setdefault(part["microbatch"], (part["count"], weight))
    return found


def _parts(one: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
    """What each backward of a pass brought."""
    for event in one["notes"]["events"]:
        for part in event.get("contributions", ()):
            yield event, part


def _same(steps: Sequence[Mapping[str, Any]], what: str) -> bool:
    """Whether all ranks have the same of something."""
    return all(step[what] == steps[0][what] for step in steps[1:])


# What is told of a pass in its key where it is so.
_SAID = ("unscaled", "growing", "pressure", "large", "undefined")


def key_of(spec: Mapping[str, Any]) -> str:
    words = [spec["regime"]]
    if spec["steps"] == 1:
        words.append("one")
    words.extend(name for name in _SAID if spec[name])
    if spec["poison"] >= spec["steps"]:
        words.append("last")
    if spec["sabotage"]:
        words.append(spec["sabotage"])
    return " ".join(words)


# What torch says when a GradScaler is used in the wrong order.
_EXPECTED = (
    "unscale_() has already been called", "unscale_() is being called after step()", "step() has already been called",
    "No inf checks were recorded", "Attempted step but _scale is None", "Attempted to call",
)  # fmt: skip


_DATA = {
    "equal": "micro-batches of equal size", "ragged": "micro-batches of different sizes",
    "trailing": "epochs that end inside a window", "overflow": "a gradient that overflows",
}  # fmt: skip


def unmade(key: str) -> str:
    """Says that a pass was not made."""
    return f"the loop could not be run on {_DATA.get(key.partition(' ')[0], 'such data')}"


def is_expected(message: str) -> bool:
    return any(words in message for words in _EXPECTED)


def deciding(failures: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The failed statement that most likely kept a loop from training: the first inside it, or the last before it."""
    inside = next((one for one in failures if one["inside"]), None)
    return inside or (failures[-1] if failures else None)


def roots(
    failures: Sequence[Mapping[str, Any]], wanted: Sequence[tuple[str, int]], at: int
) -> dict[str, int]:
    """The names that would have kept a failure from happening, each with its line.

    A name that only got a fake since an earlier statement had failed is left to what that one wanted, unless that
    is much more than the name itself. `at` is the number of failures that came before.
    """
    found: dict[str, int] = {}
    for name, line in wanted:
        before = next((i for i in range(at - 1, -1, -1) if name in failures[i]["names"]), None)
        earlier = roots(failures, failures[before]["wanted"], before) if before is not None else {}
        for one, where in (earlier if 0 < len(earlier) <= _FEW else {name: line}).items():
            found.setdefault(one, where)
    return found
