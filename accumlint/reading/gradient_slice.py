"""Which statements can reach the gradient: the slice of a program that is worth executing.

Names are taken over the whole file, whatever scope they stand in: coarse, quick, and never too small.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

from accumlint.common.frozen import frozen
from accumlint.reading import frameworks, names, usage
from accumlint.reading import ir as p
from accumlint.reading.roles import Roles, closed, infer

_STATEMENTS = (
    p.Assign, p.Augment, p.Do, p.If, p.For, p.While, p.With, p.Try, p.Return, p.Jump, p.Raise, p.Delete, p.Scope,
    p.Import, p.Function, p.Class,
)  # fmt: skip
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


@dataclass(eq=False)
class _Fact:
    """One statement's own expressions (its header, for a compound one)."""

    statement: p.Node
    parents: tuple[p.Node, ...]
    function: p.Function | None
    owner: str
    reads: set[str] = field(default_factory=set[str])
    writes: set[str] = field(default_factory=set[str])
    calls: set[str] = field(default_factory=set[str])
    callees: set[str] = field(default_factory=set[str])
    mutates: bool = False
    strong: bool = False
    event: bool = False
    backward: bool = False
    step: bool = False
    report: bool = False
    said: bool = False
    callee_reads: set[str] = field(default_factory=set[str])
    lambdas: list[p.Function] = field(default_factory=list[p.Function])

    @property
    def path(self) -> tuple[p.Node, ...]:
        """The statement with all that it stands in."""
        return (self.statement, *self.parents)


_BACKWARD_NAMES = frozenset({"backward", "manual_backward", "train_batch", "backward_step"})
_STEP_NAMES = frozenset({"step", "optimizer_step", "step_and_update_lr", "train_batch"})


class _Facts(list[_Fact]):
    """The facts of all statements, in source order; `roles` are what the names in them are."""

    def __init__(self, roles: Roles) -> None:
        super().__init__()
        self.roles = roles


_FILLING = frozenset({"append", "extend", "insert", "pop", "clear"})


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
    facts = _Facts(roles)
    _collect(body, (), None, "", facts)
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
        if fact.said:
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


def _driven(facts: _Facts, driven: Container[p.Function | None]) -> Iterator[_Fact]:
    """What `driven` functions return, and what makes a loss of it, in the functions that they call, too."""
    by_function: dict[p.Function, list[_Fact]] = {}
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


def _mark_reads_of_totals(facts: _Facts) -> None:
    """A running total that is divided is read: these statements say what becomes of it."""
    totals = {
        name
        for fact in facts
        if fact.event and isinstance(fact.statement, p.Augment | p.Assign)
        for name in fact.writes
        if facts.roles.shows_loss(name) or "total" in name.lower()
    }
    if not totals:
        return
    for fact in facts:
        if fact.event or not fact.reads & totals:
            continue
        for node in (
            p.walk_expr(fact.statement) if not isinstance(fact.statement, _COMPOUND) else ()
        ):
            if isinstance(node, p.Binary) and node.op == "/":
                fact.event |= any(
                    usage.last_name(n) in totals
                    for n in p.walk_expr(node.left)
                    if isinstance(n, p.Name | p.Attr)
                )


def _collect(
    block: tuple[p.Stmt, ...],
    parents: tuple[p.Node, ...],
    function: p.Function | None,
    owner: str,
    facts: _Facts,
) -> None:
    for statement in block:
        if isinstance(statement, p.Class):
            _collect(statement.body, (), None, statement.name, facts)
            continue
        if isinstance(statement, p.Function):
            if statement.name == "backward" and any(q.name == "ctx" for q in statement.params):
                # An autograd function's own backward is part of a gradient, not of a loop.
                continue
            _collect(statement.body, (), statement, statement.owner or owner, facts)
            continue
        fact = _Fact(statement, parents, function, owner)
        facts.append(fact)
        inner: list[tuple[p.Stmt, ...]] = []
        match statement:
            case p.Assign(targets=targets, value=value):
                for target in targets:
                    _write(target, fact, facts)
                _read(value, fact, facts)
                if isinstance(value, p.Binary) and value.op == "+":
                    same = p.dotted(value.left) == p.dotted(targets[0])
                    fact.event |= same and _is_loss(value.right, facts.roles)
            case p.Augment(target=target, value=value):
                _write(target, fact, facts)
                _read(target, fact, facts)
                _read(value, fact, facts)
                fact.event |= _is_loss(value, facts.roles)
            case p.For(target=target, iterable=iterable, body=body, orelse=orelse):
                _write(target, fact, facts)
                _read(iterable, fact, facts)
                inner = [body, orelse]
            case (
                p.If(test=test, body=body, orelse=orelse)
                | p.While(test=test, body=body, orelse=orelse)
            ):
                _read(test, fact, facts)
                inner = [body, orelse]
            case p.With(items=items, body=body):
                for value, target in items:
                    _read(value, fact, facts)
                    if target is not None:
                        _write(target, fact, facts)
                inner = [body]
            case p.Try(body=body, handlers=handlers, orelse=orelse, final=final):
                inner = [body, *(h for _, _, h in handlers), orelse, final]
            case p.Return(value=value):
                if value is not None:
                    _read(value, fact, facts)
            case p.Do(value=value):
                _read(value, fact, facts)
            case p.Delete(targets=targets):
                fact.writes |= {usage.last_name(t.base) for t in targets if isinstance(t, p.Item)}
            case p.Jump() | p.Raise() | p.Scope() | p.Import():
                pass
        for part in inner:
            _collect(part, (*parents, statement), function, owner, facts)


