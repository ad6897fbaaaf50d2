"""The output formats: each turns the results of checked files into lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from accumlint.report import Checked
from accumlint.reporting.azure import azure
from accumlint.reporting.concise import concise
from accumlint.reporting.full import full
from accumlint.reporting.github import github
from accumlint.reporting.gitlab import gitlab
from accumlint.reporting.grouped import grouped
from accumlint.reporting.html import html
from accumlint.reporting.json import json, json_lines
from accumlint.reporting.junit import junit
from accumlint.reporting.look import Look
from accumlint.reporting.markdown import markdown
from accumlint.reporting.rdjson import rdjson
from accumlint.reporting.sarif import sarif
from accumlint.reporting.statistics import json_statistics, statistics

Reporter = Callable[[Iterable[Checked], Look], Iterator[str]]

REPORTERS: dict[str, Reporter] = {
    "concise": concise,
    "full": full,
    "grouped": grouped,
    "json": json,
    "json-lines": json_lines,
    "sarif": sarif,
    "github": github,
    "gitlab": gitlab,
    "azure": azure,
    "junit": junit,
    "rdjson": rdjson,
    "markdown": markdown,
    "html": html,
}
STATISTICS: dict[str, Reporter] = dict.fromkeys(REPORTERS, statistics) | {
    "json": json_statistics,
}


def schema() -> str:
    """The JSON schema of `json`, and of each line of `json-lines`."""
    from importlib.resources import files

    file = files("accumlint.reporting").joinpath("findings.schema.json")
    return file.read_text(encoding="utf-8").rstrip()
