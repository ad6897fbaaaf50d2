"""Observes updates of the current process: `with accumlint.watch(model, optimizer):`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from accumlint.common.observed import Observed
from accumlint.runtime import judging, reports
from accumlint.runtime.child.installation import install, start
from accumlint.runtime.child.recorder import Recorder, WatchOptions
from accumlint.runtime.logs import Log, to_standard_error
from accumlint.runtime.records import Event, Record, Spot, trained

# So many later windows are kept, which show what is usual.
_KEPT = 12


class Defects(Exception):
    """The findings of a strict watch, a line each."""


class Watching:
    """A context that observes torch until enough updates were seen, and reports each finding once.

    With `every`, it observes one more window of each so many updates. `findings` are lines such as "train.py:12: ACC102
    loss-not-divided: …". Only the rank of this process is seen, so questions about ranks are left to `accumlint run`.
    Internal errors are logged and never raised; a `strict` watch raises its findings when the context ends.
    """

    def __init__(
        self,
        objects: tuple[Any, ...],
        updates: int,
        every: int | None,
        strict: bool,
        log: Any,
    ) -> None:
        self._objects = objects
        self._updates = _whole("updates", updates)
        self._every = 0 if every is None else _whole("every", every)
        self._strict = strict
        self._log = Log(log)
        self._recorder: Recorder | None = None
        self._pid = os.getpid()
        self.findings: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        self._seen: set[tuple[Observed, Spot]] = set()
        # The events of the first updates, and of each later window.
        self._chunks: list[list[Event]] = []
        self._optimizers: list[Event] = []
        self._steps: Counter[int] = Counter()
        # The backwards that were judged, and the updates that were made.
        self._since = self._made = 0

    def __enter__(self) -> Watching:
        self._safely(self._begin)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        recorder = self._recorder
        if recorder is not None:
            self._every = 0
            self._safely(lambda: recorder.finish("ended"))
            self._safely(recorder.release)
        if self._strict and self.findings and error is None:
            raise Defects("\n".join(self.findings))

    def _begin(self) -> None:
        self._recorder = start(WatchOptions("", windows=self._updates, stop=False))
        self._recorder.done = lambda: self._safely(self._watched)
        for one in self._objects:
            if isinstance(one, torch.optim.Optimizer):
                self._recorder.number(one)
            elif isinstance(one, torch.nn.Module):
                wrapped = [m for m in one.modules() if isinstance(m, DistributedDataParallel)]
                self._recorder.ranks["ddp"] = len(wrapped)

    def _watched(self) -> None:
        """Judges what was watched, then rests until the next window."""
        recorder = self._recorder
        if recorder is None:
            return
        recorder.rest()
        # A later window that the end of the context interrupts has no step.
        if not self._chunks or recorder.updates:
            self._judge(recorder)
        if self._every:
            recorder.rested = self._count
        if self._every == 1 and recorder.updates:
            self._resume(recorder, max(recorder.updates, key=recorder.updates.__getitem__))

    def _judge(self, recorder: Recorder) -> None:
        events = recorder.unwritten
        self._optimizers += (event for event in events if event["kind"] == "optimizer")
        self._chunks.append([event for event in events if event["kind"] != "optimizer"])
        recorder.unwritten = []
        first, *later = self._chunks
        self._chunks = [first, *later[-_KEPT:]]
        record = Record(
            recorder.process(), (*self._optimizers, *(e for chunk in self._chunks for e in chunk))
        )
        judged = judging.judge(trained([record]), self._since)
        notes = () if self._since else judged.notes
        self._since = recorder.backwards
        new = [a for a in judged.answers if a.wrong and (a.observed, a.place) not in self._seen]
        self._seen.update((answer.observed, answer.place) for answer in new)
        found = tuple(reports.lines(new))
        self.notes += notes
        self.findings += found
        self._made += max(recorder.updates.values(), default=0)
        self._log.lines((*notes, *found), self.findings, self._made)

    def _count(self, optimizer: torch.optim.Optimizer) -> None:
        """Counts the steps of a rest, which ends one update before each so many."""
        self._steps[id(optimizer)] += 1
        recorder = self._recorder
        if recorder is None or self._steps[id(optimizer)] < self._every - 1:
            return
        if os.getpid() == self._pid:
            self._safely(lambda: self._resume(recorder, recorder.number(optimizer)))

    def _resume(self, recorder: Recorder, optimizer: int) -> None:
        """Watches the window that begins after a step of an optimizer, which is given by its number."""
        self._made += max(self._steps.values(), default=0)
        self._steps.clear()
        # Not again where it fails.
        recorder.rested = None
        install(recorder)
        recorder.again(optimizer)

    def _safely(self, act: Callable[[], object]) -> None:
        """Runs an action; internal errors must not stop the training."""
        try:
            act()
        except Exception as problem:  # noqa: BLE001 (the training goes on whatever happens in here)
            line = f"cannot watch any more: {type(problem).__name__}: {problem}"
            try:
                self._log.line(line)
            except Exception:  # noqa: BLE001 (the log may be what fails)
                to_standard_error(line)


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} wants a whole number of at least 1, not {value!r}")
    return value
