"""Writes ignore comments for the findings of a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from accumlint.check import check_bytes, read
from accumlint.common.frozen import frozen
from accumlint.common.place import Place
from accumlint.common.problem import Problem
from accumlint.diagnostics import suppression
from accumlint.diagnostics.results.report import Checked, Edit, Fix, Report
from accumlint.files.atomic import write
from accumlint.files.inputs import document as texts
from accumlint.files.inputs.discovery import Target
from accumlint.files.inputs.document import Text
from accumlint.files.source import decode, encode
from accumlint.registry import packs


@frozen
class Ignored:
    """What is left to report on a file, and how many of its findings were given a comment."""

    checked: Checked
    added: int = 0


def ignore(targets: Iterable[Target], reason: str) -> Iterator[Ignored]:
    """Writes a comment for each finding of each file, and checks that it works before it is written."""
    for target in targets:
        done = read(target, lambda data, target: _ignore(data, target, reason))
        if isinstance(done, Problem):
            done = Ignored(Checked(target.shown, problems=(done,)))
        yield done


def comments(text: Text, reports: Iterable[Report], reason: str) -> Iterator[Edit]:
    """The edits of a program that put a comment behind the statement of each report; a list that stands there grows."""
    layout = suppression.layout(text.text)
    codes: dict[int, list[str]] = {}
    for report in reports:
        _, last = layout.statement(text.line_of(report.mark))
        codes.setdefault(last, []).append(report.code)
    for row in sorted(codes, reverse=True):
        listed = ", ".join(dict.fromkeys(codes[row]))
        known = next(
            (i for i in layout.ignores if i.place.line == row and i.words and not i.noqa), None
        )
        if known and known.words and not known.whole_file:
            column = known.words[-1].place.end_column
            comment = f", {listed}"
        else:
            column = len(text.rows[row - 1].rstrip()) + 1
            comment = f"  # accumlint: ignore[{listed}]{' ' if reason else ''}{reason}"
        yield text.replacing(Place(row, column, row, column), comment)


def _ignore(data: bytes, target: Target, reason: str) -> Ignored:
    checked = check_bytes(data, target)
    # A remark on an ignore is no reason for another one.
    wanted = [r for r in checked.reports if not packs.rule(packs.find(r.code)).meta]
    if not wanted:
        return Ignored(checked)
    text = texts.read(data, target.is_notebook)
    assert text is not None, "something was found in it"
    edits = text.fix(Fix("safe", "", tuple(comments(text, wanted, reason))))
    if edits is None:
        return _refused(checked, "no comment was added, since a magic stands there")
    try:
        new = encode(texts.edited(decode(data), edits.in_file), data)
    except UnicodeEncodeError:
        return _refused(checked, "the reason cannot be written in the file's encoding")
    again = check_bytes(new, target)
    if len(again.reports) != len(checked.reports) - len(wanted):
        return _refused(checked, "no comment was added, since it would not silence everything")
    try:
        write(target.file, new, data)
    except OSError as problem:
        return _refused(checked, f"cannot be written: {problem.strerror or problem}")
    return Ignored(again, len(wanted))


def _refused(checked: Checked, message: str) -> Ignored:
    problem = Problem(checked.shown, message)
    return Ignored(replace(checked, problems=(*checked.problems, problem)))
