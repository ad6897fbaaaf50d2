"""Tells of each backward call of a file whether its training loop was read whole, partly or not, and why."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

from accumlint.common.frozen import frozen
from accumlint.reading import names
from accumlint.reading.ir import Attr, Call, Class, For, Node, While, dotted, walk
from accumlint.reading.program import Program
from accumlint.tracing import Exploration
from accumlint.tracing.budget import CALLERS, LATE, SPENT
from accumlint.tracing.entry_points import is_hollow
from accumlint.tracing.trace import Backward, Run, Step

WHOLE, PARTLY, NOT = "whole", "partly", "not"
# What calls `backward` under these names are: a tensor's or a framework's, and Lightning's.
_BACKWARDS = ("backward", "manual_backward")
_ENDED = {
    LATE: LATE,
    SPENT: "following this file takes too many steps",
    CALLERS: "following the files that use this one takes too many steps",
    "too many steps": "the run takes too many steps",
    "too many events": "the run has too many events",
    "too many steps in other files": "the run takes too many steps in other files",
    "calls nested too deeply": "its calls are nested too deeply",
    "nested too deeply": "its calls are nested too deeply",
}
# The ends that a budget sets.
_CUT = (LATE, SPENT, CALLERS, "too many steps", "too many events", "too many steps in other files")


@frozen
class Site:
    """A backward call; `reasons` tell what keeps it from being read whole."""

    node: Node
    state: str
    reasons: tuple[str, ...] = ()


def coverage(program: Program, exploration: Exploration) -> list[Site]:
    """Every backward call of a file, in the order of its lines.

    It is read whole where some trace goes through it and reaches a step, nothing of its loss is lost, the run is not
    cut short, and every call that could matter was followed; of several traces the one that says most counts.
    """
    best = _best(program, exploration)
    calls = {node.at: node for node in _sites(program, best)}
    found = {
        **{at: Site(node, NOT, (_unreached(node, program, exploration),)) for at, node in calls.items()},
        **{
            at: Site(node, PARTLY if reasons else WHOLE, reasons)
            for at, (node, reasons) in best.items()
        },
    }  # fmt: skip
    return sorted(found.values(), key=lambda site: program.place(site.node).line)


def unjudged_steps(program: Program, exploration: Exploration) -> list[Call]:
    """The steps of optimizers in loops to which no trace leads, in a file that goes nowhere backward by itself.

    A loop whose class leaves a method to its subclasses is judged with these.
    """
    if _best(program, exploration) or any(True for _ in _sites(program, ())):
        return []
    reached = {
        exploration.leads.get(event.node, event.node).at
        for traces in exploration.traces
        for trace in traces
        for event in (*trace.main.of(Step), *trace.main.of(Backward))
    }
    return [
        call
        for call in program.calls.get("step", ())
        if isinstance(call.func, Attr)
        and "optimizer" in (program.roles.of(base := dotted(call.func.base)), names.role_of(base))
        and call.at not in reached
        and any(isinstance(node, For | While) for node in program.above(call))
        and not any(
            isinstance(node, Class) and any(map(is_hollow, node.methods.values()))
            for node in program.above(call)
        )
    ]


def cut(exploration: Exploration) -> str:
    """Which budget ended the work on a file, or the first run from one of its entries, "" where none did."""
    firsts = [traces[0].main for traces in exploration.traces] + [
        run for _, run in exploration.idle
    ]
    ends = (exploration.stopped, *(run.stopped for run in firsts))
    reason = next((end for end in ends if end in _CUT), "")
    return _ENDED.get(reason, reason)


def _best(program: Program, exploration: Exploration) -> dict[object, tuple[Node, tuple[str, ...]]]:
    """What kept each backward that some trace reached from being read whole, on the path that says most."""
    best: dict[object, tuple[Node, tuple[str, ...]]] = {}
    for trace in (trace for traces in exploration.traces for trace in traces):
        run = trace.main
        around = tuple(_around(run, program))
        for backward in run.of(Backward):
            node = _written(backward.node, program, exploration)
            at = node.at
            lost = ("the loss went through an operation that is not modelled",)
            reasons = around + (lost if backward.lost else ())
            known = best.get(at)
            if known is None or len(reasons) < len(known[1]):
                best[at] = node, reasons
    return {at: found for at, found in best.items() if program.source.holds(found[0].at)}


def _written(node: Node, program: Program, exploration: Exploration) -> Node:
    """The backward call of the file that leads to one in another file, if that is where it stands."""
    lead = exploration.leads.get(node, node)
    called = isinstance(lead, Call) and isinstance(lead.func, Attr) and lead.func.name in _BACKWARDS
    return lead if called else node


def _around(run: Run, program: Program) -> Iterator[str]:
    """What keeps a whole run from being complete."""
    if run.stopped:
        yield _ended(run, program)
    unread = {u.node: u for u in run.unread if u.inside}
    for call in unread.values():
        received = " and ".join(f"the {role}" for role in sorted(call.received))
        where = _where(call.node, program)
        yield f"`{call.callee}()` {where} receives {received} and could not be followed"
    if not run.windows:
        yield "no optimizer step is reached"
    elif max(len(w.backwarded) for w in run.windows) <= 1 and (
        steps := next(filter(names.is_steps, sorted(program.words)), "")
    ):
        yield f"every window has one micro-batch, although the file names `{steps}`"


def _ended(run: Run, program: Program) -> str:
    kind = run.stopped.removeprefix("raises ")
    if kind == run.stopped:
        return _ENDED.get(kind, kind)
    where = f" {_where(run.raised, program)}" if run.raised else ""
    return f"the run raises {kind}{where}"


def _where(node: Node, program: Program) -> str:
    """The line of a node, with the name of its file where that is another one."""
    spot = program.spot(node)
    if spot.source is program.source:
        return f"at line {spot.place.line}"
    return f"at {os.path.basename(spot.source.path)}:{spot.place.line}"


def _sites(program: Program, reached: Collection[object]) -> Iterator[Call]:
    """The calls that take a loss backward."""
    methods = [f for f in program.functions if f.name in _BACKWARDS and f.owner]
    # A call of such a method of the file's is no backward pass: the one inside it is.
    entered = any(node.at in reached for method in methods for node in walk(method.body))
    for node in program.of(Call):
        if isinstance(node.func, Attr) and node.func.name in _BACKWARDS:
            base = dotted(node.func.base)
            leads = bool(methods) and (base in ("self", "super()") or (entered and node.args))
            if not leads and not _differentiates(node, program):
                yield node


def _differentiates(node: Call, program: Program) -> bool:
    """True in an autograd function, which goes backward for whoever uses it."""
    classes = (n for n in program.above(node) if isinstance(n, Class))
    return any(base.rpartition(".")[2] == "Function" for cls in classes for base in cls.bases)


def _unreached(node: Node, program: Program, exploration: Exploration) -> str:
    """Why no trace goes through a backward call."""
    if exploration.stopped:
        return _ENDED.get(exploration.stopped, exploration.stopped)
    above = {*program.above(node)}
    ended = [(entry in above or entry is None, run) for entry, run in exploration.idle]
    ended += [(t.entry.function in above, t.main) for ts in exploration.traces for t in ts[:1]]
    for own, run in ended:
        if own and run.stopped:
            return f"{_ended(run, program)} before it gets here"
    return "no run of a training loop gets here"
