"""Calls an entry point as its framework would: on an instance of its class, once, per epoch or per micro-batch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from accumlint.reading import ir as p
from accumlint.reading import names
from accumlint.tracing import trace as t
from accumlint.tracing.framework_driver import (
    counted_by_callers,
    loops,
    repeat,
    run_through,
    runs_once,
)
from accumlint.tracing.graph import CallGraph
from accumlint.tracing.interpreter import Machine
from accumlint.tracing.trainers import Trainer
from accumlint.tracing.values import ClassValue, Closure, Object, Unknown, Value


class EntryCall:
    """How the runs from an entry point begin.

    `calls` and `owner` are what the last run found out of it, as an `Entry` tells.
    """

    def __init__(self, entry: t.Entry) -> None:
        self.entry = entry
        self.calls = "once"
        self.owner = ""

    def run(self, machine: Machine) -> None:
        function = self.entry.function
        if function is None:
            machine.block(machine.program.body)
            return
        machine.block(
            tuple(
                s
                for s in machine.program.body
                if s not in machine.relevance.backwards or isinstance(s, p.Function | p.Class)
            )
        )
        if self.entry.maker is not None:
            self.made(machine, self.entry.maker, function)
            return
        receiver: Value = None
        closure = None
        owner = machine.program.classes.get(self.entry.owner or function.owner)
        if owner is not None and (self.entry.owner or function.name in owner.methods):
            concrete = owner if self.entry.owner else self.filled(machine, owner, function)
            self.owner = concrete.name
            receiver = machine.invoking.construct(
                ClassValue(concrete, None), [], {"**": Unknown("kwargs")}, function
            )
            if isinstance(receiver, Object) and receiver.thing is None:
                receiver.text = "self"
            if isinstance(receiver, Object):
                lineage = machine.invoking.lineage(concrete)
                methods = [m for cls in lineage for m in cls.methods.values()]
                _forget_unset(receiver, methods, function)
                _forget_empty(receiver, methods, function, machine.elsewhere.borders.graph)
            if self.entry.owner:
                closure = machine.invoking.find_method(concrete, function.name)
        self.train(machine, closure or Closure(function, None, owner), receiver, function)

    def filled(self, machine: Machine, owner: p.Class, function: p.Function) -> p.Class:
        """The class whose instance runs a method: the first that fills in what its owner leaves to others."""
        hollow = {name for name, method in owner.methods.items() if _is_hollow(method)}
        missing = machine.elsewhere.borders.graph.left_to_heirs(machine.invoking.lineage(owner))
        for cls in machine.program.classes.values() if hollow or missing else ():
            if function.name in cls.methods:
                continue
            _, *above = machine.invoking.lineage(cls)
            given = hollow & cls.methods.keys() or any(
                missing & c.methods.keys() for c in (cls, *above)
            )
            if owner in above and given:
                return cls
        return owner

    def made(self, machine: Machine, maker: p.Function, function: p.Function) -> None:
        """Runs the function that makes another one, then the made one."""
        owner = machine.program.classes.get(maker.owner) if maker.owner else None
        receiver: Value = None
        if owner is not None and maker.name in owner.methods:
            receiver = machine.invoking.construct(
                ClassValue(owner, None), [], {"**": Unknown("kwargs")}, maker
            )
        machine.invoking.invoke(Closure(maker, None, owner), [], {"**": None}, receiver, maker)
        closure = machine.captured.get(function)
        if closure is not None:
            self.train(machine, closure, None, function)

    def train(
        self, machine: Machine, closure: Closure, receiver: Value, function: p.Function
    ) -> None:
        """Calls a function as its framework would: once, twice (an epoch each), or for every micro-batch."""
        if self.entry.driven is not None:
            self.calls = "microbatch"
            trainer = Trainer(machine, self.entry.driven, receiver)
            repeat(machine, closure, receiver, function, trainer)
            return
        self.calls = "once"
        machine.state.by_epochs = _speaks_of_epochs(function)
        if loops(function, machine.relevance):
            nested = any(
                isinstance(n, p.For | p.While)
                and n in machine.relevance.backwards
                and machine.rounds.holds_loop(n)
                for n in p.walk(function.body)
            )
            run_through(machine, closure, receiver, function)
            if not nested and _is_an_epoch(function) and not runs_once(function, machine):
                self.calls = "twice"
                run_through(machine, closure, receiver, function)
            return
        # What calls it is another's method of that name, where it calls that: `model.train_step(batch)`.
        around = machine.elsewhere.borders.graph.callers(machine.program.functions, function)
        if machine.rounds.has_training_loop(function.body, around):
            run_through(machine, closure, receiver, function)
            if machine.state.by_epochs:
                self.calls = "twice"
                run_through(machine, closure, receiver, function)
            return
        self.calls = "microbatch"
        for name in counted_by_callers(machine, closure, function):
            if isinstance(receiver, Object):
                receiver.attributes[name] = Unknown(f"{receiver.text}.{name}")
        repeat(machine, closure, receiver, function)


def _forget_unset(receiver: Object, methods: list[p.Function], function: p.Function) -> None:
    """Leaves open what a constructor sets to None and another method sets up before the training begins."""
    unset = {f"self.{n}" for n, v in receiver.attributes.items() if v is None and names.role_of(n)}
    if not unset:
        return
    nodes = [n for m in methods if m.name != "__init__" for n in p.walk(m.body)]
    tests = " ".join(p.render(n.test) for n in nodes if isinstance(n, p.If))
    own = set(p.walk(function.body))
    for node in nodes:
        if isinstance(node, p.Assign) and node not in own and not isinstance(node.value, p.Const):
            for target in node.targets:
                parts = target.items if isinstance(target, p.Sequence) else (target,)
                for name in {p.dotted(part) for part in parts} & unset:
                    # Where it is asked for, the training sets it up by itself.
                    if not re.search(rf"{re.escape(name)}\b", tests):
                        receiver.attributes.pop(name.removeprefix("self."), None)


def _forget_empty(
    receiver: Object, methods: list[p.Function], function: p.Function, graph: CallGraph
) -> None:
    """Leaves open what a table of optimizers or networks holds that others fill before the training begins."""
    empty = {
        f"self.{name}"
        for name, value in receiver.attributes.items()
        if value in ([], {}) and names.role_of(name) in ("optimizer", "model", "scheduler")
    }
    for method in methods if empty else ():
        if method is function or function in graph.callers(methods, method):
            empty.difference_update(_filled(method))
    for name in empty:
        del receiver.attributes[name.removeprefix("self.")]


def _filled(method: p.Function) -> Iterator[str]:
    """What a method puts something into (`self.optimizers["adam"] = ...`, `self.optimizers.append(...)`), or sets."""
    for node in p.walk(method.body):
        if isinstance(node, p.Assign):
            for target in node.targets:
                yield p.dotted(target.base if isinstance(target, p.Item) else target)
        elif isinstance(node, p.Call) and isinstance(node.func, p.Attr):
            if node.func.name in ("append", "extend", "update", "insert", "setdefault"):
                yield p.dotted(node.func.base)


def _is_hollow(method: p.Function) -> bool:
    """True for a method that subclasses must give: it only raises."""
    *said, last = method.body or (None,)
    texts = all(isinstance(s, p.Do) and isinstance(s.value, p.Const) for s in said)
    return isinstance(last, p.Raise) and texts


def _speaks_of_epochs(function: p.Function) -> bool:
    """True when a function's name or one of its parameters is about one epoch."""
    told = any(names.is_epoch(param.name) for param in function.params)
    return told or "epoch" in function.name.lower()


def _is_an_epoch(function: p.Function) -> bool:
    """True when a function reads like one pass over the data, which its caller makes again and again."""
    whole = ("fit", "main", "run", "finetune", "pretrain")
    return _speaks_of_epochs(function) or not any(word in function.name.lower() for word in whole)
