"""Checks files one by one: bytes to program, program to traces, traces to findings, findings to reports.

The program's reader, the tracer and the rules are imported when the first file is met that may hold a training loop.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from accumlint.common.big_trees import room_to_recurse, without_collector
from accumlint.common.frozen import frozen
from accumlint.common.memo import SECONDS, Memory, Overspent
from accumlint.common.problem import Kind, Misuse, Problem
from accumlint.config import Settings, shown
from accumlint.diagnostics import file_problems
from accumlint.diagnostics.report_builder import finding_report, mark_of, remark_report
from accumlint.diagnostics.results.report import Backward, Checked, Fix, Mark, Report
from accumlint.diagnostics.suppression_filter import (
    Matched,
    about_ignores,
    is_confident_enough,
    selection,
    sifted,
)
from accumlint.files import prefilter
from accumlint.files.inputs import document as texts
from accumlint.files.inputs import testcode
from accumlint.files.inputs.discovery import Target
from accumlint.files.inputs.document import Text
from accumlint.files.regular import SETTINGS, contents
from accumlint.files.source import UndecodableSource, is_opaque
from accumlint.registry import packs

if TYPE_CHECKING:
    from accumlint.diagnostics.location import Known
    from accumlint.diagnostics.results.diagram import Loop
    from accumlint.files.inputs.cache import Cache
    from accumlint.reading.program import Program
    from accumlint.reading.project import Project
    from accumlint.reading.syntax import Source
    from accumlint.rule import Finding, Rule
    from accumlint.tracing import Exploration

T = TypeVar("T")

# Characters of programs whose trees may lie about before they are cleared away: about a hundred megabytes. A collection
# goes through all that is alive as well, so that it costs as much as following a file.
_PILE = 1_000_000


@frozen
class Examined:
    """A file's program, what running it abstractly gave, and what is reported of it; no fix has been tried yet.

    `judged` are the findings of all the rules that were `asked`, those of other files' places included.
    """

    checked: Checked
    text: Text
    program: Program
    exploration: Exploration
    project: Project
    findings: Mapping[tuple[str, Mark], Finding]
    asked: frozenset[Rule]
    judged: Sequence[Finding]

    def finding(self, report: Report) -> Finding | None:
        """What a report tells, None where no rule about loops did."""
        return self.findings.get((report.code, report.mark))


# What a finding looks like as a loop, for those who want to see it.
Illustrate: TypeAlias = "Callable[[Finding, Program, Text, Target], Loop | None]"


def check(
    targets: Iterable[Target],
    cache: Cache | None = None,
    illustrate: Illustrate | None = None,
    spread: Sequence[Target] = (),
    jobs: int = 1,
) -> Iterator[Checked]:
    """What checking each file gave, in order. A file that cannot be checked does not stop the run.

    What the cache knows is not checked again, and what it does not know is added to it. With `illustrate`, each report
    holds what its loop looks like. The files to `spread`, in their order, may be checked ahead by other processes:
    by so many `jobs`, with 0 by as many as pay.
    """
    shared = Shared(illustrate)

    def find(target: Target) -> Checked | None:
        return cache.find(target) if cache else None

    with without_collector(), cache or nullcontext(), ExitStack() as stack:
        # By their paths, of which a text knows its own hash.
        early = {target.file: find(target) for target in spread} if cache and jobs != 1 else {}
        unknown = [t for t in spread if jobs != 1 and not (early.get(t.file) or t.stdin)]
        glanced, worked = _ahead(unknown, shared, jobs, stack)
        for target in targets:
            file = target.file
            known = early[file] if file in early else find(target)
            if known is None:
                if file in glanced:
                    done = _Done(glanced[file])
                else:
                    done = next(worked[file]) if file in worked else _done(target, shared)
                known = done.checked
                if cache:
                    cache.keep(target, known, done.read, done.met)
            yield known


@frozen
class _Done:
    """What checking a file gave, and the paths that this rests on."""

    checked: Checked
    read: frozenset[str] = frozenset()
    met: frozenset[str] = frozenset()


def _done(target: Target, shared: Shared) -> _Done:
    if shared.characters > _PILE:
        gc.collect()
        shared.characters = 0
    result = read(target, lambda data, target: check_bytes(data, target, shared))
    if isinstance(result, Problem):
        return _Done(_failed(target, result))
    return _Done(result, frozenset(shared.memory.read), frozenset(shared.memory.met))


def _ahead(
    targets: Sequence[Target], shared: Shared, jobs: int, stack: ExitStack
) -> tuple[dict[str, Checked], dict[str, Iterator[_Done]]]:
    """What a glance told of files, by path, and where the results come from of those that other processes check."""
    if len(targets) < 2:
        return {}, {}
    from accumlint.files import parallel

    glances = ((target.file, _glance(target)) for target in targets)
    glanced = {file: checked for file, checked in glances if checked}
    hot = [target for target in targets if target.file not in glanced]
    count = parallel.processes(jobs, len(hot))
    if count == 1:
        return glanced, {}
    # What every process needs is imported before there are several; `offers` as soon as one finding may be mended.
    for name in ("diagnostics.program_findings", "diagnostics.fix_selection", "reading", "tracing"):
        import_module(f"accumlint.{name}")
    _ = [selection(settings).rules for settings in {target.settings for target in hot}]
    spread = parallel.Spread(hot, lambda target: _done(target, shared), count, _size)
    results = stack.enter_context(spread).results()

    def told() -> Iterator[_Done]:
        for target, result in zip(hot, results, strict=True):
            if isinstance(result, parallel.Died):
                message = "the process that checked this is gone; please report it with this file"
                yield _Done(_failed(target, Problem(target.shown, message, Kind.FAULT)))
            else:
                yield result

    return glanced, dict.fromkeys((target.file for target in hot), told())


def _size(target: Target) -> int:
    """The bytes of a file, 0 where they cannot be told."""
    try:
        return os.stat(target.file).st_size
    except (OSError, ValueError):
        return 0


def _glance(target: Target) -> Checked | None:
    """What checking a file gives where its bytes tell that it holds nothing to check."""
    try:
        data = _bytes(target)
        loud = _may_train(data) or prefilter.may_ignore(data)
    except Exception:  # noqa: BLE001 (what breaks here breaks again when the file is checked, which tells it)
        return None
    return None if loud else Checked(target.shown)


def read(target: Target, work: Callable[[bytes, Target], T]) -> T | Problem:
    """What some work on a file's bytes gave, or what kept it from being done."""
    try:
        data = _bytes(target)
    except OSError as problem:
        return Problem(target.shown, f"cannot be read: {problem.strerror or problem}")
    try:
        return work(data, target)
    except Misuse:
        raise
    except Exception:  # noqa: BLE001 (whatever breaks is our fault in this one file: it is told, and the run goes on)
        import traceback

        message = "accumlint failed here, which is its own fault; please report it with this file"
        return Problem(target.shown, message, Kind.FAULT, traceback=traceback.format_exc())


