"""DataLoaders, observed: where epochs begin."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false
# torch's own annotations are partial.

from __future__ import annotations

import functools
from typing import Any

from torch.utils.data import DataLoader

from accumlint.runtime.child.recorder import Recorder


def observe(recorder: Recorder) -> None:
    """Has the beginnings of epochs noted, with the backwards since the loader last began."""
    original = DataLoader.__iter__

    @functools.wraps(original)
    def begin(self: Any) -> Any:
        if recorder.watches:
            before, _ = recorder.loaders.get(id(self), (recorder.backwards, 0))
            try:
                length = len(self)
            except (TypeError, NotImplementedError):
                length = 0
            since = recorder.backwards - before
            recorder.note("epoch", loader=id(self), length=length, backwards=since)
            recorder.epoch(id(self), length, since)
        return original(self)

    recorder.patches.put(DataLoader, "__iter__", begin)
