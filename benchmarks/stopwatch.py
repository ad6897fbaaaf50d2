"""Splits the time of checking one file into the stages of the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from time import process_time
from typing import ParamSpec, TypeVar
from unittest.mock import patch

from accumlint import reading, tracing
from accumlint.diagnostics import judge
from accumlint.files import source
from accumlint.reading.ir import Class, Function
from accumlint.reading.program import Program

STAGES: tuple[str, ...] = ("parse", "lower", "trace", "judge", "positions", "rest")

P = ParamSpec("P")
R = TypeVar("R")


class Stopwatch:
    """CPU seconds per stage. A stage that runs inside another one is taken out of it."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys(STAGES, 0.0)
        self._running = ["rest"]
        self._since = process_time()

    def lap(self) -> dict[str, float]:
        """The seconds of each stage since the last lap."""
        self._turn()
        spent, self.spent = self.spent, dict.fromkeys(STAGES, 0.0)
        return spent

    def timed(self, stage: str, function: Callable[P, R]) -> Callable[P, R]:
        """The function, with its time booked on a stage."""

        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            self._turn()
            self._running.append(stage)
            try:
                return function(*args, **kwargs)
            finally:
                self._turn()
                self._running.pop()

        return run

    def _turn(self) -> None:
        now = process_time()
        self.spent[self._running[-1]] += now - self._since
        self._since = now


@contextmanager
def pipeline() -> Generator[Stopwatch]:
    """A stopwatch on accumlint's own functions: they are the real ones, only timed."""
    watch = Stopwatch()
    with ExitStack() as patches:

        def put(stage: str, owner: object, name: str) -> None:
            timed = watch.timed(stage, getattr(owner, name))
            patches.enter_context(patch.object(owner, name, timed))

        put("parse", source, "parsed")
        put("lower", reading, "read")
        # Bodies are lowered when the tracer first asks for them.
        put("lower", Function.body, "func")
        put("lower", Class.body, "func")
        put("trace", tracing, "explore")
        put("judge", judge, "judge")
        put("positions", Program, "place")
        yield watch
