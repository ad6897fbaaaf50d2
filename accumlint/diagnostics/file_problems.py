"""Tells what was not done with a file: what was not followed, which rules failed, which fixes were not tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from accumlint.common.memo import Memory
from accumlint.common.problem import Kind, Problem
from accumlint.config import shown
from accumlint.diagnostics.results.report import Report
from accumlint.files.inputs.discovery import Target
from accumlint.files.inputs.document import Text

if TYPE_CHECKING:
    from accumlint.diagnostics.coverage import Site
    from accumlint.reading.program import Program
    from accumlint.rule import Rule
    from accumlint.tracing import Exploration
    from accumlint.tracing.budget import Budget


def stopped(
    program: Program,
    exploration: Exploration,
    sites: Sequence[Site],
    text: Text,
    target: Target,
) -> Iterator[Problem]:
    """What is told where following a file took too much, with the lines of the backwards that were not read."""
    from accumlint.diagnostics import coverage

    reason = coverage.cut(exploration)
    if not reason:
        return
    message = f"not followed to the end: {reason}; what was known by then is reported"
    places = [program.place(site.node).line for site in sites if site.state == coverage.NOT]
    lines = [str(text.line(line)) for line in dict.fromkeys(places)]
    if lines:
        shown = [*lines[:5], *([f"{len(lines) - 5} more lines"] if len(lines) > 5 else [])]
        first, last = ", ".join(shown[:-1]), shown[-1]
        where = f"lines {first} and {last}" if first else f"line {last}"
        message += f"; not read: `backward()` at {where}"
    yield Problem(target.shown, message, Kind.WARNING, int(lines[0]) if lines else None)


def unjudged(
    program: Program, exploration: Exploration, text: Text, target: Target
) -> Iterator[Problem]:
    """What is told of a loop whose backward stands where it could not be followed to."""
    from accumlint.diagnostics import coverage
    from accumlint.reading.ir import dotted

    for call in coverage.unjudged_steps(program, exploration)[:1]:
        line = text.line(program.place(call).line)
        message = f"`{dotted(call.func)}()` was not judged: no backward call that leads to it could be followed"
        yield Problem(target.shown, message, Kind.WARNING, line)


def left_out(memory: Memory, budget: Budget, target: Target) -> Iterator[Problem]:
    """What is told where a file leads to more than is read, or than is compared with what the checks of that tell."""
    messages: list[str] = []
    if memory.refused:
        messages.append(
            "not followed into all files that it uses: they are too much to read; what was known before "
            f"`{shown(Path(memory.refused))}` is reported"
        )
    if budget.stopped:
        messages.append(
            "findings in files that this one uses are left to their own checks: that takes too many steps"
        )
    yield from (Problem(target.shown, message, Kind.WARNING) for message in messages)


def failed(broken: Mapping[Rule, BaseException], target: Target) -> Iterator[Problem]:
    """What is told of rules that failed: the others have done their work."""
    for rule, problem in broken.items():
        import traceback

        message = f"the rule {rule.code} {rule.name} failed here; please report it to who wrote it, with this file"
        told = "".join(traceback.format_exception(problem))
        yield Problem(target.shown, message, Kind.FAULT, traceback=told)


def untried(reports: Sequence[Report]) -> Iterator[Problem]:
    """What is told of findings whose fixes were too much to try."""
    if reports:
        line = min(report.mark.in_file.line for report in reports)
        count = f"{len(reports)} findings" if len(reports) > 1 else "a finding"
        message = f"no fix was tried for {count} from here on: that takes too many steps"
        yield Problem(reports[0].shown, message, Kind.WARNING, line)
