"""The output formats: each turns the results of checked files into lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module

from accumlint.diagnostics.reporting.terminal import Look
from accumlint.diagnostics.results.report import Checked

Reporter = Callable[[Iterable[Checked], Look], Iterator[str]]


def reporter(name: str, *, statistics: bool = False) -> Reporter:
    """What writes a format, imported now; with `statistics`, what counts findings in it."""
    home, function = name.partition("-")[0], name.replace("-", "_")
    if statistics:
        home, function = "statistics", "json_statistics" if name == "json" else "statistics"
    return getattr(import_module(f"accumlint.diagnostics.reporting.{home}"), function)


def schema() -> str:
    """The JSON schema of `json`, and of each line of `json-lines`."""
    from importlib.resources import files

    file = files("accumlint.diagnostics.reporting").joinpath("findings.schema.json")
    return file.read_text(encoding="utf-8").rstrip()
