"""The JSON holds everything that was measured, and is documented."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import confirmed
import pytest
from helpers import ROOT
from passes import FAKES

from accumlint.confirming import result
from accumlint.confirming.reports.json_report import record


def refuse(constant: str) -> None:
    raise AssertionError(constant)


def read(*confirmations: result.Confirmation) -> Any:
    return json.loads(record(confirmations), parse_constant=refuse)


def test_a_finding_in_full() -> None:
    (one,) = read(replace(confirmed.RAISING, control=result.Control("It was mended", False, 0.5)))
    assert one["passes"][0].pop("moments")[2] == {"kind": "clip", "microbatch": 1, "row": None}
    assert one == {
        "filename": "train.py",
        "code": "ACC203",
        "name": "unscale-every-microbatch",
        "message": "",
        "location": {"row": 51, "column": 9},
        "arm": "found",
        "claim": "exception",
        "verdict": "confirmed",
        "reason": "The second micro-batch raises: gradients of this optimizer are already unscaled",
        "measured": {},
        "control": {"what": "It was mended", "detected": False, "value": 0.5},
        "fakes": list(FAKES),
        "also": [],
        "setup": None,
        "advice": None,
        "passes": [
            {
                "regime": "equal",
                "steps": 4,
                "ranks": 1,
                "reached": True,
                "pressure": 0.0,
                "raised": {
                    "kind": "RuntimeError",
                    "message": "unscale_() has already been called\non this one.",
                    "row": 51,
                },
                "left": [],
                "scales": [],
                "updates": [],
                "totals": [],
            }
        ],
        "unprotected": [],
    }


def test_what_nothing_kept_the_runs_from_stands_with_each_finding() -> None:
    told = json.loads(record([confirmed.RAISING, confirmed.HARMLESS], ["network: all of it"]))
    assert [one["unprotected"] for one in told] == [["network: all of it"]] * 2


def test_figures_that_are_not_finite_are_null() -> None:
    done = replace(
        confirmed.PASS,
        updates=(replace(confirmed.UPDATE, error=math.nan, weights=(math.inf, 1.0, 1.0, 1.0)),),
        scales=(math.inf,),
        totals=(result.Total("total", 1, 1, -math.inf, 0),),
    )
    (one,) = read(replace(confirmed.HARMLESS, measured={"error": math.nan}, passes=(done,)))
    (kept,) = one["passes"]
    assert one["measured"] == {"error": None}
    assert kept["updates"][0]["error"] is None
    assert kept["updates"][0]["weights"] == [None, 1.0, 1.0, 1.0]
    assert kept["scales"] == [None]
    assert kept["totals"][0]["value"] is None


def test_the_order_is_that_of_the_places() -> None:
    assert record(tuple(reversed(confirmed.ALL))) == record(confirmed.ALL)
    places = [(one["location"]["row"], one["code"], one["arm"]) for one in read(*confirmed.ALL)]
    assert places[2:4] == [(42, "ACC402", "found"), (42, "ACC402", "fixed")]
    assert [row for row, _, _ in places] == sorted(row for row, _, _ in places)


def test_no_confirmation_is_an_empty_list() -> None:
    assert read() == []


# Fields that have another name in JSON, where ruff's words are used.
RENAMED = {"file": "filename", "line": "row"}


@pytest.mark.parametrize(
    "kind",
    [
        result.Confirmation,
        result.Pass,
        result.Update,
        result.Control,
        result.Raised,
        result.Moment,
        result.Total,
    ],
)
def test_nothing_that_was_measured_is_left_out(kind: type) -> None:
    known = set(keys(read(*confirmed.ALL)))
    assert {RENAMED.get(field.name, field.name) for field in fields(kind)} <= known


def test_every_key_is_documented() -> None:
    page = (ROOT / "docs" / "confirm.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`(\w+)`", page))
    found = read(*(replace(one, measured={}) for one in confirmed.ALL))
    assert set(keys(found)) <= documented


def keys(value: Any) -> Iterator[str]:
    """Every key of an object and of those within it."""
    if isinstance(value, dict):
        for key, inner in value.items():  # pyright: ignore[reportUnknownVariableType]
            yield key
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:  # pyright: ignore[reportUnknownVariableType]
            yield from keys(inner)
