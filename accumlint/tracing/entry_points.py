"""Where the runs of a program start, and how: a module, a function that trains, an inherited training loop.

A function is called as its framework would: on an instance of its class, once, per epoch or per micro-batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from accumlint.reading import ir as p
from accumlint.reading import names
from accumlint.reading.gradient_slice import Relevance, key
from accumlint.reading.hooks import lineage
from accumlint.reading.program import Program
from accumlint.reading.project import Project
from accumlint.reading.statement_facts import callee_of
from accumlint.tracing import framework_driver as framework
from accumlint.tracing import trace as t
from accumlint.tracing.calls.call import Call
from accumlint.tracing.framework_driver import loops, run_through
from accumlint.tracing.graph import CallGraph
from accumlint.tracing.parts import Parts
from accumlint.tracing.trainers import Trainer
from accumlint.tracing.values import ClassValue, Closure, Object, Unknown, Value


def backward_calls(program: Program) -> list[p.Node]:
    """The calls of a file that are written as a backward pass."""
    own = any(f.name == "backward" and f.owner for f in program.functions)
    return [
        node
        for node in program.of(p.Call)
        if isinstance(node.func, p.Attr)
        and node.func.name == "backward"
        # A method of one's own is no backward pass; the one inside it is.
        and not (own and (bool(node.args) or p.dotted(node.func.base) == "self"))
    ]


def entries(program: Program, slice_: Relevance, covered: set[p.Function]) -> Iterator[t.Entry]:
    """The module if it trains by itself, then the outermost functions that do and were not run yet."""
    if any(s in slice_.backwards for s in program.body if not isinstance(s, p.Function | p.Class)):
        yield t.Entry(None)
    training = [
        f
        for f in program.functions
        if key(f) in slice_.reaching_backward and any(s in slice_.backwards for s in f.body)
    ]
    # A function that no training function calls stands outermost.
    inside = {
        callee_of(node.func)
        for f in training
        for node in p.walk(f.body)
        if isinstance(node, p.Call) and callee_of(node.func) != key(f)
    }
    made = [(n, f) for f in program.functions for n in p.walk(f.body) if isinstance(n, p.Function)]
    nested = {inner for inner, _ in made}
    plain = [f for f in training if f not in nested]

    def due(functions: list[p.Function]) -> Iterator[t.Entry]:
        for function in functions:
            if function not in covered and not _only_leads_to(covered, function, slice_, training):
                yield t.Entry(function)

    yield from due([f for f in plain if key(f) not in inside])
    # A function made inside another one and handed out is called by a framework.
    for inner, outer in made:
        if inner in training and inner not in covered and outer not in nested:
            yield t.Entry(inner, outer)
    # What is called only by code that could not be followed still deserves a look.
    yield from due(sorted(plain, key=lambda f: not loops(f, slice_)))


def inherited(
    program: Program, project: Project, slice_: Relevance, covered: set[p.Function]
) -> Iterator[t.Entry]:
    """The training loops of other files that the classes of a file inherit, and fill in."""
    for cls in program.classes.values():
        classes, _ = lineage(cls, program, project) if cls.bases else ((), ())
        for base in classes:
            for name, method in base.methods.items():
                if (
                    name not in cls.methods
                    and program.classes.get(base.name) is not base
                    and key(method) in slice_.reaching_backward
                    and loops(method, slice_)
                    and method not in covered
                ):
                    yield t.Entry(method, owner=cls.name)


def _only_leads_to(
    covered: set[p.Function], function: p.Function, slice_: Relevance, training: list[p.Function]
) -> bool:
    """True for a function that does nothing to gradients but call those that ran already."""
    written = [n.func for n in p.walk(function.body) if isinstance(n, p.Call)]
    leading = {callee_of(func) for func in written} & slice_.reaching_backward
    clears = {p.dotted(func).rpartition(".")[2] for func in written} & names.CLEARS
    # Another class's method of the same name did not run for this one.
    beside = (f for f in training if f.owner and f.owner == function.owner and key(f) in leading)
    if clears or "backward" in leading or not covered.issuperset(beside):
        return False
    return bool(leading) and leading <= {key(f) for f in covered}


class EntryCall:
    """How the runs from an entry point begin.

    `calls` and `owner` are what the last run found out of it, as an `Entry` tells.
    """

    def __init__(self, entry: t.Entry) -> None:
        self.entry = entry
        self.calls = "once"
        self.owner = ""

    def run(self, machine: Parts) -> None:
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
            call = Call("__init__", [], {"**": Unknown("kwargs")}, function)
            receiver = machine.function_calls.construct(ClassValue(concrete, None), call)
            if isinstance(receiver, Object) and receiver.traced is None:
                receiver.text = "self"
            if isinstance(receiver, Object):
                above = machine.cross_file.lineage(concrete)
                methods = [m for cls in above for m in cls.methods.values()]
                _forget_unset(receiver, methods, function)
                _forget_empty(receiver, methods, function, machine.borders.graph)
            if self.entry.owner:
                closure = machine.cross_file.find_method(concrete, function.name)
        self.train(machine, closure or Closure(function, None, owner), receiver, function)

    def filled(self, machine: Parts, owner: p.Class, function: p.Function) -> p.Class:
        """The class whose instance runs a method: the first that fills in what its owner leaves to others."""
        hollow = {name for name, method in owner.methods.items() if is_hollow(method)}
        missing = machine.borders.graph.left_to_heirs(machine.cross_file.lineage(owner))
        for cls in machine.program.classes.values() if hollow or missing else ():
            if function.name in cls.methods:
                continue
            _, *above = machine.cross_file.lineage(cls)
            given = hollow & cls.methods.keys() or any(
                missing & c.methods.keys() for c in (cls, *above)
            )
            if owner in above and given:
                return cls
        return owner

    def made(self, machine: Parts, maker: p.Function, function: p.Function) -> None:
        """Runs the function that makes another one, then the made one."""
        owner = machine.program.classes.get(maker.owner) if maker.owner else None
        receiver: Value = None
        if owner is not None and maker.name in owner.methods:
            call = Call("__init__", [], {"**": Unknown("kwargs")}, maker)
            receiver = machine.function_calls.construct(ClassValue(owner, None), call)
        call = Call(maker.name, [], {"**": None}, maker)
        machine.function_calls.invoke(Closure(maker, None, owner), receiver, call)
        closure = machine.captured.get(function)
        if closure is not None:
            self.train(machine, closure, None, function)

    def train(
        self, machine: Parts, closure: Closure, receiver: Value, function: p.Function
    ) -> None:
        """Calls a function as its framework would: once, twice (an epoch each), or for every micro-batch."""
        if self.entry.driven is not None:
            self.calls = "microbatch"
            trainer = Trainer(machine, self.entry.driven, receiver)
            framework.repeat(machine, closure, receiver, function, trainer)
            return
        self.calls = "once"
        machine.state.by_epochs = _speaks_of_epochs(function)
        if loops(function, machine.relevance):
            nested = any(
                isinstance(n, p.For | p.While)
                and n in machine.relevance.backwards
                and machine.trip_counts.holds_loop(n)
                for n in p.walk(function.body)
            )
            run_through(machine, closure, receiver, function)
            if not nested and _is_an_epoch(function) and not framework.runs_once(function, machine):
                self.calls = "twice"
                run_through(machine, closure, receiver, function)
            return
        # What calls it is another's method of that name, where it calls that: `model.train_step(batch)`.
        around = machine.borders.graph.callers(machine.program.functions, function)
        if machine.trip_counts.has_training_loop(function.body, around):
            run_through(machine, closure, receiver, function)
            if machine.state.by_epochs and not machine.trip_counts.has_epochs(
                function.body, around
            ):
                self.calls = "twice"
                run_through(machine, closure, receiver, function)
            return
        self.calls = "microbatch"
        for name in framework.counted_by_callers(machine, closure, function):
            if isinstance(receiver, Object):
                receiver.attributes[name] = Unknown(f"{receiver.text}.{name}")
        framework.repeat(machine, closure, receiver, function)


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


def is_hollow(method: p.Function) -> bool:
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
