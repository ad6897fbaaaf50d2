"""Loops as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from accumlint.reporting.encoding import dumped
from accumlint.results.diagram import Loop, Step, story

_SCHEMA = 1


def scores(loops: Sequence[Loop]) -> str:
    """A list with an object for each loop."""
    return dumped([_loop(loop) for loop in loops], indent=2)


def _loop(loop: Loop) -> dict[str, object]:
    score = loop.score
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
        "story": story(score),
        "window": score.size or None,
        "micro_batches": [
            {"number": m.first, "fate": m.fate, "ends_epoch": m.ends} for m in score.measures
        ],
        "events": [
            {
                "kind": beat.kind,
                "lane": beat.lane,
                "micro_batch": beat.microbatch,
                "where": beat.where,
                "told": beat.told,
                "held": beat.held,
                "loses": list(beat.loses),
                "codes": list(beat.codes),
            }
            for beat in score.beats
        ],
        "steps": [_step(step) for step in score.steps],
        "symbols": dict(score.symbols),
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
