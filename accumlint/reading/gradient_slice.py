"""Which statements can reach the gradient: the slice of a program that is worth executing.

Names are taken over the whole file, whatever scope they stand in: coarse, quick, and never too small.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from itertools import chain

from accumlint.common.frozen import frozen
from accumlint.reading import ir as p
from accumlint.reading import usage
from accumlint.reading.roles import Roles, closed, infer
from accumlint.reading.statement_facts import CALLED_ITSELF, Fact, Facts

_COMPOUND = (p.If, p.For, p.While, p.With, p.Try)


@frozen
class Relevance:
    """`kept` are the statements to execute, `eventful` those that hold an event, directly or through a call.

    `deciding` are those with an event that changes a gradient or how it is reduced: their guards are worth trying both
    ways. `backwards` are those that hold a backward. `reaching` and `reaching_backward` are the names of the functions
    that do. `counters` are names that are counted up somewhere; `roles` tells what names are; `bounds` are names that
    end a range; `marks` tells whether some elements are set to -1, as labels are that no loss shall see.
    """

    kept: frozenset[p.Node]
    eventful: frozenset[p.Node]
    deciding: frozenset[p.Node]
    backwards: frozenset[p.Node]
    stepping: frozenset[p.Node]
    reaching: frozenset[str]
    reaching_backward: frozenset[str]
    reaching_step: frozenset[str]
    reaching_strong: frozenset[str]
    counters: frozenset[str]
    roles: Roles
    accumulates: bool
    ignores: bool
    reports: frozenset[p.Node]
    bounds: frozenset[str]
    marks: bool

    def joined(self, other: Relevance) -> Relevance:
        """Both slices as one; what names are used as stays this file's own."""
        return replace(
            self.executing(other),
            backwards=self.backwards | other.backwards,
            stepping=self.stepping | other.stepping,
            reaching=self.reaching | other.reaching,
            reaching_backward=self.reaching_backward | other.reaching_backward,
            reaching_strong=self.reaching_strong | other.reaching_strong,
            accumulates=self.accumulates or other.accumulates,
            ignores=self.ignores or other.ignores,
        )

    def executing(self, other: Relevance) -> Relevance:
        """This slice, and the statements of another that only makes values."""
        return replace(
            self,
            kept=self.kept | other.kept,
            eventful=self.eventful | other.eventful,
            deciding=self.deciding | other.deciding,
            reports=self.reports | other.reports,
        )

    def used_like(self, other: Relevance) -> Relevance:
        """This slice, with what names are used as in another part of the same file."""
        return replace(
            self,
            counters=self.counters | other.counters,
            roles=self.roles.joined(other.roles),
            bounds=self.bounds | other.bounds,
        )


@frozen
class Reach:
    """What a file's imports lead to: callees, as `called` shows them, that hold an event, a strong one, a backward …"""

    event: frozenset[str] = frozenset()
    strong: frozenset[str] = frozenset()
    backward: frozenset[str] = frozenset()
    step: frozenset[str] = frozenset()

    def joined(self, other: Reach) -> Reach:
        """What either leads to."""
        return Reach(
            self.event | other.event,
            self.strong | other.strong,
            self.backward | other.backward,
            self.step | other.step,
        )


NOWHERE = Reach()