def _takes_optimizer(call: p.Call, roles: Roles) -> bool:
    """True when an optimizer is handed over, or parameters: who gets them may step, clear or clip."""
    return any(
        roles.of(usage.last_name(a.value)) in ("optimizer", "scaler")
        if isinstance(a.value, p.Name | p.Attr)
        else isinstance(a.value, p.Call) and usage.last_name(a.value.func) == "parameters"
        for a in call.args
    )


def _shows_loss(call: p.Call, roles: Roles) -> bool:
    """True when a name or a text among the arguments reads like a loss."""
    written = (
        n.id if isinstance(n, p.Name) else n.name if isinstance(n, p.Attr) else n.value
        for argument in call.args
        for n in p.walk_expr(argument.value)
        if isinstance(n, p.Name | p.Attr | p.Const)
    )
    return any(isinstance(text, str) and roles.shows_loss(text) for text in written)


def _says_loss(call: p.Call) -> bool:
    """True when an f-string among the arguments speaks of a loss, whatever the number in it is called."""
    return any(
        isinstance(n, p.Text) and "loss" in n.words.lower()
        for argument in call.args
        for n in p.walk_expr(argument.value)
    )


def _is_loss(value: p.Expr, roles: Roles) -> bool:
    """True when a value reads like a loss, or a number taken from a tensor: what running totals are made of."""
    return any(
        (isinstance(n, p.Name) and roles.is_loss(n.id))
        or (isinstance(n, p.Attr) and (roles.is_loss(n.name) or n.name in ("item", "detach")))
        for n in p.walk_expr(value)
    )


def _write(target: p.Expr, fact: _Fact, facts: _Facts) -> None:
    match target:
        case p.Name(id=name):
            fact.writes.add(name)
            if facts.roles.is_steps(name):
                fact.event = fact.strong = True
        case p.Attr(base=base, name=name):
            fact.writes.add(name)
            fact.event |= facts.roles.is_steps(name) or p.dotted(target) in facts.roles.windows
            fact.mutates = True
            _read(base, fact, facts)
            if name in frameworks.EVENTS and name != "step":
                fact.event = True
                fact.strong |= name in frameworks.STRONG
        case p.Item(base=base, index=index):
            fact.mutates = True
            fact.writes |= {n.id for n in p.walk_expr(base) if isinstance(n, p.Name)}
            fact.writes |= {n.name for n in p.walk_expr(base) if isinstance(n, p.Attr)}
            _read(index, fact, facts)
        case p.Sequence(items=items):
            for item in items:
                _write(item, fact, facts)
        case p.Star(value=value):
            _write(value, fact, facts)
        case _:
            pass


