"""Findings as a Markdown table, such as GitHub shows as the summary of a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from accumlint.diagnostics.reporting.paths import relative
from accumlint.diagnostics.reporting.phrases import count
from accumlint.diagnostics.reporting.summary import summary
from accumlint.diagnostics.reporting.terminal import Look, printable
from accumlint.diagnostics.results.report import Checked, Report

# GitHub refuses a summary of more than 1 MiB.
_MOST = 900_000
_MARKS = re.compile(r"([\\*_{}\[\]<>|~&$`:])")


def markdown(results: Iterable[Checked], look: Look) -> Iterator[str]:
    """The line for the run, and a table with a row for each finding, errors first."""
    seen = list(results)
    plain = replace(look, color=False, quiet=False)
    yield "### accumlint"
    yield ""
    for line in summary(seen, plain):
        yield text(line)
        yield ""
    severities = ("error", "warning", "info")
    reports = sorted(
        (report for result in seen for report in result.reports),
        key=lambda report: (severities.index(report.severity), report.key),
    )
    if reports:
        yield "| | rule | place | finding |"
        yield "| --- | --- | --- | --- |"
    size = 0
    for number, report in enumerate(reports):
        row = _row(report, look)
        size += len(row.encode("utf-8", "replace")) + 1
        if size > _MOST:
            yield ""
            yield f"{count(len(reports) - number, 'more finding')}, which this page cannot hold"
            return
        yield row


def _row(report: Report, look: Look) -> str:
    place = f"{relative(report.file, look.root)}:{report.mark.where}"
    told = "<br>".join(text(line) for line in (report.headline, *report.gradients))
    return f"| {report.severity} | {report.code} {report.name} | {_code(place)} | {told} |"


def text(written: str, *, tags: bool = True) -> str:
    """Text in which code between backticks stays code, and nothing else is taken for Markdown."""
    pieces = written.split("`")
    if len(pieces) % 2 == 0:
        return _plain(written)
    return "".join(_code(p, tags) if index % 2 else _plain(p) for index, p in enumerate(pieces))


def _code(text: str, tags: bool = True) -> str:
    """Code that may hold backticks and bars, for Markdown is read inside of tags, too; without tags it holds none."""
    if not text:
        return ""
    return f"<code>{_plain(text)}</code>" if tags else f"`{printable(text)}`"


def _plain(text: str) -> str:
    return _MARKS.sub(r"\\\1", printable(text))
