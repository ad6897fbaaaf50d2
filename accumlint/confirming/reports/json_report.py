"""The report of `confirm` as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from accumlint.confirming.finding_verdicts import cases
from accumlint.confirming.result import Confirmation, Control, Moment, Pass, Raised, Total, Update


def record(confirmations: Sequence[Confirmation], unprotected: Sequence[str] = ()) -> str:
    """One list, sorted by place, code and arm; `unprotected` lists missing protections, infinite figures are null."""
    pairs = ((case.found, case.fixed) for case in cases(confirmations))
    found = [{**_finding(one), "unprotected": unprotected} for pair in pairs for one in pair if one]
    return json.dumps(found, indent=2, allow_nan=False)


def _finding(one: Confirmation) -> dict[str, object]:
    return {
        "filename": one.file,
        "code": one.code,
        "name": one.name,
        "message": one.message,
        "location": {"row": one.line, "column": one.column},
        "arm": one.arm,
        "claim": one.claim,
        "verdict": one.verdict.value,
        "reason": one.reason,
        "measured": {name: _finite(value) for name, value in one.measured.items()},
        "control": one.control and _figures(one.control),
        "fakes": one.fakes,
        "also": one.also,
        "setup": one.setup or None,
        "advice": one.advice or None,
        "passes": [_pass(done) for done in one.passes],
    }


def _pass(done: Pass) -> dict[str, object]:
    return {
        "regime": done.regime.value,
        "steps": done.steps,
        "ranks": done.ranks,
        "reached": done.reached,
        "pressure": _finite(done.pressure),
        "raised": done.raised and _located(done.raised),
        "left": done.left,
        "scales": [_finite(scale) for scale in done.scales],
        "updates": [_update(update) for update in done.updates],
        "totals": [*map(_figures, done.totals)],
        "moments": [*map(_located, done.moments)],
    }


def _located(event: Raised | Moment) -> dict[str, object]:
    values = asdict(event)
    line = values.pop("line")
    return {**values, "row": line or None}


def _update(update: Update) -> dict[str, object]:
    weights = [_finite(weight) for weight in update.weights]
    return {**_figures(update), "weights": weights, "factor": update.factor or None}


def _figures(of: Update | Total | Control) -> dict[str, object]:
    return {name: _finite(value) for name, value in asdict(of).items()}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
