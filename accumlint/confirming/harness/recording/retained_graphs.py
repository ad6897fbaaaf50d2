"""What a loop holds on to from one micro-batch to the next: graphs, and running totals."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportPrivateUsage=false
# torch's own annotations are partial.

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any
from weakref import WeakSet

import torch


@dataclass(eq=False)
class _Saved:
    """A tensor that a graph keeps; it is gone when the graph is."""

    tensor: torch.Tensor
    microbatch: int


def unsaved(saved: _Saved) -> torch.Tensor:
    """The tensor that a graph gets back."""
    return saved.tensor


class Graphs:
    """The graphs that are there at once, by what they keep: `most` of as many micro-batches were.

    `drops` lets go what earlier micro-batches have left: the control.
    """

    def __init__(self, current: Callable[[], int], drops: bool) -> None:
        self.current = current
        self.drops = drops
        self.most = 0
        self.saved: WeakSet[_Saved] = WeakSet()

    def save(self, tensor: torch.Tensor) -> _Saved:
        """What a graph keeps for its backward, by the micro-batch that it belongs to."""
        # A node's own result would keep the node.
        saved = _Saved(tensor.detach(), self.current())
        if self.drops:
            # The control: what earlier micro-batches have left is let go.
            for other in [s for s in self.saved if s.microbatch < saved.microbatch]:
                self.saved.discard(other)
        self.saved.add(saved)
        self.most = max(self.most, len({s.microbatch for s in self.saved}))
        return saved


def totals(wanted: Sequence[str], is_own: Callable[[FrameType], bool]) -> Iterator[dict[str, Any]]:
    """The running totals of these names, read in the user's frames."""
    for name in wanted:
        value = _read(name, is_own)
        if isinstance(value, torch.Tensor):
            # A tensor that losses are put into is told by its sum.
            yield {"name": name, "value": float(value.detach().sum()), "nodes": _nodes(value)}
        elif isinstance(value, int | float):
            yield {"name": name, "value": float(value), "nodes": 0}


def _read(name: str, is_own: Callable[[FrameType], bool]) -> Any:
    frame = sys._getframe(1)
    first = name.split(".")[0].split("[")[0]
    while frame is not None:
        if is_own(frame) and first in frame.f_locals:
            try:
                return eval(name, frame.f_globals, frame.f_locals)
            except Exception:  # noqa: BLE001 (the user's own code may raise anything; the total was not seen then)
                return None
        frame = frame.f_back
    return None


def _nodes(value: torch.Tensor, limit: int = 10_000) -> int:
    """How many nodes of the autograd graph a value keeps alive."""
    seen: set[Any] = set()
    waiting = [value.grad_fn]
    while waiting and len(seen) < limit:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting.extend(n for n, _ in node.next_functions)
    return len(seen)