def _read(expr: p.Expr, fact: _Fact, facts: _Facts) -> None:
    nodes = tuple(p.walk_expr(expr))
    functions = {node.func for node in nodes if isinstance(node, p.Call)}
    for node in nodes:
        match node:
            case p.Name(id=name):
                fact.reads.add(name)
                # A function that is handed over (`spawn(main)`) will be called.
                fact.callees.add(name)
                if name in frameworks.WRAPPERS or name in frameworks.SCALERS:
                    fact.event = fact.strong = True
            case p.Attr(name=name):
                fact.reads.add(name)
                number = name == "step" and node not in functions
                if number and facts.roles.of(usage.last_name(node.base)) in _OWNERS:
                    # A method that is handed over will be called.
                    number = False
                if name in frameworks.EVENTS and not number and not _is_setting(node):
                    fact.event = True
                    fact.strong |= name in frameworks.STRONG
                    fact.backward |= name in _BACKWARD_NAMES
            case p.Call(func=func):
                last = func.name if isinstance(func, p.Attr) else p.dotted(func)
                fact.calls.add(last)
                fact.callees.add(called(func))
                if isinstance(func, p.Name) and fact.function is not None:
                    if any(func.id == param.name for param in fact.function.params):
                        fact.callees.add(GIVEN)
                if last in frameworks.EVENTS:
                    fact.event = True
                    fact.strong |= last in frameworks.STRONG
                elif not frameworks.is_harmless(last) and _takes_optimizer(node, facts.roles):
                    fact.event = True
                if names.is_rescaling(last) or names.is_clip(last) or _reduces_a_gradient(node):
                    fact.event = fact.strong = True
                if last.startswith("_foreach_"):
                    fact.event = True
                elif isinstance(func, p.Attr) and last.endswith("_") and last[-2:] != "__":
                    # What works in place writes its receiver.
                    fact.writes.add(usage.last_name(func.base))
                if last in _BACKWARD_NAMES or "loss_scaler" in last:
                    fact.event = fact.backward = fact.strong = True
                    fact.step |= "loss_scaler" in last
                base = usage.unwrapped(func.base) if isinstance(func, p.Attr) else None
                receiver = usage.last_name(base) if base is not None else ""
                fact.step |= last in _STEP_NAMES
                if frameworks.is_report(last) and (
                    (shows := _shows_loss(node, facts.roles)) or _says_loss(node)
                ):
                    fact.report |= shows
                    fact.said = True
                    fact.callee_reads |= {
                        n.id if isinstance(n, p.Name) else n.name
                        for n in p.walk_expr(func)
                        if isinstance(n, p.Name | p.Attr)
                    }
                fact.event |= facts.roles.is_averaging(receiver, last) or names.is_norm(last)
                # A table is updated with one other, a meter with a number and a size.
                fills = last in _FILLING or (last == "update" and len(node.args) == 1)
                if fills and isinstance(func, p.Attr):
                    # What losses or batches are collected in is written by what fills and empties it.
                    fact.writes.add(usage.last_name(func.base))
                if last == "update" and isinstance(func, p.Attr):
                    # A scaler of any name is updated with nothing given, as few other things are.
                    fact.event |= not node.args
                    if facts.roles.of(receiver) == "scaler":
                        fact.event = fact.strong = True
            case p.Comprehension(clauses=clauses) if any(
                facts.roles.of(usage.last_name(c[1])) == "scaler" for c in clauses
            ):
                # `[s.update() for s in scalers]`, whatever each of them is called.
                fact.event = fact.strong = True
            case p.Lambda(function=function):
                fact.lambdas.append(function)
                _collect(function.body, (), function, "", facts)
            case p.Function(name="<lambda>"):
                for body in node.body:
                    if isinstance(body, p.Return) and body.value is not None:
                        _read(body.value, fact, facts)
            case p.Walrus(target=target):
                fact.writes |= p.target_names(target)
            case _:
                pass


def _reduces_a_gradient(node: p.Call) -> bool:
    """`dist.all_reduce(parameter.grad)`."""
    first = node.positional(0)
    return (
        usage.last_name(node.func) == "all_reduce"
        and first is not None
        and any(isinstance(n, p.Attr) and n.name == "grad" for n in p.walk_expr(first))
    )


def _is_setting(node: p.Attr) -> bool:
    """True for `args.backward` and its like: a setting that is called as an event is."""
    return node.name in frameworks.STRONG and names.is_configuration(p.dotted(node))


