"""Calls that go up and down do not take and give back memory all the time."""

from __future__ import annotations

import pytest

from accumlint.common.stack import with_room

resource = pytest.importorskip("resource", reason="only Unix counts the pages that are touched")


def _down(calls: int) -> int:
    return 1 + _down(calls - 1) if calls else 0


def _up_and_down(times: int) -> int:
    """Goes through more than a chunk of the stack so many times; the pages that were touched for it."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        _down(400)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_a_call_gives_what_it_gives_and_raises_what_it_raises():
    assert with_room(_down, 30) == 30
    assert with_room(_down, calls=30) == 30
    with pytest.raises(ZeroDivisionError):
        with_room(lambda: 1 // 0)


def test_the_stack_is_touched_once_however_often_calls_go_up_and_down():
    assert with_room(_up_and_down, 1000) < 1000
