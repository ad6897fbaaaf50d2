"""Loops as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from accumlint.diagnostics.reporting.encoding import dumped
from accumlint.diagnostics.results.diagram import Loop, Step, story

_SCHEMA = 1


def timelines(loops: Sequence[Loop]) -> str:
    """A list with an object for each loop."""
    return dumped([_loop(loop) for loop in loops], indent=2)


def _loop(loop: Loop) -> dict[str, object]:
    timeline = loop.timeline
    return {
        "schema_version": _SCHEMA,
        "filename": loop.shown,
        "function": loop.name,
        "lines": loop.where,
        "setting": loop.setting,
        "condition": loop.condition,
        "path": loop.path,
        "paths": loop.paths,
        "partly_read": list(loop.partly),
        "findings": [asdict(found) for found in loop.found],
        "story": story(timeline),
        "window": timeline.size or None,
        "micro_batches": [
            {"number": m.first, "fate": m.fate, "ends_epoch": m.ends} for m in timeline.groups
        ],
        "events": [
            {
                "kind": call.kind,
                "lane": call.lane,
                "micro_batch": call.microbatch,
                "where": call.where,
                "told": call.description,
                "held": call.pending,
                "loses": list(call.loses),
                "codes": list(call.codes),
            }
            for call in timeline.calls
        ],
        "steps": [_step(step) for step in timeline.steps],
        "symbols": dict(timeline.symbols),
    }


def _step(step: Step) -> dict[str, object]:
    return {
        "number": step.number,
        "optimizer": step.optimizer,
        "where": step.where,
        "applies": step.gradient,
        "large_batch": step.reference,
        "compared": step.known,
        "differs": step.wrong,
        "shares": [
            {
                "micro_batch": share.microbatch,
                "applied": share.applied,
                "expected": share.expected,
            }
            for share in step.shares
        ],
    }
