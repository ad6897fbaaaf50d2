"""What each statement reads, writes and calls, and whether that can reach a gradient: the facts for the slice."""

from __future__ import annotations

from dataclasses import dataclass, field

from accumlint.reading import frameworks, names, usage
from accumlint.reading import ir as p
from accumlint.reading.roles import Roles

_BACKWARD_NAMES = frozenset({"backward", "manual_backward", "train_batch", "backward_step"})
_STEP_NAMES = frozenset({"step", "optimizer_step", "step_and_update_lr", "train_batch"})
_FILLING = frozenset({"append", "extend", "insert", "pop", "clear"})
# What a call of a parameter looks like, whatever it is called: it may be an object that is called like a function.
CALLED_ITSELF = "()"
_OWNERS = frozenset({"model", "optimizer", "scheduler", "scaler"})
_MODULE_METHODS = frozenset({"train", "eval", "step", "update", "forward", "to", "apply"})


@dataclass(eq=False)
class Fact:
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
    logged: bool = False
    callee_reads: set[str] = field(default_factory=set[str])
    lambdas: list[p.Function] = field(default_factory=list[p.Function])

    @property
    def path(self) -> tuple[p.Node, ...]:
        """The statement with all that it stands in."""
        return (self.statement, *self.parents)


class Facts(list[Fact]):
    """The facts of all statements, in source order; `roles` are what the names in them are."""

    def __init__(self, roles: Roles) -> None:
        super().__init__()
        self.roles = roles

    def collect(
        self,
        block: tuple[p.Stmt, ...],
        parents: tuple[p.Node, ...] = (),
        function: p.Function | None = None,
        owner: str = "",
    ) -> None:
        """Adds the facts of a block of a function, or of a class `owner`, and of all that stands in it."""
        for statement in block:
            if isinstance(statement, p.Class):
                self.collect(statement.body, owner=statement.name)
            elif not isinstance(statement, p.Function):
                fact = Fact(statement, parents, function, owner)
                self.append(fact)
                self._head(statement, fact)
                for part in p.blocks(statement):
                    self.collect(part, (*parents, statement), function, owner)
            # An autograd function's own backward is part of a gradient, not of a loop.
            elif statement.name != "backward" or all(q.name != "ctx" for q in statement.params):
                self.collect(statement.body, (), statement, statement.owner or owner)

    def _head(self, statement: p.Stmt, fact: Fact) -> None:
        """Notes what a statement does, without the statements in it."""
        match statement:
            case p.Assign(targets=targets, value=value):
                for target in targets:
                    self._write(target, fact)
                self._read(value, fact)
                if isinstance(value, p.Binary) and value.op == "+":
                    same = p.dotted(value.left) == p.dotted(targets[0])
                    fact.event |= same and self._is_loss(value.right)
            case p.Augment(target=target, value=value):
                self._write(target, fact)
                self._read(target, fact)
                self._read(value, fact)
                fact.event |= self._is_loss(value)
            case p.For(target=target, iterable=iterable):
                self._write(target, fact)
                self._read(iterable, fact)
            case p.If(test=test) | p.While(test=test):
                self._read(test, fact)
            case p.With(items=items):
                for value, target in items:
                    self._read(value, fact)
                    if target is not None:
                        self._write(target, fact)
            case p.Return(value=value) | p.Do(value=value) if value is not None:
                self._read(value, fact)
            case p.Delete(targets=targets):
                fact.writes |= {usage.last_name(t.base) for t in targets if isinstance(t, p.Item)}
            case _:
                pass

    def _write(self, target: p.Expr, fact: Fact) -> None:
        match target:
            case p.Name(id=name):
                fact.writes.add(name)
                if self.roles.is_steps(name):
                    fact.event = fact.strong = True
            case p.Attr(base=base, name=name):
                fact.writes.add(name)
                fact.event |= self.roles.is_steps(name) or p.dotted(target) in self.roles.windows
                fact.mutates = True
                self._read(base, fact)
                if name in frameworks.EVENTS and name != "step":
                    fact.event = True
                    fact.strong |= name in frameworks.STRONG
            case p.Item(base=base, index=index):
                fact.mutates = True
                fact.writes |= _words(base)
                self._read(index, fact)
            case p.Sequence(items=items):
                for item in items:
                    self._write(item, fact)
            case p.Star(value=value):
                self._write(value, fact)
            case _:
                pass

    def _read(self, expr: p.Expr, fact: Fact) -> None:
        nodes = tuple(p.walk_expr(expr))
        called_here = {node.func for node in nodes if isinstance(node, p.Call)}
        for node in nodes:
            match node:
                case p.Name(id=name):
                    fact.reads.add(name)
                    # A function that is handed over (`spawn(main)`) will be called.
                    fact.callees.add(name)
                    if name in frameworks.WRAPPERS or name in frameworks.SCALERS:
                        fact.event = fact.strong = True
                case p.Attr():
                    self._attribute(node, fact, is_called=node in called_here)
                case p.Call():
                    self._call(node, fact)
                case p.Lambda(function=function):
                    fact.lambdas.append(function)
                    self.collect(function.body, (), function)
                case p.Walrus(target=target):
                    fact.writes |= p.target_names(target)
                case _:
                    pass

    def _attribute(self, node: p.Attr, fact: Fact, *, is_called: bool) -> None:
        name = node.name
        fact.reads.add(name)
        # A method that is handed over will be called; a `step` of anything else is a number.
        owner = self.roles.of(usage.last_name(node.base)) if name == "step" else ""
        number = name == "step" and not is_called and owner not in _OWNERS
        # `args.backward` and its like are settings that are called as an event is.
        strong = name in frameworks.STRONG
        setting = strong and names.is_configuration(p.dotted(node))
        if name in frameworks.EVENTS and not number and not setting:
            fact.event = True
            fact.strong |= strong
            fact.backward |= name in _BACKWARD_NAMES

    def _call(self, node: p.Call, fact: Fact) -> None:
        func, roles = node.func, self.roles
        last = func.name if isinstance(func, p.Attr) else p.dotted(func)
        fact.calls.add(last)
        fact.callees.add(callee_of(func))
        if isinstance(func, p.Name) and fact.function is not None:
            if any(func.id == param.name for param in fact.function.params):
                fact.callees.add(CALLED_ITSELF)
        if fact.owner and last == "self":
            # A module that calls itself goes forward.
            fact.calls.add("forward")
            fact.callees.add(".forward")
        if last in frameworks.EVENTS:
            fact.event = True
            fact.strong |= last in frameworks.STRONG
        elif not frameworks.is_harmless(last) and self._takes_optimizer(node):
            fact.event = True
        if names.is_rescaling(last) or names.is_clip(last) or _reduces_a_gradient(node):
            fact.event = fact.strong = True
        if last in _BACKWARD_NAMES or "loss_scaler" in last:
            fact.event = fact.backward = fact.strong = True
        fact.step |= last in _STEP_NAMES or "loss_scaler" in last
        if frameworks.is_report(last) and ((shows := self._shows_loss(node)) or _says_loss(node)):
            fact.report |= shows
            fact.logged = True
            fact.callee_reads |= _words(func)
        fact.event |= names.is_norm(last) or last.startswith("_foreach_")
        if isinstance(func, p.Attr):
            self._method(func, node, fact)
        else:
            fact.event |= roles.is_averaging("", last)

    def _method(self, func: p.Attr, node: p.Call, fact: Fact) -> None:
        """Notes what a method does to its receiver."""
        last, receiver = func.name, usage.last_name(usage.unwrapped(func.base))
        fact.event |= self.roles.is_averaging(receiver, last)
        # What works in place writes its receiver, and so does what fills and empties a collection of losses or batches;
        # a table is updated with one other, a meter with a number and a size.
        in_place = last.endswith("_") and last[-2:] != "__" and not last.startswith("_foreach_")
        if in_place or last in _FILLING or (last == "update" and len(node.args) == 1):
            fact.writes.add(usage.last_name(func.base))
            if isinstance(func.base, p.Item):
                # `losses["boxes"].append(loss)`
                fact.writes |= _words(func.base.base)
        if last == "update":
            # A scaler of any name is updated with nothing given, as few other things are.
            fact.event |= not node.args
            if self.roles.of(receiver) == "scaler":
                fact.event = fact.strong = True

    def _takes_optimizer(self, call: p.Call) -> bool:
        """True when an optimizer is handed over, or parameters: who gets them may step, clear or clip."""
        return any(
            self.roles.of(usage.last_name(a.value)) in ("optimizer", "scaler")
            if isinstance(a.value, p.Name | p.Attr)
            else isinstance(a.value, p.Call) and usage.last_name(a.value.func) == "parameters"
            for a in call.args
        )

    def _shows_loss(self, call: p.Call) -> bool:
        """True when a name or a text among the arguments reads like a loss."""
        values = [argument.value for argument in call.args]
        constants = (n.value for v in values for n in p.walk_expr(v) if isinstance(n, p.Const))
        texts = (value for value in constants if isinstance(value, str))
        return any(map(self.roles.shows_loss, set[str]().union(texts, *map(_words, values))))

    def _is_loss(self, value: p.Expr) -> bool:
        """True when a value reads like a loss, or a number taken from a tensor: what running totals are made of."""
        return any(map(self.roles.is_loss, _words(value))) or any(
            isinstance(n, p.Attr) and n.name in ("item", "detach") for n in p.walk_expr(value)
        )


