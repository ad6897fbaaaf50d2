"""The output formats: each turns the results of checked files into lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from accumlint.report import Checked
from accumlint.reporting.concise import concise
from accumlint.reporting.full import full
from accumlint.reporting.json import json
from accumlint.reporting.look import Look
from accumlint.reporting.statistics import json_statistics, statistics

Reporter = Callable[[Iterable[Checked], Look], Iterator[str]]

REPORTERS: dict[str, Reporter] = {"concise": concise, "full": full, "json": json}
STATISTICS: dict[str, Reporter] = {
    "concise": statistics,
    "full": statistics,
    "json": json_statistics,
}
