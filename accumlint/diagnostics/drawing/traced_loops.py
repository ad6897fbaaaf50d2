"""Shows the training loops of a file: each as a timeline, under each condition, with what the rules say of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from accumlint.check import Shared
from accumlint.common.big_trees import room_to_recurse
from accumlint.common.frozen import frozen
from accumlint.common.problem import Misuse
from accumlint.diagnostics import suppression
from accumlint.diagnostics.report_builder import mark_of
from accumlint.diagnostics.results.diagram import Found, Loop
from accumlint.diagnostics.results.report import Mark
from accumlint.diagnostics.suppression_filter import is_confident_enough, selection
from accumlint.files.inputs import document as texts
from accumlint.files.inputs.discovery import Target
from accumlint.files.inputs.document import Text
from accumlint.files.source import UndecodableSource

if TYPE_CHECKING:
    from accumlint.reading.ir import Node
    from accumlint.reading.program import Program
    from accumlint.rule import Finding
    from accumlint.tracing.trace import Trace

# Lines shown around those on which something happens, and the longest stretch in between that is not left out.
_AROUND, _BETWEEN = 2, 8


@frozen
class TracedLoops:
    """The loops of a file, and those that could not be traced, as line and reason."""

    loops: tuple[tuple[Loop, ...], ...]
    untraced: tuple[tuple[int, str], ...]


def show(data: bytes, target: Target, project: Shared | None = None) -> TracedLoops:
    """Every loop in the bytes of a file with its conditions, those in which rules find something first.

    Raises:
        Misuse: when the file cannot be read.
    """
    from accumlint import reading, tracing

    shared = project or Shared()
    try:
        text = texts.read(data, target.is_notebook)
        if text is None:
            raise Misuse(f"{target.shown}: is a notebook in another language than Python")
        with room_to_recurse():
            program = reading.read(text.text, target.file, shared.project)
            exploration = tracing.explore(program, shared.project)
    except (UndecodableSource, reading.UnreadableSource) as problem:
        line = f":{problem.line}" if problem.line else ""
        raise Misuse(f"{target.shown}{line}: {problem.message}") from None
    except RecursionError:
        raise Misuse(f"{target.shown}: nested too deeply to be read") from None
    reader = _Reader(program, text, target, exploration.leads)
    return TracedLoops(
        tuple(tuple(reader.loops(traces)) for traces in exploration.traces),
        tuple((text.line(program.place(n).line), reason) for n, reason in exploration.untraced),
    )


@frozen
class _Reader:
    """What is shown of one file; `leads` tell which node of it led to what happened in other files."""

    program: Program
    text: Text
    target: Target
    leads: Mapping[Node, Node]

    def loops(self, traces: Sequence[Trace]) -> list[Loop]:
        """A loop under each of its conditions."""
        found = [list(self._found(trace)) for trace in traces]
        order = sorted(range(len(traces)), key=lambda index: not found[index])
        return [
            self.loop(traces[index], found[index], path, len(traces))
            for path, index in enumerate(order, 1)
        ]

    def _found(self, trace: Trace) -> Iterator[Finding]:
        """What the selected rules say about a path, each finding once."""
        ignores = suppression.read(self.text.text)
        seen: set[tuple[str, object]] = set()
        for rule in selection(self.target.settings).rules:
            if rule.exceptional != trace.exceptional:
                continue
            for finding in rule.findings(trace):
                key = rule.code, finding.node.at
                line = self.program.spot(finding.node).place.line
                if key not in seen and is_confident_enough(finding, self.target.settings):
                    seen.add(key)
                    if not ignores.silencing(rule.code, rule.name, line):
                        yield finding

    def loop(self, trace: Trace, found: Sequence[Finding], path: int = 1, paths: int = 1) -> Loop:
        """A loop under one condition, with what was found in it."""
        from accumlint.diagnostics import diagram_builder, narrate

        codes: dict[Node, tuple[str, ...]] = {}
        for finding in found:
            codes[finding.node] = (*codes.get(finding.node, ()), finding.rule.code)

        def place(node: Node, message: str) -> Mark:
            return mark_of(node, message, self.program, self.text, self.target)

        timeline = diagram_builder.timeline(trace.main, place, codes)
        lines = sorted({call.line for call in timeline.calls if call.line})
        return Loop(
            shown=self.target.shown,
            name=self._function(trace),
            where=f"{lines[0]}-{lines[-1]}" if lines else "",
            setting=_setting(trace),
            timeline=timeline,
            condition=narrate.flags(trace.assumptions),
            path=path,
            paths=paths,
            partly=tuple(dict.fromkeys(self._partly(trace))),
            found=tuple(self._summary(finding) for finding in found),
            rows=tuple(self._rows(lines)),
            leading=frozenset(self._leading(trace)),
        )

    def _leading(self, trace: Trace) -> Iterator[int]:
        """The lines that lead to what happens in other files."""
        for event in trace.main.events:
            if event.node in self.leads:
                yield self.text.line(self.program.place(self.leads[event.node]).line)

    def _function(self, trace: Trace) -> str:
        """The function that holds the loop, "" for the file itself, wherever the run started."""
        from accumlint.tracing import trace as t

        function = trace.entry.function
        if function:
            return f"{function.owner}.{function.name}" if function.owner else function.name
        # An epoch ends at its loop; a backward call may stand in a function that the loop calls.
        events = (*trace.main.of(t.EpochEnd), *trace.main.of(t.Backward), *trace.main.of(t.Step))
        own = (event.node for event in events if self.program.source.holds(event.node.at))
        node = next(own, None)
        return self.program.surroundings(node).scope if node else ""

    def _summary(self, finding: Finding) -> Found:
        mark = mark_of(finding.node, "", self.program, self.text, self.target)
        return Found(
            finding.rule.code,
            finding.rule.name,
            finding.severity.value,
            finding.message,
            mark.row,
            0 if mark.elsewhere else mark.place.line,
        )

    def _partly(self, trace: Trace) -> Iterator[str]:
        """Why not all of a loop was read."""
        from accumlint.tracing import trace as t

        if trace.main.stopped:
            yield f"the run ended early: {trace.main.stopped}"
        for unread in trace.main.unread:
            if unread.inside:
                line = self.program.spot(unread.node).place.line
                received = " and ".join(f"the {role}" for role in sorted(unread.received))
                yield f"`{unread.callee}` at line {line} could not be followed; it receives {received}"
        if not trace.main.windows:
            yield "no optimizer step was reached"
        if any(b.lost for b in trace.main.of(t.Backward)):
            yield "the loss went through something that could not be followed"

    def _rows(self, lines: Sequence[int]) -> Iterator[tuple[int, str]]:
        """The source lines around those on which something happens; in a notebook they have other numbers."""
        if self.text.book or not lines:
            return
        rows = self.text.rows
        wanted: set[int] = set()
        for line, after in zip(lines, [*lines[1:], lines[-1]], strict=True):
            wanted.update(range(max(line - _AROUND, 1), min(line + _AROUND, len(rows)) + 1))
            if after - line <= _BETWEEN:
                wanted.update(range(line, after))
        while wanted and not rows[max(wanted) - 1].strip():
            wanted.remove(max(wanted))
        while wanted and not rows[min(wanted) - 1].strip():
            wanted.remove(min(wanted))
        yield from ((line, rows[line - 1]) for line in sorted(wanted))


def illustrate(finding: Finding, program: Program, text: Text, target: Target) -> Loop | None:
    """The loop that a finding was seen in; None for one that needed no run."""
    if finding.trace is None:
        return None
    return _Reader(program, text, target, {}).loop(finding.trace, [finding])


def _setting(trace: Trace) -> str:
    """What a loop was run with: "4 accumulation steps in the place of 8, loaders of 10 micro-batches"."""
    run = trace.main
    loader = f"loaders of {run.length} micro-batches"
    if not run.asked:
        return loader
    place = f" in the place of {run.written}" if run.written not in (None, run.steps) else ""
    return f"{run.steps} accumulation steps{place}, {loader}"


def selected(shown: TracedLoops, target: Target, line: int) -> Sequence[Sequence[Loop]]:
    """The loops of a file that a line belongs to, all of them for line 0.

    Raises:
        Misuse: when there are none.
    """
    groups = at(shown.loops, line) if line else list(shown.loops)
    if not groups:
        raise Misuse(_nothing(target, line, shown))
    return groups


def at(loops: Iterable[Sequence[Loop]], line: int) -> list[Sequence[Loop]]:
    """The loops that a line belongs to: those in which something happens there, else those around it."""
    held = list(loops)
    on = [paths for paths in held if any(line in loop.lines | loop.leading for loop in paths)]
    around = [
        paths
        for paths in held
        if any(loop.lines and min(loop.lines) <= line <= max(loop.lines) for loop in paths)
    ]
    return on or around


def _nothing(target: Target, line: int, shown: TracedLoops) -> str:
    if not shown.loops:
        for number, reason in shown.untraced[:1]:
            return f"{target.shown}:{number}: the loop could not be traced: {reason}"
        return f"{target.shown}: holds no training loop that can be read"
    where = ", ".join(paths[0].where for paths in shown.loops)
    return f"{target.shown}:{line}: no training loop there; the training loops are at lines {where}"
