"""Fixes files one by one, and writes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from accumlint.check import read
from accumlint.common.problem import Problem
from accumlint.diagnostics.fixing.rounds import Fixed, fix
from accumlint.diagnostics.results.report import Checked
from accumlint.files.atomic import write
from accumlint.files.inputs.discovery import Target


def fix_files(targets: Iterable[Target], *, unsafe: bool = False) -> Iterator[Fixed]:
    """What fixing each file gives, in order; nothing is written."""
    for target in targets:
        result = read(target, lambda data, target: fix(data, target, unsafe=unsafe))
        if isinstance(result, Problem):
            failed = Checked(target.shown, problems=(result,))
            result = Fixed(target, b"", b"", failed, failed)
        yield result


def written(results: Iterable[Fixed]) -> Iterator[Checked]:
    """The results after their files were written; where that fails, the file is as it was and so is its result."""
    for result in results:
        checked = result.checked
        if result.is_changed:
            try:
                write(result.target.file, result.after, result.before)
            except OSError as problem:
                reason = f"cannot be written: {problem.strerror or problem}"
                told = Problem(result.target.shown, reason)
                checked = replace(result.first, problems=(*result.first.problems, told))
        yield checked
