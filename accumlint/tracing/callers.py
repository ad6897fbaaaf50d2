"""Reads what a file leaves open through the files of its project that use it.

A helper goes backward for a loop that stands in another file, a trainer is given its optimizer by a script, a function
its model: the runs that start there come through the file, and show what its own cannot.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from typing import TypeAlias

from accumlint import reading
from accumlint.common.memo import SECONDS
from accumlint.files import prefilter
from accumlint.reading import ir as p
from accumlint.reading.modules import Module
from accumlint.reading.neighbours import importers
from accumlint.reading.program import Program
from accumlint.reading.project import Project
from accumlint.reading.roles import closed
from accumlint.tracing import exploration as alone
from accumlint.tracing import trace as t
from accumlint.tracing.budget import CALLERS, STEPS_OF_CALLER, Budget
from accumlint.tracing.exploration import Exploration

# How many files away from the checked one its callers are looked for, and how many of them are run.
_FARTHEST = 2
_MOST = 4
_WORD = re.compile(r"\w+")
_Handed: TypeAlias = Mapping[p.Call, frozenset[object]]


def explore(program: Program, project: Project, seconds: float = SECONDS) -> Exploration:
    """Traces the training loops of `program`, a file of `project`, as far as its budget goes.

    Traces from the files that use it take the place of its own where they go through the same backward calls: of those
    that its own runs left without a step, and of those in functions that are given what they train.
    """
    budget = Budget(seconds=seconds)
    # What leads back to the file meets its own nodes, whichever files were read before.
    program.keep()
    found = alone.explore(program, project, budget)
    unfinished = _unfinished(program, found)
    finished = _given(found) - unfinished
    left = unfinished | finished
    if not left:
        return found
    loops, handed = _has_loop(program), _handed(program, left)
    cut = False
    for caller in _callers(program, left, project):
        if budget.is_over(STEPS_OF_CALLER):
            cut = True
            break
        further = _of_caller(caller, project)
        budget.spend(further.steps)
        cut |= bool(further.stopped)
        through = (_through(traces, left, handed, program) for traces in further.traces)
        added = tuple(filter(None, through))
        if not loops and prefilter.may_train(caller.text.encode()):
            # The defect is told where the loop stands, unless that file is never read for its sake.
            added = tuple(
                tuple(replace(one, told=bool(_passed(one, handed) & finished)) for one in traces)
                for traces in added
            )
        if not added:
            continue
        program.callers.append(_program(caller, project))
        whole = (one for traces in added for one in traces if not _is_cut(one.main))
        reached = set[object]().union(*(_passed(one, handed) for one in whole))
        found = _with(found, further.steps, added, reached, handed, program)
        left -= reached
        if not left:
            break
    return replace(found, stopped=found.stopped or CALLERS) if cut and left else found


def _with(
    found: Exploration,
    steps: int,
    added: tuple[tuple[t.Trace, ...], ...],
    reached: Set[object],
    handed: _Handed,
    program: Program,
) -> Exploration:
    """What a file's own runs show with the traces that a caller adds, after so many steps.

    The callers' runs take the place of those all of whose backward calls they go through, since they know the values
    that are passed.
    """
    kept = (ts for ts in found.traces if any(alone.goes_backward(x) - reached for x in ts))
    leads = (lead for ts in added for trace in ts for lead in _leads(trace, handed, program))
    return replace(
        found,
        traces=(*kept, *added),
        untraced=tuple((n, why) for n, why in found.untraced if n.at not in reached),
        steps=found.steps + steps,
        leads={**found.leads, **dict(leads)},
        alone=found.alone or found,
    )


def _unfinished(program: Program, found: Exploration) -> Set[object]:
    """The backward calls of a file from which no run of its own comes to a step."""
    whole = {
        e.node.at
        for traces in found.traces
        for trace in traces
        if trace.main.windows
        for e in trace.main.of(t.Backward)
        if not e.lost
    }
    return {
        node.at
        for node in program.of(p.Call)
        if isinstance(node.func, p.Attr)
        and node.func.name in ("backward", "manual_backward")
        and node.at not in whole
    }


def _given(found: Exploration) -> Set[object]:
    """The backward calls whose runs began at a function, with parameters that nothing is known of."""
    return {
        at
        for traces in found.traces
        for trace in traces
        if trace.entry.function is not None and trace.entry.driven is None
        for at in alone.goes_backward(trace)
    }


def _has_loop(program: Program) -> bool:
    """True where a loop of the file goes backward, by itself or by way of the file's functions."""
    callers: dict[str, list[str]] = {}
    for function in program.functions:
        for name in function.calls:
            callers.setdefault(name.rpartition(".")[2], []).append(function.name)
    going = closed(callers, ("backward", "manual_backward"))
    return any(
        isinstance(inner, p.Call) and p.dotted(inner.func).rpartition(".")[2] in going
        for loop in (*program.of(p.For), *program.of(p.While))
        for inner in p.walk(loop.body)
    )


