"""Observes the first updates of the current process: `with accumlint.watch(model, optimizer):`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from accumlint.runtime import judging, reports
from accumlint.runtime.child.installation import start
from accumlint.runtime.child.recorder import Recorder, WatchOptions
from accumlint.runtime.records import Record, trained


class Defects(Exception):
    """The findings of a strict watch, a line each."""


class Watching:
    """A context that observes torch until enough updates were seen, and reports the findings once.

    `findings` are lines such as "train.py:12: ACC102 loss-not-divided: …", available at the end. Only the rank of this
    process is seen, so questions about ranks are left to `accumlint run`. Internal errors are logged and never raised;
    a `strict` watch raises its findings when the context ends.
    """

    def __init__(
        self,
        objects: tuple[Any, ...],
        updates: int,
        strict: bool,
        log: Callable[[str], object] | None,
    ) -> None:
        self._objects = objects
        self._updates = updates
        self._strict = strict
        self._log: Callable[[str], object] = log or _print
        self._recorder: Recorder | None = None
        self.findings: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        self._judged = False

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
            self._safely(lambda: recorder.finish("ended"))
            self._safely(recorder.release)
        if self._strict and self.findings and error is None:
            raise Defects("\n".join(self.findings))

    def _begin(self) -> None:
        self._recorder = start(WatchOptions("", windows=self._updates, stop=False))
        self._recorder.done = lambda: self._safely(self._judge)
        for one in self._objects:
            if isinstance(one, torch.optim.Optimizer):
                self._recorder.number(one)
            elif isinstance(one, torch.nn.Module):
                wrapped = [m for m in one.modules() if isinstance(m, DistributedDataParallel)]
                self._recorder.ranks["ddp"] = len(wrapped)

    def _judge(self) -> None:
        recorder = self._recorder
        if recorder is None or self._judged:
            return
        self._judged = True
        record = Record(recorder.process(), tuple(recorder.unwritten))
        judged = judging.judge(trained([record]))
        self.notes = judged.notes
        self.findings = tuple(reports.lines(judged.answers))
        for line in (*self.notes, *self.findings):
            self._log(line)

    def _safely(self, act: Callable[[], object]) -> None:
        """Runs an action; internal errors must not stop the training."""
        try:
            act()
        except Exception as problem:  # noqa: BLE001 (the training goes on whatever happens in here)
            self._log(f"cannot watch any more: {type(problem).__name__}: {problem}")


def _print(line: str) -> None:
    print(f"accumlint: {line}", file=sys.stderr)