def check_settings(settings: Settings) -> Iterator[Checked]:
    """What is wrong with the rules that each file of the settings names, for the files where anything is."""
    if not all(map(packs.is_selector, settings.selectors)):
        from accumlint.diagnostics.rule_references import in_settings

        # A misspelt selection must not leave out the very rule that would say so.
        rules = [r for r in packs.select(ignored=settings.ignore).rules if r.meta]
        for file in settings.files:
            target = Target(shown(file), str(file), settings)
            data = contents(file, SETTINGS)
            text = Text(data.decode(errors="replace"))
            mentions = list(in_settings(text.rows, settings.selectors))
            remarks = (remark for rule in rules for remark in rule.check_mentions(mentions))
            found: list[Matched] = [(remark_report(r, text, target), []) for r in remarks]
            if found:
                yield Checked(target.shown, *sifted(found, data, target))


def check_bytes(data: bytes, target: Target, shared: Shared | None = None) -> Checked:
    """What checking the bytes of one file gave; `shared` is what the run has read of other files."""
    with without_collector(), room_to_recurse():
        examined = examine(data, target, shared or Shared())
        return with_fixes(examined).checked if isinstance(examined, Examined) else examined


def examine(data: bytes, target: Target, shared: Shared) -> Examined | Checked:
    """What was found in the bytes of one file and with what; what checking gave where there is nothing to run."""
    shared.memory.begin(target.file)
    may_train = _may_train(data)
    if not may_train and not prefilter.may_ignore(data):
        return Checked(target.shown)
    try:
        text = texts.read(data, target.is_notebook)
    except UndecodableSource as problem:
        if not may_train:
            return Checked(target.shown)
        return _unreadable(target, problem.message, problem.line)
    if text is None:
        return Checked(target.shown)
    if may_train and (hidden := prefilter.disguised(text.text)):
        word, line = hidden
        message = f"spells `{word}` with characters that Python reads as other ones"
        return _unreadable(target, message, text.line(line))
    if may_train and not prefilter.trains(text.text):
        may_train = False
        if not prefilter.may_ignore(data):
            return Checked(target.shown)
    if not may_train:
        return _without_tests(_check_comments(text, data, target), target)
    with without_collector(), room_to_recurse():
        try:
            return _without_tests(_checked(text, data, target, shared), target)
        except RecursionError:
            return _unreadable(target, "nested too deeply to be read", None)


