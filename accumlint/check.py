"""Checks files one by one: bytes to program, program to traces, traces to findings, findings to reports.

The program's reader, the tracer and the rules are imported when the first file is met that may hold a training loop.
"""

from __future__ import annotations

import gc
import sys
import time
import traceback
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from accumlint import packs, patterns, prefilter, suppress
from accumlint.config import Settings
from accumlint.discovery import Target
from accumlint.fingerprint import fingerprinted
from accumlint.problem import Kind, Problem
from accumlint.report import Checked, Mark, Report, Silenced, Untraced
from accumlint.source import WIDE, UndecodableSource, decode

if TYPE_CHECKING:
    from accumlint.reading.program import Node, Program
    from accumlint.rule import Finding

# Past this, a file's traces end and what is known by then is reported.
SECONDS = 3.0


def check(targets: Iterable[Target]) -> Iterator[Checked]:
    """What checking each file gave, in order. A file that cannot be checked does not stop the run."""
    for target in targets:
        try:
            data = _bytes(target)
        except OSError as problem:
            reason = f"cannot be read: {problem.strerror or problem}"
            yield Checked(target.shown, problems=(Problem(target.shown, reason),))
            continue
        try:
            yield check_bytes(data, target)
        except packs.PackError:
            raise
        # Whatever breaks in here is our fault in this one file: it is told, and the other files are still checked.
        except Exception:  # noqa: BLE001
            message = (
                "accumlint failed here, which is its own fault; please report it with this file"
            )
            problem = Problem(target.shown, message, Kind.FAULT, traceback=traceback.format_exc())
            yield Checked(target.shown, problems=(problem,))


def check_bytes(data: bytes, target: Target) -> Checked:
    """What checking the bytes of one file gave."""
    # The byte gate cannot look into wide text, so decoding has to refuse it.
    if not data.startswith(WIDE) and not prefilter.may_train(data):
        return Checked(target.shown)
    try:
        text = decode(data)
    except UndecodableSource as problem:
        return _unreadable(target, problem.message, problem.line)
    with _without_collector(), _room_to_recurse():
        try:
            return _check_text(text, data, target)
        except RecursionError:
            return _unreadable(target, "nested too deeply to be read", None)


@contextmanager
def _room_to_recurse() -> Generator[None, None, None]:
    """Deeply nested code is read and traced by calls nested several times as deeply."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 12_000))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


@contextmanager
def _without_collector() -> Generator[None, None, None]:
    """Reading builds a big tree and drops nothing: looking for garbage in it again and again takes half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _bytes(target: Target) -> bytes:
    if target.stdin:
        return sys.stdin.buffer.read()
    with open(target.file, "rb") as file:
        return file.read()


def _check_text(text: str, data: bytes, target: Target) -> Checked:
    from accumlint import judge, reading, tracing

    start = time.monotonic()
    try:
        program = reading.read(text, target.shown)
    except reading.UnreadableSource as problem:
        return _unreadable(target, problem.message, problem.line)
    exploration = tracing.explore(program, max(0.5, SECONDS - (time.monotonic() - start)))
    findings = judge.judge(program, exploration, selection(target.settings).rules)
    wanted = _wanted(findings, target.settings)
    found = sorted((_report(f, program, target) for f in wanted), key=lambda report: report.key)
    sifted = list(_sifted(fingerprinted(found, data), text, target)) if found else []
    return Checked(
        target.shown,
        reports=tuple(item for item in sifted if isinstance(item, Report)),
        silenced=tuple(item for item in sifted if isinstance(item, Silenced)),
        untraced=tuple(
            Untraced(target.shown, program.place(node).line, reason)
            for node, reason in exploration.untraced
        ),
        problems=_stopped(exploration.stopped, target),
    )


def _stopped(reason: str, target: Target) -> tuple[Problem, ...]:
    message = f"not followed to the end: {reason}; what was known by then is reported"
    return (Problem(target.shown, message, Kind.WARNING),) if reason else ()


@cache
def selection(settings: Settings) -> packs.Selection:
    """The rules that the settings select; every selector in the settings must name one."""
    for _, selectors in settings.per_file_ignores:
        packs.select(selectors)
    return packs.select(settings.select, settings.extend_select, settings.ignore)


def _wanted(findings: Iterable[Finding], settings: Settings) -> Iterator[Finding]:
    from accumlint.rule import Confidence

    lowest = Confidence(settings.min_confidence).rank
    return (finding for finding in findings if finding.confidence.rank >= lowest)


def _sifted(reports: Iterable[Report], text: str, target: Target) -> Iterator[Report | Silenced]:
    """The reports, and those instead that a comment or `per-file-ignores` silences."""
    suppressions = suppress.read(text)
    for report in reports:
        ignore = suppressions.ignore_for(report.code, report.name, report.mark.place.line)
        if ignore is not None:
            yield Silenced(report, by_comment=True, reason=ignore.reason)
        elif report.code in _ignored(target.file, target.settings):
            yield Silenced(report, by_comment=False)
        else:
            yield report


@cache
def _ignored(file: str, settings: Settings) -> frozenset[str]:
    """The codes that `per-file-ignores` silences in a file."""
    selectors = [
        selector
        for pattern, listed in settings.per_file_ignores
        if patterns.compiled(str(settings.root), [pattern]).verdict(file)
        for selector in listed
    ]
    return frozenset(e.code for e in packs.select(selectors).entries) if selectors else frozenset()


def _report(finding: Finding, program: Program, target: Target) -> Report:
    from accumlint import narrate

    around = program.surroundings(finding.node)
    return Report(
        shown=target.shown,
        file=target.file,
        code=finding.rule.code,
        name=finding.rule.name,
        message=finding.message,
        severity=finding.severity.value,
        confidence=finding.confidence.value,
        mark=_mark(finding.node, "", program),
        related=tuple(_mark(other.node, other.message, program) for other in finding.related),
        condition=narrate.condition(finding),
        applied=narrate.applied(finding, program),
        expected=narrate.expected(finding, program),
        timeline=tuple(_mark(node, text, program) for node, text in narrate.timeline(finding)),
        scope=around.scope,
        statement=around.statement,
    )


def _mark(node: Node, message: str, program: Program) -> Mark:
    place = program.place(node)
    return Mark(place, program.lines[place.line - 1], message)


def _unreadable(target: Target, message: str, line: int | None) -> Checked:
    return Checked(target.shown, problems=(Problem(target.shown, message, line=line),))
