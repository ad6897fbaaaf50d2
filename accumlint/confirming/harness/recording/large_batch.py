"""Records a step under test, on the ranks that there are, with the large batch's loss where it is given."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# torch's own annotations are partial.

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from accumlint.confirming.harness.fakes.loss_functions import grads_of
from accumlint.confirming.harness.process_group import gathered, world_size
from accumlint.confirming.harness.recording.contributions import flat
from accumlint.confirming.harness.recording.notes import Feed, Settings
from accumlint.confirming.harness.recording.recorder import Recorder

_EPSILON = 1e-6


class LargeBatch(Recorder):
    """Records a step; `reference`, where given, makes the large batch's loss from the `batches` of a window."""

    def __init__(
        self,
        data: Feed,
        settings: Settings,
        batches: Sequence[Any],
        reference: Callable[[Sequence[Any]], Any] | None,
    ) -> None:
        super().__init__(data, settings)
        self.batches = batches
        self.reference = reference
        self._first = 0

    def applied(self, params: list[torch.Tensor], owned: set[int]) -> dict[str, Any]:
        found = super().applied(params, owned)
        if self.reference is not None:
            found["due"] = self._due(params, owned)
        return found

    def _due(self, params: list[torch.Tensor], owned: set[int]) -> list[float]:
        """The gradient of the large batch's loss, averaged over ranks, clipped where the window was."""
        assert self.reference is not None
        window = self.batches[self._first : self.data.current]
        self._first = self.data.current
        wanted = [p for p in params if id(p) in owned and p.requires_grad]
        buffers = [(b, b.clone()) for model in self.models for b in model.buffers()]
        try:
            with self.quiet(), torch.random.fork_rng(devices=[]), torch.enable_grad():
                loss = self.reference(window)
                found = dict(zip(map(id, wanted), grads_of(loss, wanted), strict=True))
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
        vector = [x for p in params if id(p) in owned for x in flat(found.get(id(p)), p)]
        if world_size() > 1:
            everywhere = torch.tensor(vector, dtype=torch.float64)
            dist.all_reduce(everywhere)
            vector = [x / world_size() for x in everywhere.tolist()]
        if threshold := self._threshold():
            norm = sum(x * x for x in vector) ** 0.5
            vector = [x * min(1.0, threshold / (norm + _EPSILON)) for x in vector]
        return vector

    def _threshold(self) -> float:
        """What the window was clipped at, 0 for nothing."""
        latest = itertools.takewhile(lambda e: e["kind"] != "step", reversed(self.notes.events))
        clips = (float(event["threshold"]) for event in latest if event["kind"] == "clip")
        return max(clips, default=0.0)

    def everywhere(self) -> list[tuple[list[dict[str, Any]], int]]:
        """The events of every rank, and how many losses it has seen."""
        return gathered((self.notes.events, self.notes.losses))