def _may_train(data: bytes) -> bool:
    """False when bytes hold nothing that trains. Where they do not show it, reading them has to tell or refuse it."""
    return is_opaque(data) or prefilter.may_train(data) or prefilter.may_hide(data)


def _bytes(target: Target) -> bytes:
    return sys.stdin.buffer.read() if target.stdin else contents(target.file)


class Shared:
    """What the checks of one run share: the project around its files, and what the checks of other files tell."""

    def __init__(self, illustrate: Illustrate | None = None, memory: Memory | None = None) -> None:
        self.illustrate = illustrate
        self.memory = memory or Memory()
        # As many were read since garbage was last collected.
        self.characters = 0

    @cached_property
    def project(self) -> Project:
        from accumlint.reading.project import Project

        return Project(self.memory)

    def known(self, source: Source, settings: Settings) -> tuple[Known, int]:
        """What the check of another file tells there, by rule and place, and the steps that it takes."""
        asked = "known", source.path, settings
        nothing: tuple[Known, int] = frozenset(), 0
        return self.memory.once(asked, lambda: self._findings(source, settings), nothing)

    def _findings(self, source: Source, settings: Settings) -> tuple[Known, int]:
        from accumlint import reading, tracing
        from accumlint.diagnostics import judge

        try:
            program = reading.read(source.text, source.path, self.project)
        except reading.UnreadableSource:
            return frozenset(), 0
        exploration = tracing.explore(program, self.project, SECONDS)
        found: set[tuple[str, int, int]] = set()
        for finding in judge.judge(program, exploration, selection(settings).rules, {}):
            for node in (finding.node, *judge.twins(finding)):
                place = program.spot(node).place
                found.add((finding.rule.code, place.line, place.column))
        return frozenset(found), exploration.steps


def _checked(text: Text, data: bytes, target: Target, shared: Shared) -> Examined | Checked:
    """The same; of a file that leads to more than is read, as far as it goes in the order in which it leads there."""
    try:
        return _check_program(text, data, target, shared)
    except Overspent:
        # What it gives must not depend on which answers are known from other files.
        memory = Memory(refusing=True)
        memory.begin(target.file)
        try:
            return _check_program(text, data, target, Shared(shared.illustrate, memory))
        finally:
            shared.memory.read |= memory.read
            shared.memory.met |= memory.met