def _reaching(
    facts: list[_Fact], holds: Callable[[_Fact], bool], imported: frozenset[str]
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


def _callable_names(fact: _Fact) -> set[str]:
    if fact.function is None:
        return set()
    if fact.function.name in ("__init__", "__call__", "__enter__", "__exit__", "__iter__"):
        # A call of an object's own __call__ shows no name that leads to it; its construction does.
        return {fact.owner, GIVEN} if fact.function.name == "__call__" else {fact.owner}
    return {key(fact.function)} - {"<lambda>"}


def key(function: p.Function) -> str:
    """What a call must look like to mean this function: `name` for a plain one, `.name` for a method."""
    return f".{function.name}" if function.owner else function.name


def called(func: p.Expr) -> str:
    """What a callee looks like: `name`, or `.name` of some receiver ("" for what torch's own objects do)."""
    if not isinstance(func, p.Attr):
        return p.dotted(func)
    receiver = p.dotted(func.base).rpartition(".")[2]
    if func.name in _MODULE_METHODS and names.role_of(receiver) in _OWNERS:
        return ""
    return f".{func.name}"


# What a call of a parameter looks like, whatever it is called: it may be an object that is called like a function.
GIVEN = "()"
_OWNERS = frozenset({"model", "optimizer", "scheduler", "scaler"})
_MODULE_METHODS = frozenset({"train", "eval", "step", "update", "forward", "to", "apply"})
# What an object does without being asked by name.
_ASKED_OF_OBJECTS = ("forward", "__call__", "__iter__", "__init__", "__len__", "__enter__")


def _kept(facts: list[_Fact], eventful: set[p.Node], wanted: frozenset[str]) -> set[p.Node]:
    kept: set[p.Node] = set()
    needed: set[str] = set()
    writers: dict[str, list[_Fact]] = {}
    returns: dict[str, list[_Fact]] = {}
    jumps: list[_Fact] = []
    callers: dict[str, list[_Fact]] = {}
    by_statement = {fact.statement: fact for fact in facts}
    for fact in facts:
        for callee in fact.callees:
            callers.setdefault(callee, []).append(fact)
        for name in fact.writes:
            writers.setdefault(name, []).append(fact)
        if fact.function is not None and isinstance(fact.statement, p.Return | p.Do | p.Raise):
            returns.setdefault(fact.function.name, []).append(fact)
        if isinstance(fact.statement, p.Jump | p.Return | p.Raise):
            jumps.append(fact)
    waiting: list[_Fact] = [f for f in facts if f.statement in eventful or _is_wanted(f, wanted)]
    waiting += [
        j for j in jumps if any(p_ in eventful for p_ in j.parents) or _in_eventful(j, eventful)
    ]

    def need(fact: _Fact) -> None:
        if fact.statement in kept:
            return
        kept.add(fact.statement)
        if fact.mutates and fact.function is not None:
            # What a function changes in its arguments is changed by whoever calls it.
            waiting.extend(callers.get(key(fact.function), ()))
        for parent in fact.parents:
            if parent not in kept and parent in by_statement:
                waiting.append(by_statement[parent])
        # A lambda gives back what stands in the statement that writes it.
        inside = (s for function in fact.lambdas for s in function.body)
        waiting.extend(by_statement[s] for s in inside if s in by_statement)
        for name in fact.reads | fact.calls:
            if name in needed:
                continue
            needed.add(name)
            waiting.extend(writers.get(name, ()))
            waiting.extend(
                f
                for f in returns.get(name, ())
                if isinstance(f.statement, p.Return) or _yields(f.statement) or _refuses(f)
            )
            if name in classes:
                for method in _ASKED_OF_OBJECTS:
                    waiting.extend(
                        f
                        for f in returns.get(method, ())
                        if f.owner == name
                        and (isinstance(f.statement, p.Return) or _yields(f.statement))
                    )

    classes = {f.owner for f in facts if f.owner}
    while waiting:
        need(waiting.pop())
    return kept


def _is_wanted(fact: _Fact, wanted: frozenset[str]) -> bool:
    """True for what a wanted function gives back, and for what a wanted class's objects hold."""
    function = fact.function
    if function is None or (function.name not in wanted and fact.owner not in wanted):
        return False
    if isinstance(fact.statement, p.Return) or _yields(fact.statement):
        return True
    if function.name == "__init__":
        return isinstance(fact.statement, p.Assign | p.Do)
    # What a method sets (`register_loader`) takes the place of what the constructor left empty.
    return (
        fact.owner in wanted
        and isinstance(fact.statement, p.Assign)
        and any(p.dotted(target).startswith("self.") for target in fact.statement.targets)
    )


def _refuses(fact: _Fact) -> bool:
    """True for the end of a choice that knows no further answer; what only says that others shall answer is none."""
    raised = fact.statement
    return isinstance(raised, p.Raise) and bool(fact.parents) and "NotImpl" not in raised.exception


def _yields(statement: p.Node) -> bool:
    return any(isinstance(n, p.Yield) for n in p.walk_expr(statement))


def _in_eventful(fact: _Fact, eventful: set[p.Node]) -> bool:
    """True for a top-level jump of a function that holds events."""
    return fact.function is not None and any(s in eventful for s in fact.function.body)


def _counters(facts: list[_Fact]) -> set[str]:
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
