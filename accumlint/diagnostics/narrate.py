"""Tells a finding's window in words: the timeline, the gradient that is applied, the large batch's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import dropwhile

from accumlint.reading.ir import Node
from accumlint.reading.program import Program
from accumlint.rule import Finding
from accumlint.tracing import trace as t

_COMPARED = re.compile(r"(\S+) (==|<|>|in) (.+)")
_NEGATED = {"==": "!=", "<": ">=", ">": "<=", "in": "not in"}


def timeline(finding: Finding) -> Iterator[tuple[Node, str]]:
    """The events of the finding's window in words, micro-batch by micro-batch; nothing without a window."""
    if finding.window is None:
        return
    first = _first(finding.window)
    for event in dropwhile(_closes_the_window_before, _telling(finding.window.between)):
        numbered = isinstance(event, t.Forward | t.Backward) and event.microbatch >= first
        number = f"micro-batch {event.microbatch - first + 1}: " if numbered else ""
        yield event.node, f"{number}{describe(event, first)}"


def gradients(finding: Finding, program: Program) -> tuple[str, str]:
    """What the optimizer applies and what the large batch would: "step at line 42 applies g1 + g2 + g3 + g4".

    Nothing of both where a sum of weighted gradients cannot show how they differ, or where they do not.
    """
    window = finding.window
    if window is None:
        return finding.applied, finding.expected
    spot = program.spot(window.step.node)
    file = "" if spot.source is program.source else f"{os.path.basename(spot.source.path)}:"
    what = finding.applied or combination(window.contributions, _first(window)) or "nothing"
    reference = finding.expected or _mean(window)
    if what == reference:
        return "", ""
    step = f"step at {file or 'line '}{spot.place.line} applies {what}"
    return step, f"the large batch is {reference}" if reference else ""


def _mean(window: t.Window) -> str:
    """The mean over the window's micro-batches."""
    numbers = window.backwarded or window.microbatches
    if not numbers:
        return ""
    weight, first = _weight(Fraction(1, len(numbers)), ()), _first(window)
    return _joined([f"{weight}g{n - first + 1}" for n in numbers])


def condition(finding: Finding) -> str:
    """When the finding holds: "when args.amp is true", "once ACC402 is mended"."""
    mended = f"once {finding.behind} is mended" if finding.behind else ""
    return " and ".join(filter(None, (mended, flags(finding.conditions))))


def flags(choices: Iterable[tuple[str, str]]) -> str:
    """What flags are taken to be: "when args.amp is true"."""
    said = [_flag(key, choice) for key, choice in choices]
    return f"when {' and '.join(said)}" if said else ""


def _first(window: t.Window) -> int:
    """The micro-batch that a window's telling begins with: it is called 1 there."""
    numbers = [c.microbatch for c in window.contributions] + list(window.backwarded)
    return min(numbers, default=1)


def combination(contributions: Iterable[t.Contribution], first: int = 1) -> str:
    """A sum of gradients as text: "1/4 g1 + 1/4 g2", with `S` for the GradScaler's scale."""
    totals: dict[tuple[int, tuple[str, ...]], dict[str, Fraction | None]] = {}
    contributions = tuple(contributions)
    unclear = {c.microbatch for c in contributions if not all(map(_PLAIN.fullmatch, c.symbols))}
    # Of a micro-batch, the network that got the first gradient is shown.
    networks: dict[int, str] = {}
    for c in contributions:
        if c.microbatch in unclear:
            totals[c.microbatch, ()] = {"": None}
            continue
        key = (c.microbatch, (*(("S",) if c.scaled else ()), *c.symbols))
        if c.network != networks.setdefault(c.microbatch, c.network):
            continue
        by_origin = totals.setdefault(key, {})
        known = by_origin.get(c.origin, Fraction(0))
        by_origin[c.origin] = None if known is None or c.weight is None else known + c.weight
    return _joined(
        [
            f"{_weight(_of_all(w), symbols)}g{number - first + 1}"
            for (number, symbols), w in totals.items()
        ]
    )


def _of_all(weights: Mapping[str, Fraction | None]) -> Fraction | None:
    """The weight of a loss of several terms: the one that all have, their sum where they differ."""
    found = set(weights.values())
    if None in found or len(found) == 1:
        return None if None in found else found.pop()
    return sum(filter(None, weights.values()), Fraction(0))