def _check_program(text: Text, data: bytes, target: Target, shared: Shared) -> Examined | Checked:
    from accumlint import reading, tracing
    from accumlint.diagnostics import coverage, program_findings, suppression

    shared.characters += len(text.text)
    try:
        program = reading.read(text.text, target.file, shared.project)
    except reading.UnreadableSource as problem:
        return _unreadable(target, problem.message, text.line(problem.line))
    exploration = tracing.explore(program, shared.project, SECONDS)
    suppressions = suppression.read(text.text)
    rules = selection(target.settings).rules
    # Whether an ignore is needed does not depend on which rules are selected this time.
    asked = packs.everything() if suppressions.ignores and any(r.meta for r in rules) else rules
    found = program_findings.findings(
        program, exploration, shared.project, asked, lambda s: shared.known(s, target.settings)
    )

    def report(finding: Finding) -> Report:
        illustrate = shared.illustrate
        picture = illustrate(finding, program, text, target) if illustrate else None
        return finding_report(finding, program, text, target, picture, timelines)

    timelines: dict[int, tuple[Mark, ...]] = {}
    located = [(f, program.place(f.node)) for f in found.placed]
    matched = [(f, suppressions.silencing(f.rule.code, f.rule.name, p.line)) for f, p in located]
    reports = [
        (report(finding), ignores)
        for finding, ignores in matched
        if finding.rule in rules and is_confident_enough(finding, target.settings)
    ]
    silenced = Counter(match for _, ignores in matched for match in ignores)
    is_whole = exploration.is_whole and not found.broken and not shared.memory.refused
    reports += about_ignores(suppressions, silenced if is_whole else None, text, target)
    kept, left_out = sifted(reports, data, target)
    sites = coverage.coverage(program, exploration)
    problems = (
        *file_problems.stopped(program, exploration, sites, text, target),
        *file_problems.unjudged(program, exploration, text, target),
        *file_problems.left_out(shared.memory, found.budget, target),
        *file_problems.failed(found.broken, target),
    )
    marks = ((site, text.mark(program.place(site.node))) for site in sites)
    backwards = tuple(
        Backward(target.shown, target.file, mark, site.state, site.reasons) for site, mark in marks
    )
    return Examined(
        Checked(target.shown, kept, left_out, problems=problems, backwards=backwards),
        text,
        program,
        exploration,
        shared.project,
        {(f.rule.code, mark_of(f.node, "", program, text, target)): f for f in found.placed},
        frozenset(asked),
        found.judged,
    )


def _without_tests(found: Examined | Checked, target: Target) -> Examined | Checked:
    """The same; but of a test the findings are only counted, unless they are asked for."""
    if target.settings.include_tests:
        return found
    if isinstance(found, Checked):
        return _counted(found) if testcode.is_test_by_path(target) else found
    if testcode.is_test_by_path(target) or testcode.is_test_by_idiom(found.program):
        return replace(found, checked=_counted(found.checked))
    return found


def _counted(checked: Checked) -> Checked:
    codes = tuple(report.code for report in checked.reports)
    return Checked(checked.shown, problems=checked.problems, in_tests=codes)


def _check_comments(text: Text, data: bytes, target: Target) -> Checked:
    """What is wrong with the ignores of a file without a training loop."""
    from accumlint.diagnostics import suppression

    reports = list(about_ignores(suppression.read(text.text), {}, text, target))
    return Checked(target.shown, *sifted(reports, data, target))


def with_fixes(examined: Examined) -> Examined:
    """The same with the fixes that may be offered, each of which has been tried."""
    checked, text = examined.checked, examined.text
    untried: list[Report] = []
    try:
        fixes = dict(_offered(examined, untried))
    except Overspent:
        fixes = {}
        untried = [r for r in checked.reports if (f := examined.finding(r)) and f.fixes]
    except RecursionError:
        # On Python 3.12, libcst's own calls may not be nested as deeply as those that have found something.
        fixes = {}
    offered = [(report, fixes.get(id(report), report.fix)) for report in checked.reports]
    reports = tuple(replace(report, fix=text.fix(fix) if fix else None) for report, fix in offered)
    problems = (*checked.problems, *file_problems.untried(untried))
    return replace(examined, checked=replace(checked, reports=reports, problems=problems))


def _offered(examined: Examined, untried: list[Report]) -> Iterator[tuple[int, Fix | None]]:
    """The fix of each report about a loop that its rule has one for, by its id; `untried` gets what was not tried."""
    fixable = [
        (report, finding)
        for report in examined.checked.reports
        if (finding := examined.finding(report)) and finding.fixes
    ]
    if fixable:
        from accumlint.diagnostics import fix_selection

        findings = [finding for _, finding in fixable]
        program, judged, asked = examined.program, examined.judged, examined.asked
        found = fix_selection.offers(
            findings, program, examined.exploration, examined.project, judged, asked
        )
        untried += (report for report, _ in fixable[len(found) :])
        yield from ((id(report), fix) for (report, _), fix in zip(fixable, found, strict=False))


def _unreadable(target: Target, message: str, line: int | None) -> Checked:
    return _failed(target, Problem(target.shown, message, line=line))


def _failed(target: Target, problem: Problem) -> Checked:
    return Checked(target.shown, problems=(problem,))
