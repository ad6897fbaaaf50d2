"""Observes DataLoaders: where epochs begin."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from accumlint.runtime.child.recorder import Recorder


def observe(recorder: Recorder) -> None:
    """Records the beginning of epochs, identified by the dataset: some scripts create a loader for each epoch."""
    begin, fetch = DataLoader.__iter__, _BaseDataLoaderIter.__next__

    @functools.wraps(begin)
    def beginning(self: Any) -> Any:
        # Without gradients, the data is used for evaluation.
        if recorder.watches and torch.is_grad_enabled():
            data = id(self.dataset)
            try:
                length = len(self)
            except (TypeError, NotImplementedError):
                length = 0
            since = recorder.drawn.pop(data, 0)
            recorder.note("epoch", loader=data, length=length, backwards=since)
            recorder.epoch(data, length, since)
        return begin(self)

    @functools.wraps(fetch)
    def fetching(self: Any) -> Any:
        recorder.source = id(self._dataset)
        batch = fetch(self)
        if recorder.watches and torch.is_grad_enabled():
            recorder.fetched[recorder.source] = recorder.fetched.get(recorder.source, 0) + 1
        return batch

    recorder.patches.put(DataLoader, "__iter__", beginning)
    recorder.patches.put(_BaseDataLoaderIter, "__next__", fetching)
