"""Reads the records of a run's processes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from accumlint.common.frozen import frozen

Event: TypeAlias = Mapping[str, Any]
Vector: TypeAlias = "list[float]"
# A file and a line of the user's code.
Spot: TypeAlias = "tuple[str, int]"


@frozen
class Record:
    """The events of one process, in order."""

    process: Event
    events: tuple[Event, ...]

    @property
    def rank(self) -> int:
        return int(self.process["rank"])

    @property
    def world(self) -> int:
        return int(self.process["world"])

    @cached_property
    def backwards(self) -> Mapping[int, Event]:
        """The backward passes by number."""
        return {event["number"]: event for event in self.of("backward")}

    @property
    def ended(self) -> str:
        """How the observation ended: "stopped", "ended", or "" for an interrupted process."""
        return next((event["how"] for event in self.of("end")), "")

    def of(self, kind: str) -> Iterator[Event]:
        """The events of one kind."""
        return (event for event in self.events if event["kind"] == kind)


def read(folder: Path) -> list[Record]:
    """The records of the processes that trained, by rank."""
    found = [record for file in sorted(folder.glob("*.jsonl")) if (record := _of_file(file))]
    return trained(found)


def trained(records: Iterable[Record]) -> list[Record]:
    """The records that contain a backward or a step, by rank."""
    kept = [
        record
        for record in records
        if any(event["kind"] in ("backward", "step") for event in record.events)
    ]
    return sorted(kept, key=lambda record: record.rank)


def _of_file(file: Path) -> Record | None:
    events: list[Event] = []
    # A killed process may have an incomplete last line.
    with contextlib.suppress(ValueError):
        events += map(json.loads, file.read_text(encoding="utf-8").splitlines())
    if not events or events[0].get("kind") != "process":
        return None
    return Record(events[0], tuple(events[1:]))


def spot(event: Event) -> Spot:
    """The place of an event."""
    return event["file"], int(event["line"])
