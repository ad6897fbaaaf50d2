"""Knows the findings that were there before, so that only new ones are reported.

A baseline is a JSON file. It knows a finding by its file, its rule, the function or class around it and the flagged
statement in one normal form, with a count: lines may move, and a defect that takes another's place is new.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast

from accumlint.common.problem import Misuse
from accumlint.diagnostics.results.report import Report
from accumlint.files.regular import contents

USUAL = "accumlint-baseline.json"
VERSION = 1


class BaselineError(Misuse):
    """The baseline cannot be used; the message names the file and the mend."""


@dataclass(frozen=True, order=True)
class Known:
    """What a finding is known by. `file` is relative to the baseline's folder, with slashes."""

    file: str
    code: str
    scope: str
    statement: str


def known(report: Report, baseline: Path) -> Known:
    """What a baseline knows a report by."""
    file = os.path.relpath(report.file, baseline.parent).replace(os.sep, "/")
    return Known(file, report.code, report.scope, report.statement)


def file_of(item: Known, baseline: Path) -> str:
    """The absolute path of a known finding's file."""
    return os.path.abspath(baseline.parent / item.file)


@cache
def load(baseline: Path) -> Mapping[Known, int]:
    """The findings that a baseline knows, with their number.

    Raises:
        BaselineError: when there is none, or none that can be understood.
    """
    try:
        data = contents(baseline)
    except FileNotFoundError:
        raise BaselineError(
            f"{_path(baseline)}: there is no baseline; `accumlint baseline write` makes it"
        ) from None
    except OSError as problem:
        raise BaselineError(f"{_path(baseline)}: cannot be read: {problem.strerror}") from None
    import json

    try:
        return dict(_entries(json.loads(data)))
    except (ValueError, RecursionError) as problem:
        reason = str(problem) or "nested too deeply"
        raise BaselineError(
            f"{_path(baseline)}: is no baseline that can be read: {reason}; mend it, or remove it and write a new one"
        ) from None


def save(baseline: Path, items: Mapping[Known, int]) -> None:
    """Writes a baseline, a line for each known finding, so that changes to it can be read and merged.

    Raises:
        BaselineError: when the file cannot be written.
    """
    import json

    from accumlint.files.atomic import put
    from accumlint.files.outputs import refuse_detours

    rows = [
        json.dumps(
            {
                "file": item.file,
                "code": item.code,
                "scope": item.scope,
                "statement": item.statement,
                "count": count,
            },
            ensure_ascii=False,
        )
        for item, count in sorted(items.items())
        if count
    ]
    listed = "[\n    " + ",\n    ".join(rows) + "\n  ]" if rows else "[]"
    text = f'{{\n  "accumlint-baseline": {VERSION},\n  "findings": {listed}\n}}\n'
    try:
        refuse_detours(baseline)
        put(str(baseline), text.encode("utf-8", "surrogatepass"))
    except OSError as problem:
        raise BaselineError(f"{_path(baseline)}: cannot be written: {problem.strerror}") from None
    load.cache_clear()


def rewritten(
    old: Mapping[Known, int], reports: Iterable[Report], checked: Collection[str], baseline: Path
) -> dict[Known, int]:
    """A baseline of what is found now in the files that were checked; others keep what they have while they exist."""
    found = Counter(known(report, baseline) for report in reports)
    kept = {
        item: count
        for item, count in old.items()
        if (file := file_of(item, baseline)) not in checked and os.path.exists(file)
    }
    return {**kept, **found}


def pruned(
    old: Mapping[Known, int], reports: Iterable[Report], checked: Collection[str], baseline: Path
) -> dict[Known, int]:
    """A baseline without what is no longer found; nothing is added."""
    now = rewritten(old, reports, checked, baseline)
    return {item: min(count, now[item]) for item, count in old.items() if item in now}


def _path(baseline: Path) -> str:
    here = Path.cwd()
    return str(baseline.relative_to(here) if here in baseline.parents else baseline)


def _entries(document: object) -> Iterator[tuple[Known, int]]:
    held = cast("Mapping[str, object]", document if isinstance(document, dict) else {})
    version = held.get("accumlint-baseline")
    if version != VERSION:
        raise ValueError(
            "it does not say that it is one"
            if version is None
            else f"it is of version {version!r}, and this accumlint reads version {VERSION}"
        )
    if not isinstance(findings := held.get("findings"), Sequence):
        # A file with wrong contents, whatever their types.
        raise ValueError("it lists no findings")  # noqa: TRY004
    for number, row in enumerate(cast("Sequence[object]", findings), 1):
        yield _entry(row, number)


def _entry(row: object, number: int) -> tuple[Known, int]:
    fields = cast("Mapping[str, object]", row if isinstance(row, dict) else {})
    texts = [fields.get(name) for name in ("file", "code", "scope", "statement")]
    words = [text for text in texts if isinstance(text, str)]
    count = fields.get("count")
    if len(words) != len(texts) or type(count) is not int or count < 1:
        raise ValueError(f"finding {number} lacks a file, code, scope, statement or count")
    return Known(*words), count