def _words(expr: p.Expr) -> set[str]:
    """The names and attributes in an expression."""
    nodes = (n for n in p.walk_expr(expr) if isinstance(n, p.Name | p.Attr))
    return {n.id if isinstance(n, p.Name) else n.name for n in nodes}


def _says_loss(call: p.Call) -> bool:
    """True when an f-string among the arguments speaks of a loss, whatever the number in it is called."""
    return any(
        isinstance(n, p.Text) and "loss" in n.words.lower()
        for argument in call.args
        for n in p.walk_expr(argument.value)
    )


def _reduces_a_gradient(node: p.Call) -> bool:
    """`dist.all_reduce(parameter.grad)`."""
    first = node.positional(0)
    return (
        usage.last_name(node.func) == "all_reduce"
        and first is not None
        and any(isinstance(n, p.Attr) and n.name == "grad" for n in p.walk_expr(first))
    )


def callee_of(func: p.Expr) -> str:
    """What a callee looks like: `name`, or `.name` of some receiver ("" for what torch's own objects do)."""
    if not isinstance(func, p.Attr):
        return p.dotted(func)
    receiver = p.dotted(func.base).rpartition(".")[2]
    if func.name in _MODULE_METHODS and names.role_of(receiver) in _OWNERS:
        return ""
    return f".{func.name}"
