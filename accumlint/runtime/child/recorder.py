"""Keeps the events of a process and writes them, until enough updates were seen."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# torch's own annotations are partial.

from __future__ import annotations

import json
import os
import sys
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

from accumlint.runtime.child.frames import Where, where
from accumlint.runtime.child.patching import Patches
from accumlint.runtime.child.samples import Sample, capturing

Event = dict[str, Any]
# As many events are kept where no step comes to have them written.
_MOST_UNWRITTEN = 4096


@dataclass(frozen=True)
class Asked:
    """What to watch: `windows` updates, and the end of an epoch that is at most `patience` backwards away.

    `elements` is how many numbers of how many `parameters` of an optimizer are noted. Where the process is to `stop`,
    it ends as soon as all was seen.
    """

    folder: str
    windows: int = 6
    patience: int = 256
    parameters: int = 8
    elements: int = 64
    stop: bool = True


class Recorder:
    """The events of one process. What observes torch calls `note`; nothing here ever raises into the user's code."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.active = True
        self.events: list[Event] = []
        self.optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self.samples: list[Sample] = []
        # The backward that runs, and what observers do themselves.
        self.backward: Event | None = None
        self.busy = 0
        self.backwards = 0
        self.updates: dict[int, int] = {}
        # What forwards since the last backward found out about ranks.
        self.forwards: list[bool] = []
        self.ranks: Event = {}
        self.loaders: dict[int, tuple[int, int]] = {}
        # The data that was last drawn from, and the backwards since each began.
        self.source = 0
        self.drawn: dict[int, int] = {}
        self._after_epoch = 0
        self._pid = os.getpid()
        self._written = False
        self._file = os.path.join(asked.folder, f"{self._pid}.jsonl") if asked.folder else ""
        self.kept: list[Event] = []
        self.patches = Patches()
        # Hears of the end.
        self.done: Callable[[], None] | None = None

    @property
    def watches(self) -> bool:
        """Whether this is the process that was begun in, and there is more to see."""
        mine = self.active and not self.busy and os.getpid() == self._pid
        return mine and not capturing()

    @contextmanager
    def aside(self) -> Generator[None]:
        """What is done meanwhile is the observers' own, or a part of what is noted already."""
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1

    def note(self, kind: str, place: Where | None = None, **told: Any) -> Event:
        """Adds an event that happens now, at a place in the user's code."""
        at = place or where()
        event: Event = {
            "kind": kind,
            "file": at.file,
            "line": at.line,
            "key": at.key,
            "through": at.through,
            **told,
        }
        self.events.append(event)
        if len(self.events) > _MOST_UNWRITTEN:
            self.write()
        return event

    def number(self, optimizer: torch.optim.Optimizer) -> int:
        """The number of an optimizer, which is known from now on."""
        for number, known in enumerate(self.optimizers):
            if known() is optimizer:
                return number
        self.optimizers.append(weakref.ref(optimizer))
        self.samples.append(Sample(optimizer, self.asked.parameters, self.asked.elements))
        kind = type(optimizer)
        self.note(
            "optimizer", number=len(self.samples) - 1, name=f"{kind.__module__}.{kind.__qualname__}"
        )
        return len(self.samples) - 1

    def sampled(self) -> Iterator[tuple[int, Sample]]:
        """The samples of the optimizers that are alive, with their numbers."""
        for number, optimizer in enumerate(self.optimizers):
            alive = optimizer()
            if alive is not None:
                self.samples[number].settle(alive)
                yield number, self.samples[number]

    def release(self) -> None:
        """Leaves torch as it was."""
        self.active = False
        self.patches.undo()
        for sample in self.samples:
            sample.release()

    def stepped(self, number: int) -> None:
        """An optimizer has stepped: writes what was noted, and ends where all was seen."""
        self.updates[number] = self.updates.get(number, 0) + 1
        if self._after_epoch:
            self._after_epoch += 1
        self.write()
        if self.backwards and self._has_seen_all():
            self.finish("stopped")

    def epoch(self, loader: int, length: int, backwards: int) -> None:
        """A loader begins anew after so many backwards since it last did."""
        if backwards and not self._after_epoch:
            self._after_epoch = 1
        self.loaders[loader] = (self.backwards, length)

    def finish(self, how: str) -> None:
        """Says how it came to an end, and ends the process where that was asked for."""
        if not self.active or os.getpid() != self._pid:
            return
        self.events.append(
            {"kind": "end", "how": how, "file": "", "line": 0, "key": "", "through": ()}
        )
        self.write()
        self.active = False
        for sample in self.samples:
            sample.release()
        if self.done is not None:
            self.done()
        if how == "stopped" and self.asked.stop:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def _has_seen_all(self) -> bool:
        if max(self.updates.values()) < self.asked.windows:
            return False
        if self._after_epoch:
            # Two windows of the next epoch.
            return self._after_epoch > 3 * len(self.updates)
        ends = [
            length - (self.backwards - begun) for begun, length in self.loaders.values() if length
        ]
        coming = [end for end in ends if -8 <= end <= self.asked.patience]
        return not coming or self.backwards > self.asked.patience

    def write(self) -> None:
        """Writes the events up to now: whatever becomes of the process, they are known."""
        with self.aside():
            lines = [_plain(event) for event in self.events]
            self.events.clear()
            if not self._file:
                self.kept += lines
                return
            with open(self._file, "a", encoding="utf-8") as file:
                if not self._written:
                    file.write(json.dumps(self.process()) + "\n")
                    self._written = True
                file.writelines(json.dumps(line) + "\n" for line in lines)

    def process(self) -> Event:
        """What this process is among the ranks."""
        together = distributed.is_available() and distributed.is_initialized()
        rank = distributed.get_rank() if together else int(os.environ.get("RANK", "0"))
        world = distributed.get_world_size() if together else 1
        return {
            "kind": "process", "rank": rank, "world": world, "group": together, "torch": torch.__version__,
            "command": sys.argv[:1], "launched": int(os.environ.get("WORLD_SIZE", "1")),
        }  # fmt: skip


def _plain(value: Any) -> Any:
    """A value as JSON can hold it; tensors were left where they are until now."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
