"""Records the events of a process and writes them, until enough updates were seen."""

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

from accumlint.runtime.child.frames import Location, user_location
from accumlint.runtime.child.patching import Patches
from accumlint.runtime.child.samples import Sample, capturing

Event = dict[str, Any]
# The number of events after which they are written without a step.
_MOST_UNWRITTEN = 4096


@dataclass(frozen=True)
class WatchOptions:
    """What to observe: `windows` updates, and the end of an epoch that is at most `patience` backwards away.

    `elements` numbers of `parameters` parameters per optimizer are sampled. With `stop`, the process ends when
    everything was seen.
    """

    folder: str
    windows: int = 6
    patience: int = 256
    parameters: int = 8
    elements: int = 64
    stop: bool = True


class Recorder:
    """The events of one process; observers call `note`. It never raises into the user's code."""

    def __init__(self, options: WatchOptions) -> None:
        self.options = options
        self.active = True
        self.events: list[Event] = []
        self.optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self.samples: list[Sample] = []
        # The active backward, and the depth of the observers' own work.
        self.backward: Event | None = None
        self.busy = 0
        self.backwards = 0
        self.updates: dict[int, int] = {}
        # Synchronization flags of the forwards since the last backward.
        self.forwards: list[bool] = []
        self.ranks: Event = {}
        self.loaders: dict[int, tuple[int, int]] = {}
        # The dataset of the last fetch, and the backwards since each dataset's epoch began.
        self.source = 0
        self.drawn: dict[int, int] = {}
        # The batches that were fetched from each dataset, and the dataset of the last backward.
        self.fetched: dict[int, int] = {}
        self.trained = 0
        self._after_epoch = 0
        self._pid = os.getpid()
        self._written = False
        self._file = os.path.join(options.folder, f"{self._pid}.jsonl") if options.folder else ""
        self.unwritten: list[Event] = []
        self.patches = Patches()
        # Called at the end.
        self.done: Callable[[], None] | None = None
        # What follows steps, and stays during a rest: torch's hooks cannot be removed while they run.
        self.step_hooks: list[Callable[[], None]] = []
        self.rested: Callable[[torch.optim.Optimizer], None] | None = None
        # The optimizer of a later window.
        self._awaited: int | None = None

    @property
    def watches(self) -> bool:
        """Whether this is the observed process, and recording is active."""
        is_this_process = self.active and not self.busy and os.getpid() == self._pid
        return is_this_process and not capturing()

    @contextmanager
    def paused(self) -> Generator[None]:
        """Suspends observation for the observers' own work."""
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1

    def note(self, kind: str, place: Location | None = None, **values: Any) -> Event:
        """Records an event at a place in the user's code."""
        at = place or user_location()
        event: Event = {
            "kind": kind,
            "file": at.file,
            "line": at.line,
            "key": at.key,
            "through": at.through,
            **values,
        }
        self.events.append(event)
        if len(self.events) > _MOST_UNWRITTEN:
            self.write()
        return event

    def number(self, optimizer: torch.optim.Optimizer) -> int:
        """The number of an optimizer, which is registered on first use."""
        for number, known in enumerate(self.optimizers):
            if known() is optimizer:
                return number
        self.optimizers.append(weakref.ref(optimizer))
        self.samples.append(Sample(optimizer, self.options.parameters, self.options.elements))
        kind = type(optimizer)
        self.note(
            "optimizer", number=len(self.samples) - 1, name=f"{kind.__module__}.{kind.__qualname__}"
        )
        return len(self.samples) - 1

    def sampled(self) -> Iterator[tuple[int, Sample]]:
        """The samples of live optimizers, with their numbers."""
        for number, optimizer in enumerate(self.optimizers):
            alive = optimizer()
            if alive is not None:
                if self.active:
                    self.samples[number].settle(alive)
                yield number, self.samples[number]

    def touching(self, parameters: set[int]) -> Iterator[tuple[int, Sample]]:
        """The samples that contain one of some parameters, which are given by `id`."""
        for number, sample in self.sampled():
            if any(id(p) in parameters for p in sample.parameters):
                yield number, sample

    def sample(self, event: Event) -> Sample | None:
        """The sample of the optimizer of an event, None where that has gone."""
        return dict(self.sampled()).get(event["optimizer"])

    def rest(self) -> None:
        """Restores torch, but for the hooks that follow steps."""
        self.active = False
        self.patches.undo()
        for sample in self.samples:
            sample.release()

    def release(self) -> None:
        """Restores torch."""
        self.rest()
        for remove in self.step_hooks:
            remove()
        self.step_hooks.clear()

    def again(self, optimizer: int) -> None:
        """Records one more window, after a step of the optimizer and with the observers installed again."""
        self.active = True
        self._awaited = optimizer
        self._after_epoch = 0
        self.updates.clear()
        self.forwards.clear()
        # Hooks the parameters again.
        list(self.sampled())

    def stepped(self, number: int) -> None:
        """Called after a step: writes the events, and ends the process when everything was seen."""
        self.updates[number] = self.updates.get(number, 0) + 1
        if self._after_epoch:
            self._after_epoch += 1
        self.write()
        if self.backwards and self._has_seen_all():
            self.finish("stopped")

    def epoch(self, loader: int, length: int, backwards: int) -> None:
        """Called when a loader starts an epoch, with the backwards since the previous one."""
        if backwards and not self._after_epoch:
            self._after_epoch = 1
        self.loaders[loader] = (self.backwards, length)

    def finish(self, how: str) -> None:
        """Records the end of observation, and ends the process if requested."""
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
        if how == "stopped" and self.options.stop:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def _has_seen_all(self) -> bool:
        if self._awaited is not None:
            return self._awaited in self.updates or max(self.updates.values()) > 1
        if max(self.updates.values()) < self.options.windows:
            return False
        if self._after_epoch:
            # Two windows of the next epoch.
            return self._after_epoch > 3 * len(self.updates)
        ends = [
            length - (self.backwards - begun) for begun, length in self.loaders.values() if length
        ]
        coming = [end for end in ends if -8 <= end <= self.options.patience]
        return not coming or self.backwards > self.options.patience

    def write(self) -> None:
        """Writes the events so far, so that they survive a crash."""
        with self.paused():
            lines = [_plain(event) for event in self.events]
            self.events.clear()
            if not self._file:
                self.unwritten += lines
                return
            with open(self._file, "a", encoding="utf-8") as file:
                if not self._written:
                    file.write(json.dumps(self.process()) + "\n")
                    self._written = True
                file.writelines(json.dumps(line) + "\n" for line in lines)

    def process(self) -> Event:
        """The rank and environment of this process."""
        in_group = distributed.is_available() and distributed.is_initialized()
        rank = distributed.get_rank() if in_group else int(os.environ.get("RANK", "0"))
        world = distributed.get_world_size() if in_group else 1
        return {
            "kind": "process", "rank": rank, "world": world, "group": in_group, "torch": torch.__version__,
            "command": sys.argv[:1], "launched": int(os.environ.get("WORLD_SIZE", "1")),
        }  # fmt: skip


def _plain(value: Any) -> Any:
    """A value for JSON; tensors are copied from the device only here."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
