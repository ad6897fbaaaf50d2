"""Records a step under test on the existing ranks; the caller may define the large batch's loss."""

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
    """A recorder whose `reference`, if any, computes the large batch's loss from the `batches` of a window."""

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

    def applied(self, params: list[torch.Tensor], param_ids: set[int]) -> dict[str, Any]:
        found = super().applied(params, param_ids)
        if self.reference is not None:
            found["reference"] = self._reference_gradient(params, param_ids)
        return found

    def _reference_gradient(self, params: list[torch.Tensor], param_ids: set[int]) -> list[float]:
        """The gradient of the large batch's loss, averaged over ranks, clipped as the window was."""
        assert self.reference is not None
        window = self.batches[self._first : self.data.current]
        self._first = self.data.current
        wanted = [p for p in params if id(p) in param_ids and p.requires_grad]
        buffers = [(b, b.clone()) for model in self.models for b in model.buffers()]
        try:
            with self.quiet(), torch.random.fork_rng(devices=[]), torch.enable_grad():
                loss = self.reference(window)
                found = dict(zip(map(id, wanted), grads_of(loss, wanted), strict=True))
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
        vector = [x for p in params if id(p) in param_ids for x in flat(found.get(id(p)), p)]
        if world_size() > 1:
            summed = torch.tensor(vector, dtype=torch.float64)
            dist.all_reduce(summed)
            vector = [x / world_size() for x in summed.tolist()]
        if threshold := self._threshold():
            norm = sum(x * x for x in vector) ** 0.5
            vector = [x * min(1.0, threshold / (norm + _EPSILON)) for x in vector]
        return vector

    def _threshold(self) -> float:
        """The clipping threshold of the window, 0 for none."""
        latest = itertools.takewhile(lambda e: e["kind"] != "step", reversed(self.notes.events))
        clips = (float(event["threshold"]) for event in latest if event["kind"] == "clip")
        return max(clips, default=0.0)

    def gather_events(self) -> list[tuple[list[dict[str, Any]], int]]:
        """The events of every rank, and the number of its losses."""
        return gathered((self.notes.events, self.notes.losses))