def relevance(
    body: tuple[p.Stmt, ...],
    reach: Reach = NOWHERE,
    wanted: frozenset[str] = frozenset(),
    driven: Container[p.Function | None] = (),
) -> Relevance:
    """The slice of a file that reaches events, and what its names are used as.

    `reach` is what its imports lead to; `wanted` are functions and classes of it that another file calls, so that what
    they return matters too. What `driven` functions return goes backward.
    """
    roles = infer(body, reach.backward, reach.step)
    facts = Facts(roles)
    facts.collect(body)
    _mark_reads_of_totals(facts)
    reaching, eventful = _reaching(facts, lambda f: f.event, reach.event)
    reaching_backward, backwards = _reaching(facts, lambda f: f.backward, reach.backward)
    reaching_step, stepping = _reaching(facts, lambda f: f.step, reach.step)
    reaching_strong, deciding = _reaching(facts, lambda f: f.strong, reach.strong)
    for fact in _driven(facts, driven):
        eventful.update(fact.path)
        deciding.update(fact.path)
        if fact.function in driven and isinstance(fact.statement, p.Return):
            backwards.update(fact.path)
    reports: set[p.Node] = set()
    nodes = tuple(p.walk(body))
    for fact in facts:
        if fact.logged:
            # Beside the training, in an evaluation say, nothing is to be learnt from it.
            fact.report |= not backwards.isdisjoint(fact.parents)
        if fact.report and fact.statement not in eventful:
            # Who shows the number does not matter: only the number is worked out.
            fact.reads -= fact.callee_reads
            fact.calls -= fact.callee_reads
            fact.callees.clear()
            reports.update(fact.path)
    kept = _kept(facts, eventful | reports, wanted)
    return Relevance(
        frozenset(kept),
        frozenset(eventful),
        frozenset(deciding),
        frozenset(backwards),
        frozenset(stepping),
        frozenset(reaching),
        frozenset(reaching_backward),
        frozenset(reaching_step),
        frozenset(reaching_strong),
        frozenset(_counters(facts)),
        roles,
        *usage.receivers(nodes, roles),
        frozenset(reports),
        frozenset(usage.bounds(nodes)),
        usage.marks(nodes, roles),
    )


def _driven(facts: Facts, driven: Container[p.Function | None]) -> Iterator[Fact]:
    """What `driven` functions return, and what makes a loss of it, in the functions that they call, too."""
    by_function: dict[p.Function, list[Fact]] = {}
    for fact in facts:
        if fact.function is not None:
            by_function.setdefault(fact.function, []).append(fact)
    waiting = [function for function in by_function if function in driven]
    for function in waiting:
        inside = by_function[function]
        ends = [fact for fact in inside if isinstance(fact.statement, p.Return)]
        read = set[str]().union(*(fact.reads for fact in ends))
        losses = {name for name in read if facts.roles.is_loss(name)}
        made = [
            fact
            for fact in inside
            if isinstance(fact.statement, p.Assign | p.Augment) and fact.writes & (losses or read)
        ]
        called = set[str]().union(*(fact.callees for fact in (*ends, *made)))
        waiting += (f for f in by_function if key(f) in called and f not in waiting)
        yield from (*ends, *made)


def _mark_reads_of_totals(facts: Facts) -> None:
    """A running total that is divided is read: these statements say what becomes of it."""
    totals = {
        name
        for fact in facts
        if fact.event and isinstance(fact.statement, p.Augment | p.Assign)
        for name in fact.writes
        if facts.roles.shows_loss(name) or "total" in name.lower()
    }
    for fact in facts:
        if not fact.event and fact.reads & totals and not isinstance(fact.statement, _COMPOUND):
            nodes = p.walk_expr(fact.statement)
            divided = (n.left for n in nodes if isinstance(n, p.Binary) and n.op == "/")
            parts = (part for left in divided for part in p.walk_expr(left))
            fact.event = any(
                isinstance(n, p.Name | p.Attr) and usage.last_name(n) in totals for n in parts
            )


def _reaching(
    facts: list[Fact], holds: Callable[[Fact], bool], imported: frozenset[str]
) -> tuple[set[str], set[p.Node]]:
    """The names of functions and classes that hold such a statement or call one that does; all that leads there."""
    callers: dict[str, set[str]] = {}
    found = set(imported)
    for fact in facts:
        names = _callable_names(fact)
        if not names:
            continue
        for callee in fact.callees:
            callers.setdefault(callee, set()).update(names)
        if holds(fact):
            found |= names
    found = closed(callers, found)
    leading = (fact.path for fact in facts if holds(fact) or fact.callees & found)
    return found, set(chain.from_iterable(leading))


def _callable_names(fact: Fact) -> set[str]:
    if fact.function is None:
        return set()
    if fact.function.name in ("__init__", "__call__", "__enter__", "__exit__", "__iter__"):
        # A call of an object's own __call__ shows no name that leads to it; its construction does.
        return {fact.owner, CALLED_ITSELF} if fact.function.name == "__call__" else {fact.owner}
    return {key(fact.function)} - {"<lambda>"}


