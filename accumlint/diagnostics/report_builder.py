"""Findings and remarks as reports: plain values, with their words and the places that they mark."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from accumlint.common.place import Place
from accumlint.config import Settings
from accumlint.diagnostics.results.report import File, Fix, Mark, Report
from accumlint.files.inputs.discovery import Target
from accumlint.files.inputs.document import Text
from accumlint.registry import packs

if TYPE_CHECKING:
    from accumlint.diagnostics.results.diagram import Loop
    from accumlint.reading.ir import Node
    from accumlint.reading.program import Program
    from accumlint.rule import Finding, Remark, Rewording


def finding_report(
    finding: Finding,
    program: Program,
    text: Text,
    target: Target,
    picture: Loop | None,
    timelines: dict[int, tuple[Mark, ...]],
) -> Report:
    """What is told of a finding; `picture` is what its loop looks like, for those who want to see it.

    `timelines` are those of windows that other findings were seen in, by the windows' ids, and gets this one's.
    """
    from accumlint.diagnostics import narrate

    around = program.surroundings(finding.node)
    applied, expected = narrate.gradients(finding, program)
    timeline = timelines.get(id(finding.window))
    if timeline is None:
        told = narrate.timeline(finding)
        timeline = tuple(mark_of(node, said, program, text, target) for node, said in told)
        timelines[id(finding.window)] = timeline
    return Report(
        shown=target.shown,
        file=target.file,
        code=finding.rule.code,
        name=finding.rule.name,
        message=finding.message,
        severity=_severity(finding.rule.code, finding.severity.value, target.settings),
        confidence=finding.confidence.value,
        mark=mark_of(finding.node, "", program, text, target),
        related=tuple(
            mark_of(other.node, other.message, program, text, target) for other in finding.related
        ),
        condition=narrate.condition(finding),
        applied=applied,
        expected=expected,
        timeline=timeline,
        scope=around.scope,
        statement=around.statement,
        loop=Place(text.line(around.first), 1, text.line(around.last), 1),
        picture=picture,
        behind=finding.behind,
    )


def remark_report(remark: Remark, text: Text, target: Target) -> Report:
    """What is told of a remark about an ignore or a setting."""
    return Report(
        shown=target.shown,
        file=target.file,
        code=remark.rule.code,
        name=remark.rule.name,
        message=remark.message,
        severity=_severity(remark.rule.code, remark.rule.severity.value, target.settings),
        confidence="certain",
        mark=text.mark(remark.mention.place),
        statement=remark.mention.text,
        fix=_rewording(remark.fix, text) if remark.fix else None,
    )


def mark_of(node: Node, message: str, program: Program, text: Text, target: Target) -> Mark:
    """What marks a node, in the checked file or in one that was read along with it."""
    spot = program.spot(node)
    if spot.source is program.source:
        return text.mark(spot.place, message)
    file = spot.source.path
    beside = os.path.relpath(file, os.path.dirname(target.file))
    shown = os.path.normpath(os.path.join(os.path.dirname(target.shown), beside))
    row = spot.source.lines[spot.place.line - 1]
    return Mark(spot.place, row, message, elsewhere=File(shown, file))


def _rewording(fix: Rewording, text: Text) -> Fix | None:
    edit = text.replacing(fix.place, fix.content)
    changed = text.difference(edit)
    return text.fix(Fix(fix.applicability.value, fix.message, (edit,), changed))


def _severity(code: str, usual: str, settings: Settings) -> str:
    """What the settings say about a rule's severity, else the usual one."""
    by_selector = {selector: word for selector, (word,) in settings.severity}
    chosen = packs.strongest(tuple(by_selector), code)
    return usual if chosen is None else by_selector[chosen]
