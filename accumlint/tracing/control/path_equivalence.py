"""Tells runs apart by what happened in them, so that a path on which nothing differs is not worked out again."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields
from functools import cache
from typing import cast

from accumlint.tracing import trace as t

# What events hold of objects that are not compared by what they hold themselves.
_HELD = {t.TrainingObject, t.Contribution}


def told(run: t.Run) -> Hashable:
    """All that rules can see of a run, equal for two runs in which the same happened."""
    known: dict[int, Hashable] = {}

    def plain(value: object) -> Hashable:
        kind = type(value)
        if kind in _HELD:
            if id(value) not in known:
                known[id(value)] = parts(value)
            return known[id(value)]
        if isinstance(value, t.Event):
            # Events hold earlier ones, which are told by themselves.
            return value.index
        if kind is tuple:
            return tuple(map(plain, cast("tuple[object, ...]", value)))
        return cast("Hashable", value)

    def parts(value: object) -> Hashable:
        return type(value), *(plain(getattr(value, name)) for name in _names(type(value)))

    ends = run.steps, run.length, run.asked, run.stopped, run.literal, run.guessed
    return tuple(map(parts, run.events)), run.unread, ends, run.barred


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))