# A factor that is a name, an attribute, an item of these, or a call without arguments.
_PLAIN = re.compile(r"[*/.] ?[\w.\[\]'\"]+(\(\))?")


def _joined(parts: list[str]) -> str:
    if len(parts) > 10:
        parts = [*parts[:4], "…", *parts[-2:]]
    return " + ".join(parts)


def _weight(weight: Fraction | None, symbols: tuple[str, ...]) -> str:
    # "1 / n g1", where nothing else stands before the stroke.
    bare = weight == 1 and not (symbols and symbols[0].startswith("/"))
    shown = [] if bare else ["?" if weight is None else _number(weight)]
    shown += [s.removeprefix("* ").removeprefix(". ") for s in symbols]
    return " ".join(shown) + " " if shown else ""


def _number(weight: Fraction) -> str:
    return str(weight) if weight.denominator < 10_000 else f"{float(weight):.3g}"


def _flag(key: str, choice: str) -> str:
    if key.endswith(" is None"):
        return key.removesuffix(" is None") + (" is None" if choice == "true" else " is given")
    compared = _COMPARED.fullmatch(key)
    if choice == "false" and compared is not None:
        left, operator, right = compared.groups()
        return f"{left} {_NEGATED[operator]} {right}"
    if choice in ("true", "false"):
        return (
            f"{key} is {choice}" if " " not in key else key if choice == "true" else f"not ({key})"
        )
    return f"{key} is another value" if choice == "…" else f"{key} is '{choice}'"


def _closes_the_window_before(event: t.Event) -> bool:
    """True for what merely follows the previous step."""
    return isinstance(event, t.Update | t.Schedule) or (
        isinstance(event, t.Clear) and not event.wiped
    )


def _telling(events: Iterable[t.Event]) -> Iterator[t.Event]:
    """The events that a timeline shows; logging is left out, and what repeats on one line is said once."""
    quiet = (t.Add, t.Reset, t.Read, t.Reduce, t.Accumulate, t.EngineCall, t.Report, t.Put)
    last: tuple[object, int, type] | None = None
    for event in events:
        if isinstance(event, quiet) or (isinstance(event, t.Forward) and event.armed is None):
            continue
        here = (event.node.at, event.microbatch, type(event))
        if here == last:
            continue
        last = here
        yield event


def describe(event: t.Event, first: int = 1) -> str:
    """An event in words; micro-batch `first` is called 1."""
    match event:
        case t.Forward(armed=armed):
            note = (
                "" if armed is None else (", DDP will reduce" if armed else ", DDP will not reduce")
            )
            return f"forward{note}"
        case t.Backward(contributions=contributions):
            return f"backward adds {combination(contributions, first) or 'nothing known'}"
        case t.Unscale():
            return "unscale"
        case t.Clip(pending=pending, scaled=scaled):
            what = combination(pending, first) or "nothing"
            return f"clip {what}{' while it is scaled' if scaled else ''}"
        case t.Rescale(reduced=reduced):
            return "gradients reduced over ranks" if reduced else "gradients rescaled"
        case t.Step(applied=contributions):
            return f"step applies {combination(contributions, first) or 'nothing'}"
        case t.Update():
            return "update the scale"
        case t.Clear(wiped=wiped):
            lost = combination(wiped, first)
            return f"clear, losing {lost}" if lost else "clear"
        case t.Schedule():
            return "schedule moves"
        case t.SyncFlag(on=on):
            return f"gradient sync {'on' if on else 'off' if on is False else 'switched'}"
        case t.NoSync(entered=entered):
            return "no_sync begins" if entered else "no_sync ends"
        case t.EpochEnd(pending=pending):
            left = combination(pending, first)
            return f"epoch ends, {left} left over" if left else "epoch ends"
        case t.Norm(held=held):
            return f"norm of {combination(held, first) or 'nothing'} is measured"
        case t.Average():
            return "average of the weights moves"
        case t.SkippedStep(guard=guard):
            return f"`{guard}` tells that the step was left out"
        case t.Skip(guard=guard, jump=jump):
            return f"`{guard}` leaves by {jump}"
        case _:
            return type(event).__name__.lower()
