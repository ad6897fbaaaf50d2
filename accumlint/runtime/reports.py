"""Converts the answers of a run to reports, merged with the findings of `check` in the same files."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from accumlint import check
from accumlint.common.frozen import frozen
from accumlint.common.observed import Observed
from accumlint.common.place import Place
from accumlint.config import Options
from accumlint.diagnostics import suppression as suppress
from accumlint.diagnostics.results.measured import Measured
from accumlint.diagnostics.results.report import Checked, File, Mark, Report
from accumlint.diagnostics.suppression_filter import selection, sifted
from accumlint.files.inputs.discovery import Target, find
from accumlint.files.inputs.document import Text
from accumlint.files.source import UnreadableSource
from accumlint.reading.enclosing import surroundings
from accumlint.reading.syntax import Source
from accumlint.registry import packs
from accumlint.rule import Confidence, Rule
from accumlint.runtime.answers import Answer
from accumlint.runtime.records import Spot

BOTH = "`check` reports it, too"


@frozen
class Joined:
    """The findings of a run by file; `refuted` are those of `check` that the run measured to be correct."""

    checked: tuple[Checked, ...]
    refuted: tuple[tuple[Report, str], ...]
    unasked: tuple[Report, ...]


def joined(
    answers: Sequence[Answer], measured: Sequence[Measured], options: Options, *, read: bool
) -> Joined:
    """The answers and figures by file; with `read`, merged with the findings of `check` in the same files."""
    spots = (spot[0] for answer in answers for spot in answer.spots if spot[0])
    files = dict.fromkeys((*spots, *(one.file for one in measured)))
    checked: list[Checked] = []
    refuted: list[tuple[Report, str]] = []
    unasked: list[Report] = []
    for file in files:
        target = _target(file, options)
        if target is None:
            continue
        known = _known(target) if read else Checked(target.shown)
        wrong = [answer for answer in answers if answer.wrong and answer.place[0] == file]
        data = Path(target.file).read_bytes()
        found = _reports(wrong, target, known, Text(data.decode("utf-8", "replace")))
        kept, silenced = sifted(found, data, target)
        here = tuple(replace(one, file=target.file) for one in measured if one.file == file)
        checked.append(Checked(target.shown, kept, silenced, measured=here))
        reported = {report.code for report, _ in found}
        for report in known.reports:
            if report.code not in reported:
                figures = _refutes(report, answers, file)
                refuted += [(report, figures)] if figures else []
                unasked += [] if figures else [report]
    return Joined(tuple(checked), tuple(refuted), tuple(unasked))


def _target(file: str, options: Options) -> Target | None:
    shown = os.path.relpath(file)
    if shown.startswith(os.pardir):
        shown = file
    targets, _ = find((shown,), options)
    return targets[0] if targets else None


def _known(target: Target) -> Checked:
    """The findings of `check` in a file."""
    return next(iter(check.check([target])))


def lines(answers: Sequence[Answer]) -> Iterator[str]:
    """The defects as lines of text."""
    by_kind = rules()
    for answer in answers:
        rule = by_kind.get(answer.observed)
        if answer.wrong and rule is not None and answer.confidence != Confidence.POSSIBLE.value:
            file, line = answer.place
            yield f"{file}:{line}: {rule.code} {rule.name}: {answer.message}"


def rules() -> Mapping[Observed, Rule]:
    """The rule of each observation."""
    return {rule.observed: rule for rule in packs.everything() if rule.observed is not None}


def _reports(
    answers: Sequence[Answer], target: Target, known: Checked, text: Text
) -> list[tuple[Report, list[suppress.Match]]]:
    suppressions = suppress.read(text.text)
    selected = set(selection(target.settings).rules)
    least = Confidence(target.settings.min_confidence).rank
    by_kind = rules()
    found: list[tuple[Report, list[suppress.Match]]] = []
    for answer in answers:
        rule = by_kind.get(answer.observed)
        if rule is None or rule not in selected or Confidence(answer.confidence).rank < least:
            continue
        report = _report(answer, rule, target, text)
        report = _with(report, [r for r in known.reports if r.code == report.code])
        found.append((report, suppressions.silencing(rule.code, rule.name, report.mark.place.line)))
    return found


def _report(answer: Answer, rule: Rule, target: Target, text: Text) -> Report:
    line = answer.place[1]
    scope, statement, loop = _around(target, text, line)
    return Report(
        shown=target.shown, file=target.file, code=rule.code, name=rule.name, message=answer.message,
        severity=answer.severity or rule.severity.value, confidence=answer.confidence,
        mark=_mark(answer.place, "", target, text), applied=answer.applied, expected=answer.expected,
        timeline=tuple(_mark(spot, message, target, text) for spot, message in answer.window if _is_there(spot)),
        related=tuple(_mark(spot, message, target, text) for spot, message in answer.related if _is_there(spot)),
        scope=scope, statement=statement, loop=loop,
    )  # fmt: skip


def _is_there(spot: Spot) -> bool:
    return os.path.isfile(spot[0])


def _mark(spot: Spot, message: str, target: Target, text: Text) -> Mark:
    file, line = spot
    if file == target.file:
        rows = text.rows
        other_file = None
    else:
        rows = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
        other_file = File(os.path.relpath(file), file)
    row = rows[line - 1] if 0 < line <= len(rows) else ""
    first = len(row) - len(row.lstrip()) + 1
    place = Place(line, first, line, max(len(row.rstrip()), first) + 1)
    return Mark(place, row, message, elsewhere=other_file)


def _around(target: Target, text: Text, line: int) -> tuple[str, str, Place | None]:
    """The function, the statement and the loop around a line."""
    source = Source(target.file, text.text)
    try:
        tree = source.tree
    except UnreadableSource:
        return "", "", None
    statements = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    if not statements:
        return "", "", None
    nearest = min(statements, key=lambda node: (node.end_lineno or node.lineno) - node.lineno)
    enclosing = surroundings(source, nearest)
    return enclosing.scope, enclosing.statement, Place(enclosing.first, 1, enclosing.last, 1)


def _with(report: Report, others: Sequence[Report]) -> Report:
    """A report with the nearest finding of `check` about the same defect, if any."""
    if not others:
        return report
    line = report.mark.place.line
    near = min(others, key=lambda other: abs(other.mark.place.line - line))
    related = (*report.related, replace(near.mark, message=BOTH))
    return replace(report, related=related, fix=near.fix)


def _refutes(report: Report, answers: Sequence[Answer], file: str) -> str:
    """The figures by which a run refutes a finding of `check`, "" for none."""
    around = report.loop
    rights = _rights(report.code, answers)
    return next((right.figures for right in rights if touches(right, file, around)), "")


def _rights(code: str, answers: Sequence[Answer]) -> Iterator[Answer]:
    kinds = {kind for kind, rule in rules().items() if rule.code == code}
    # A defect in one loop and a correct measurement in another refute nothing.
    wrong = {answer.observed for answer in answers if answer.wrong}
    return (a for a in answers if not a.wrong and a.observed in kinds - wrong)


def touches(answer: Answer, file: str, around: Place | None) -> bool:
    """Whether an answer is about a file, and about the loop `around` a finding in it if that is known."""
    if around is None:
        return any(spot[0] == file for spot in answer.spots)
    return any(
        spot[0] == file and around.line <= spot[1] <= around.end_line for spot in answer.spots
    )