def key(function: p.Function) -> str:
    """What a call must look like to mean this function: `name` for a plain one, `.name` for a method."""
    return f".{function.name}" if function.owner else function.name


# What an object does without being asked by name.
_CALLED_OF_OBJECTS = ("forward", "__call__", "__iter__", "__init__", "__len__", "__enter__")


def _kept(facts: list[Fact], eventful: set[p.Node], wanted: frozenset[str]) -> set[p.Node]:
    kept, needed = set[p.Node](), set[str]()
    writers: dict[str, list[Fact]] = {}
    returns: dict[str, list[Fact]] = {}
    callers: dict[str, list[Fact]] = {}
    by_statement = {fact.statement: fact for fact in facts}
    classes = {fact.owner for fact in facts if fact.owner}
    for fact in facts:
        for callee in fact.callees:
            callers.setdefault(callee, []).append(fact)
        for name in fact.writes:
            writers.setdefault(name, []).append(fact)
        if fact.function is not None and isinstance(fact.statement, p.Return | p.Do | p.Raise):
            returns.setdefault(fact.function.name, []).append(fact)
    waiting = [
        fact
        for fact in facts
        if fact.statement in eventful or _is_requested(fact, wanted) or _leaves(fact, eventful)
    ]
    while waiting:
        fact = waiting.pop()
        if fact.statement in kept:
            continue
        kept.add(fact.statement)
        if fact.mutates and fact.function is not None:
            # What a function changes in its arguments is changed by whoever calls it.
            waiting += callers.get(key(fact.function), ())
        # A lambda gives back what stands in the statement that writes it.
        around = (*fact.parents, *(s for function in fact.lambdas for s in function.body))
        waiting += (by_statement[s] for s in around if s in by_statement)
        for name in (fact.reads | fact.calls) - needed:
            needed.add(name)
            waiting += writers.get(name, ())
            waiting += (f for f in returns.get(name, ()) if _gives(f) or _refuses(f))
            if name in classes:
                asked = (f for method in _CALLED_OF_OBJECTS for f in returns.get(method, ()))
                waiting += (f for f in asked if f.owner == name and _gives(f))
    return kept


def _is_requested(fact: Fact, wanted: frozenset[str]) -> bool:
    """True for what a wanted function gives back, and for what a wanted class's objects hold."""
    function = fact.function
    if function is None or (function.name not in wanted and fact.owner not in wanted):
        return False
    if _gives(fact):
        return True
    if function.name == "__init__":
        return isinstance(fact.statement, p.Assign | p.Do)
    # What a method sets (`register_loader`) takes the place of what the constructor left empty.
    return (
        fact.owner in wanted
        and isinstance(fact.statement, p.Assign)
        and any(p.dotted(target).startswith("self.") for target in fact.statement.targets)
    )


def _refuses(fact: Fact) -> bool:
    """True for the end of a choice that knows no further answer; what only says that others shall answer is none."""
    raised = fact.statement
    return isinstance(raised, p.Raise) and bool(fact.parents) and "NotImpl" not in raised.exception


def _gives(fact: Fact) -> bool:
    """True for what returns or yields."""
    statement = fact.statement
    return isinstance(statement, p.Return) or any(
        isinstance(n, p.Yield) for n in p.walk_expr(statement)
    )


def _leaves(fact: Fact, eventful: set[p.Node]) -> bool:
    """True for a jump out of a statement or a function that holds events."""
    body = fact.function.body if fact.function is not None else ()
    is_jump = isinstance(fact.statement, p.Jump | p.Return | p.Raise)
    return is_jump and not eventful.isdisjoint((*fact.parents, *body))


def _counters(facts: list[Fact]) -> set[str]:
    """The names that are counted up, with a dot in front where they are attributes."""
    found: set[str] = set()
    for fact in facts:
        match fact.statement:
            case p.Augment(target=target, op="+", value=p.Const(value=int())):
                pass
            case p.Assign(
                targets=[target], value=p.Binary(op="+", left=left, right=p.Const(value=int()))
            ) if p.dotted(target) == p.dotted(left):
                pass
            case _:
                continue
        name = usage.last_name(target)
        found |= {name, f".{name}"} if isinstance(target, p.Attr) else {name}
    return found
