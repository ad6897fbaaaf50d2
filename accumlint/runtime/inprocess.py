"""Watches the first updates of a process from within: `with accumlint.watch(model, optimizer):`."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# torch's own annotations are partial.

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from accumlint.runtime import judging, reports
from accumlint.runtime.child.recorder import Asked, Recorder
from accumlint.runtime.child.torches import start
from accumlint.runtime.records import Record, trained


class Defects(Exception):
    """What a strict watch has found, a line each."""


class Watching:
    """A context in which torch is observed until enough updates were seen; what was found is told once.

    `findings` are lines such as "train.py:12: ACC102 loss-not-divided: …", known when the watching is over. Only the
    process's own rank is seen, so that questions about ranks are left to `accumlint run`. Whatever goes wrong in here
    is told and never raised, but for what a `strict` watch finds, which leaving the context raises.
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
        self._log: Callable[[str], object] = log or _told
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
        self._recorder = start(Asked("", windows=self._updates, stop=False))
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
        record = Record(recorder.process(), tuple(recorder.kept))
        judged = judging.judge(trained([record]))
        self.notes = judged.notes
        self.findings = tuple(reports.lines(judged.answers))
        for line in (*self.notes, *self.findings):
            self._log(line)

    def _safely(self, act: Callable[[], object]) -> None:
        """The user's training goes on whatever happens in here."""
        try:
            act()
        except Exception as problem:  # noqa: BLE001 (the training goes on whatever happens in here)
            self._log(f"cannot watch any more: {type(problem).__name__}: {problem}")


def _told(line: str) -> None:
    print(f"accumlint: {line}", file=sys.stderr)