def _callers(program: Program, left: Set[object], project: Project) -> Iterator[Module]:
    """The files that use what holds some backward calls of a file, the nearest first.

    A package's face is looked through.
    """
    holding = {
        statement.name
        for statement in program.body
        if isinstance(statement, p.Function | p.Class)
        and any(node.at in left for node in p.walk((statement,)))
    }
    seen, ring, run = {program.path}, [(program.path, holding)], 0
    for _ in range(_FARTHEST):
        waiting, ring = ring, list[tuple[str, set[str]]]()
        while waiting:
            path, used = waiting.pop(0)
            for module in importers(path, project):
                if module.path in seen:
                    continue
                if os.path.basename(module.path) == "__init__.py":
                    seen.add(module.path)
                    waiting.append((module.path, used))
                    continue
                if not used & set(_WORD.findall(module.text)):
                    continue
                seen.add(module.path)
                using = {name for name, b in module.outline.blocks.items() if used & b.names}
                ring.append((module.path, using))
                yield module
                run += 1
                if run == _MOST:
                    return


def _program(module: Module, project: Project) -> Program:
    return project.memory.once(
        ("program", module.path),
        lambda: reading.read(module.text, module.path, project),
        Program(module.source, ()),
    )


def _of_caller(module: Module, project: Project) -> Exploration:
    """What the runs of a caller show, whatever led to it."""
    return project.memory.once(
        ("explored", module.path),
        lambda: alone.explore(
            _program(module, project), project, Budget(STEPS_OF_CALLER), by_calls=True
        ),
        alone.NOTHING,
    )


def _through(
    traces: tuple[t.Trace, ...], left: Set[object], handed: _Handed, program: Program
) -> tuple[t.Trace, ...]:
    """The paths that go through one of some backward calls of a program, and come to a step."""
    return tuple(
        replace(trace, program=program)
        for trace in traces
        if trace.main.windows and _passed(trace, handed) & left
    )


def _handed(program: Program, left: Set[object]) -> _Handed:
    """The calls among some backward calls that hand the loss to an object, each with the nodes of its function."""
    calls = [n for n in program.of(p.Call) if n.at in left and n.positional(0) is not None]
    around = {call: program.function_around(call) for call in calls}
    return {
        call: frozenset(n.at for n in p.walk((function,)))
        for call, function in around.items()
        if function is not None
    }


def _passed(trace: t.Trace, handed: _Handed) -> set[object]:
    """The places of the backward calls that a trace comes to, and of those that hand their loss to an object."""
    found = alone.goes_backward(trace)
    met = {event.node.at for run in trace.runs for event in run.events} if handed else set[object]()
    return found | {call.at for call, inside in handed.items() if not met.isdisjoint(inside)}


def _leads(trace: t.Trace, handed: _Handed, program: Program) -> Iterator[tuple[p.Node, p.Node]]:
    """The backward passes in other files, each with the call that hands the loss over."""
    passed = _passed(trace, handed)
    call = next((call for call in handed if call.at in passed), None)
    for event in trace.main.of(t.Backward):
        if call is not None and not program.source.holds(event.node.at):
            yield event.node, call


def _is_cut(run: t.Run) -> bool:
    """True for a run that did not come to its end, however the program goes on: it takes no other's place."""
    return bool(run.stopped) and not run.stopped.startswith("raises ")
