"""A long run on a terminal says how far it is, and nothing else ever hears of it."""

from __future__ import annotations

import io
from itertools import count

from accumlint.common.progress import Progress


def told(visible: bool, seconds_a_file: float, files: int = 4) -> str:
    stream = io.StringIO()
    ticks = count()
    progress = Progress(stream, visible, clock=lambda: next(ticks) * seconds_a_file)
    assert list(progress.through(range(files))) == list(range(files))
    return stream.getvalue()


def test_a_long_run_is_counted_and_the_line_is_cleared() -> None:
    written = told(visible=True, seconds_a_file=1.5)
    assert "\r3 of 4 files" in written
    assert written.endswith("\r\x1b[K")


def test_a_short_run_says_nothing() -> None:
    assert told(visible=True, seconds_a_file=0.01) == ""


def test_nothing_is_said_where_nobody_looks() -> None:
    assert told(visible=False, seconds_a_file=10) == ""


def test_the_line_is_cleared_before_something_else_is_written() -> None:
    stream = io.StringIO()
    ticks = count()
    progress = Progress(stream, True, clock=lambda: next(ticks) * 2.0)
    items = progress.through("ab")
    next(items)
    progress.clear()
    stream.write("a finding\n")
    assert stream.getvalue() == "\r1 of 2 files\r\x1b[Ka finding\n"
