"""Calls of einops: the same elements in another order, and sums and means over the axes that a pattern drops."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from accumlint.reading import ir as p
from accumlint.tracing.gradients.tensors import derived, mean_over, summed
from accumlint.tracing.values import Unknown, Value

if TYPE_CHECKING:
    from accumlint.tracing.interpreter import Machine

# A group counts as one axis.
_AXIS = re.compile(r"\([^)]*\)|\S+")


def call_einops(
    machine: Machine, path: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
) -> tuple[Value] | None:
    """What a function of einops makes of a tensor, in a tuple; None for any other call."""
    first = args[0] if args else None
    if not path.startswith("einops.") or not isinstance(first, Unknown):
        return None
    match path.rpartition(".")[2]:
        case "rearrange" | "repeat":
            return (first,)
        case "reduce":
            pattern = args[1] if len(args) > 1 else kwargs.get("pattern")
            how = args[2] if len(args) > 2 else kwargs.get("reduction")
            return (_reduced(machine, first, pattern, how, node),)
        case _:
            return None


def _reduced(machine: Machine, value: Unknown, pattern: Value, how: Value, node: p.Node) -> Value:
    if isinstance(pattern, str) and how in ("mean", "sum") and (value.tensor or value.loss):
        over = _dropped(pattern)
        if (
            how == "mean"
            and over
            and 0 not in over
            and value.networks
            and value.reduction == "none"
        ):
            # One number for each row: what follows decides how the loss is reduced.
            return replace(value, attributes={})
        return mean_over(value, over, node) if how == "mean" else summed(value, over, node)
    found = derived(f"{value.text}.{how}(…)", value, node=node)
    found.counted = value.counted
    found.lost = machine.tensors.hides(value, True)
    return found


def _dropped(pattern: str) -> list[Value] | None:
    """The axes that are left out on the right of a pattern; None where none is left."""
    before, _, after = pattern.partition("->")
    kept = _AXIS.findall(after)
    return [i for i, axis in enumerate(_AXIS.findall(before)) if axis not in kept] if kept else None
