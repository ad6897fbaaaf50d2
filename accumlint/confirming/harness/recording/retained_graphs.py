"""State that a loop retains between micro-batches: autograd graphs and running totals."""
# pyright: reportPrivateUsage=false

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
    """A tensor that a graph saved; it lives as long as the graph."""

    tensor: torch.Tensor
    microbatch: int


def unsaved(saved: _Saved) -> torch.Tensor:
    """The tensor for the backward."""
    return saved.tensor


class Graphs:
    """Counts micro-batches with a live graph, at `most`; the control `drops` forgets those of earlier micro-batches."""

    def __init__(self, current: Callable[[], int], drops: bool) -> None:
        self.current = current
        self.drops = drops
        self.most = 0
        self.saved: WeakSet[_Saved] = WeakSet()

    def save(self, tensor: torch.Tensor) -> _Saved:
        """Hook for a tensor that a graph saves, with its micro-batch."""
        # Without detach, a node's own result would keep the node alive.
        saved = _Saved(tensor.detach(), self.current())
        if self.drops:
            # Control "drop": forgets graphs of earlier micro-batches.
            for other in [s for s in self.saved if s.microbatch < saved.microbatch]:
                self.saved.discard(other)
        self.saved.add(saved)
        self.most = max(self.most, len({s.microbatch for s in self.saved}))
        return saved


def totals(
    wanted: Sequence[str], is_user_frame: Callable[[FrameType], bool]
) -> Iterator[dict[str, Any]]:
    """The values of running totals, read from the user's frames."""
    for name in wanted:
        value = _read(name, is_user_frame)
        if isinstance(value, torch.Tensor):
            # A tensor that collects losses is represented by its sum.
            yield {"name": name, "value": float(value.detach().sum()), "nodes": _nodes(value)}
        elif isinstance(value, int | float):
            yield {"name": name, "value": float(value), "nodes": 0}


def _read(name: str, is_user_frame: Callable[[FrameType], bool]) -> Any:
    frame = sys._getframe(1)
    first = name.split(".")[0].split("[")[0]
    while frame is not None:
        if is_user_frame(frame) and first in frame.f_locals:
            try:
                return eval(name, frame.f_globals, frame.f_locals)
            except Exception:  # noqa: BLE001 (the user's own code may raise anything; the total was not seen then)
                return None
        frame = frame.f_back
    return None


def _nodes(value: torch.Tensor, limit: int = 10_000) -> int:
    """The number of graph nodes that a value keeps alive."""
    seen: set[Any] = set()
    waiting = [value.grad_fn]
    while waiting and len(seen) < limit:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting.extend(n for n, _ in node.next_functions)
    return len(seen)
