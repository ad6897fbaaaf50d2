"""Functions and classes of the project: their frames, parameters, methods and base classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from accumlint.reading import frameworks, names
from accumlint.reading import ir as p
from accumlint.reading.gradient_slice import key
from accumlint.reading.syntax import Source
from accumlint.tracing import trace as t
from accumlint.tracing.budget import LOOKS_OF_STEP, STEPS_OF_WALK
from accumlint.tracing.calls.call import Call
from accumlint.tracing.calls.cross_file import DEFINITIONS
from accumlint.tracing.calls.library import record
from accumlint.tracing.control.exits import Stopped
from accumlint.tracing.gradients.tensors import derived, flat
from accumlint.tracing.values import (
    Bound,
    ClassValue,
    Closure,
    Context,
    Frame,
    Key,
    Lazy,
    Object,
    Unknown,
    Value,
)  # fmt: skip

if TYPE_CHECKING:
    from accumlint.tracing.interpreter import Machine

MAX_DEPTH = 24
# How often a run goes through one evaluation. What the training does with it shows by then.
_MEASURED = 2
# Base classes of what only holds values under names.
_RECORDS = frozenset({"ModelOutput", "NamedTuple"})


class FunctionCalls:
    """Executes the project's own functions and makes instances of its classes."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.lineages: dict[p.Class, list[p.Class]] = {}

    def invoke(
        self,
        closure: Closure,
        args: list[Value],
        kwargs: dict[str, Value],
        receiver: Value,
        node: p.Node,
    ) -> Value:
        """A call of a function whose body is known; an evaluation that was gone through twice gives what it gave."""
        state = self.machine.state
        measured = state.evaluated.get(closure.function, ())
        if len(measured) == _MEASURED:
            return measured[-1]
        begun, fetched = len(state.events), state.serial
        cross_file = self.machine.cross_file
        run = cross_file.entered if cross_file.crosses(closure.function) else self.executed
        call = Call(closure.function.name, args, kwargs, node)
        found = run(closure, receiver, call)
        if state.loops and names.is_evaluation(closure.function.name):
            # It fetches its data itself, and nothing that trains hears of it.
            given = any(isinstance(a, Unknown) and a.tensor for a in flat(call.given))
            events = state.events[begun:]
            aside = all(isinstance(e, t.Add | t.Reset) and "." not in e.total for e in events)
            if aside and state.serial > fetched and not given:
                state.evaluated.setdefault(closure.function, []).append(found)
        return found

    def executed(self, closure: Closure, receiver: Value, call: Call) -> Value:
        """What the body of a function gives."""
        function = closure.function
        decorators = function.decorators
        if function.yields and function.name != "<lambda>":
            bound: Closure | Bound = Bound(receiver, closure) if receiver is not None else closure
            if any(d.endswith("contextmanager") for d in decorators):
                return Context("generator", generator=bound, args=call.args, kwargs=call.kwargs)
            return Lazy("generator", call.args, closure=bound, kwargs=call.kwargs)
        machine = self.machine
        if machine.state.depth >= MAX_DEPTH:
            if key(function) in machine.relevance.reaching:
                raise Stopped("calls nested too deeply")
            return derived(f"{function.name}(…)", *flat(call.given))
        quiet = any(d.split("(")[0].endswith(("no_grad", "inference_mode")) for d in decorators)
        frame = self.framed(closure, receiver, call)
        saved, machine.frame = machine.frame, frame
        machine.state.depth += 1
        machine.state.no_grad += quiet
        try:
            machine.returned = None
            machine.entered.add(function)
            machine.block(function.body)
            value, machine.returned = machine.returned, None
            return value
        finally:
            machine.frame = saved
            machine.state.depth -= 1
            machine.state.no_grad -= quiet

    def framed(self, closure: Closure, receiver: Value, call: Call) -> Frame:
        """A frame with the parameters bound; what was not given is known by its name."""
        function = closure.function
        home = self.machine.cross_file.home_of(function.source)
        frame = Frame(
            {}, closure.scope, owner=closure.owner, receiver=receiver, home=home, function=function
        )
        given, node = list(call.args), call.node
        params = list(function.params)
        if (
            receiver is not None
            and params
            and not params[0].star
            and "staticmethod" not in function.decorators
        ):
            frame.names[params.pop(0).name] = receiver
        left = dict(call.kwargs)
        spread = left.pop("**", None)
        for param in params:
            if param.star == "*":
                frame.names[param.name] = tuple(given)
                given = []
            elif param.star == "**":
                rest: dict[Key, Value] = {**left}
                frame.names[param.name] = (
                    rest
                    if spread is None and not isinstance(node, p.Function)
                    else spread or Unknown(param.name)
                )
            elif given and not param.keyword_only:
                frame.names[param.name] = given.pop(0)
            elif param.name in left:
                frame.names[param.name] = left.pop(param.name)
            elif param.default is not None and not isinstance(node, p.Function) and spread is None:
                frame.names[param.name] = self.machine.cross_file.default(param.default, home)
            elif param.default is None and isinstance(spread, Unknown) and spread.batches:
                frame.names[param.name] = _part(spread, param.name)
            else:
                frame.names[param.name] = self.parameter(param, function)
        for name, value in list(frame.names.items()):
            told = self.machine.resolver.is_steps(name) or names.is_updates_per_epoch(name)
            if told and (isinstance(value, Unknown) or (value == 1 and type(value) is int)):
                frame.names[name] = self.machine.resolver.named(name, name, value, function)
        return frame

    def parameter(self, param: p.Param, function: p.Function) -> Value:
        """A parameter that nobody gives: known by its type or its name, with its default as a hint."""
        trainer = self.trainer(param, function)
        if trainer is not None:
            return trainer
        default = param.default
        if default is not None and p.render(default) == "-1" and not _ends_a_loop(param, function):
            # Unset, as limits are.
            return self.machine.resolver.symbol(param.name, param.name, function, hint=-1)
        if isinstance(default, p.Const):
            if isinstance(default.value, bool):
                if self.machine.resolver.is_steps(param.name) and _holds_back(param.name, function):
                    # It is told for every micro-batch but the last of a window.
                    self.machine.state.asked = True
                    held = f"not {param.name} % {self.machine.scenario.steps} == 0"
                    return Unknown(held, hint=default.value)
                return self.machine.resolver.symbol(
                    param.name, param.name, function, hint=default.value
                )
            if (
                isinstance(default.value, int)
                and not self.machine.resolver.is_steps(param.name)
                and names.is_start(param.name)
            ):
                return default.value
            if isinstance(default.value, str):
                return Unknown(param.name)
        if self.machine.resolver.roles.is_loss(param.name):
            return Unknown(param.name, loss=True, lost=True)
        found = self.machine.resolver.symbol(param.name, param.name, function)
        return self.annotated(found, param.annotation, function.source, function)

    def annotated(self, value: Value, annotation: str, source: Source, node: p.Node) -> Value:
        """A value that its annotation tells to be of a class of the project is what that class makes.

        Only classes of models and losses are looked for.
        """
        match value:
            case Object(cls=None, role="model" | "criterion") | Unknown(tensor=False, terms=None):
                cls = self.machine.cross_file.cls(annotation, source) if annotation else None
            case _:
                return value
        given: dict[str, Value] = {"**": Unknown("kwargs")}
        if isinstance(value, Object) and value.role == "model":
            init = self.find_method(cls, "__init__") if cls is not None else None
            value.cls = cls if cls is not None and "forward" in cls.methods else None
            if value.cls is not None and init is not None:
                self.invoke(init, [], given, value, node)
        elif cls is not None and self.works_out_a_loss(cls):
            return self.construct(ClassValue(cls, None), [], given, node)
        return value

    def trainer(self, param: p.Param, function: p.Function) -> Value:
        """What a parameter holds that is annotated with a class of the project that trains."""
        machine = self.machine
        if not param.annotation:
            return None
        cls = machine.cross_file.cls(param.annotation, function.source)
        if cls is None or not any(
            map(machine.relevance.reaching_backward.__contains__, map(key, cls.methods.values()))
        ):
            return None
        text = f"{cls.name} of {param.name}"
        if text not in machine.symbols:
            # A class may be given what it is given to.
            machine.symbols[text] = Unknown(param.name)
            made = self.construct(ClassValue(cls, None), [], {"**": Unknown("kwargs")}, function)
            if isinstance(made, Object) and made.traced is None:
                made.text = param.name
            machine.symbols[text] = made
        return machine.symbols[text]

    def run_generator(
        self,
        closure: Closure | Bound,
        args: list[Value],
        kwargs: dict[str, Value],
        body: Callable[[Value], None],
        node: p.Node,
    ) -> None:
        """Runs a generator function, giving each yielded value to `body`."""
        machine = self.machine
        if machine.state.depth >= MAX_DEPTH:
            raise Stopped("calls nested too deeply")
        receiver = closure.receiver if isinstance(closure, Bound) else None
        inner = closure.closure if isinstance(closure, Bound) else closure
        frame = self.framed(inner, receiver, Call(inner.function.name, args, kwargs, node))
        frame.on_yield = body
        # Nobody asks a function that runs by itself: its loops go as far as they go.
        frame.driver = node if node is not inner.function else None
        saved, machine.frame = machine.frame, frame
        machine.state.depth += 1
        try:
            machine.entered.add(inner.function)
            machine.block(inner.function.body)
        finally:
            machine.frame = saved
            machine.state.depth -= 1

    def construct(
        self, value: ClassValue, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> Value:
        cls = value.cls
        bases = self.all_bases(cls)
        found = self.machine.objects.instance(cls, bases, node, flat([*args, *kwargs.values()]))
        init = self.find_method(cls, "__init__")
        told = any("dataclass" in d for d in cls.decorators)
        if init is not None:
            self.invoke(init, args, kwargs, found, node)
        elif (plain := not cls.methods and (told or not bases.isdisjoint(_RECORDS))) or told:
            given = (v for v in (*args, *kwargs.values()) if isinstance(v, Unknown))
            if plain and (self.machine.state.inside or any(v.tensor for v in given)):
                return record(cls.fields, args, kwargs, node)
            found.attributes.update({k: v for k, v in kwargs.items() if k != "**"})
        return found

    def from_pretrained(self, value: ClassValue, call: Call) -> Value:
        """A model that its library makes of a checkpoint: of its configuration, and what else is given."""
        left_out = ("config", "cache_dir", "from_tf")
        given = {k: v for k, v in call.kwargs.items() if k not in left_out}
        config = call.kwargs.get("config", Unknown("config"))
        return self.construct(value, [config, *call.args[1:]], given, call.node)

    def works_out_a_loss(self, cls: p.Class) -> bool:
        """True for a class with a method that calls a loss function."""
        called = (n for m in cls.methods.values() for n in p.walk(m.body) if isinstance(n, p.Call))
        lasts = (p.dotted(call.func).rpartition(".")[2] for call in called)
        known = frameworks.LOSSES | frameworks.CRITERIA
        return not known.isdisjoint(lasts)

    def passed_through(self, cls: p.Class, args: list[Value]) -> Value:
        """What the `apply` of an autograd function gives back as it was given, gradient and all; None for others."""
        if not {"forward", "backward"} <= cls.methods.keys():
            return None
        forward, backward = cls.methods["forward"], cls.methods["backward"]
        given = [param.name for param in forward.params[1:]]
        gradients = {param.name for param in backward.params[1:2]}
        for value, name in zip(args, given, strict=False):
            place = given.index(name)
            passes = all(_named(returned, 0) == name for returned in _returned(forward))
            if passes and all(_named(r, place) in gradients for r in _returned(backward)):
                return value
        return None

    def super_call(
        self, name: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> Value:
        frame: Frame | None = self.machine.frame
        while frame is not None and frame.owner is None:
            frame = frame.outer
        if frame is None or frame.owner is None:
            return Unknown(f"super().{name}")
        receiver = frame.receiver
        for parent in self.lineage(frame.owner)[1:]:
            if name in parent.methods:
                closure = Closure(parent.methods[name], None, parent)
                return self.invoke(closure, args, kwargs, receiver, node)
        if name == "__init__":
            return None
        engines = self.machine.engines
        if name == "compute_loss":
            special = engines.loss_of_trainer(args, kwargs, node)
        else:
            special = engines.framework_method(receiver, name, args, kwargs, node)
        if special is not None:
            return special[0]
        return self.machine.opaque_calls.call(None, Call(f"super().{name}", args, kwargs, node))

    def lineage(self, cls: p.Class) -> list[p.Class]:
        """The class and its bases as far as they can be read, nearest first."""
        found = self.lineages.get(cls)
        if found is None:
            self.lineages[cls] = found = [cls]
            seen = {cls}
            for current in found:
                for base in current.bases:
                    other = self.machine.cross_file.cls(base, current.source)
                    if other is not None and other not in seen:
                        seen.add(other)
                        found.append(other)
            self.machine.budget.spend(len(found) // LOOKS_OF_STEP * STEPS_OF_WALK)
        return found

    def all_bases(self, cls: p.Class) -> set[str]:
        return {
            base.rpartition(".")[2].split("[")[0] for c in self.lineage(cls) for base in c.bases
        }

    def picked(self, table: dict[Key, Value], index: Value, written: str) -> Value | None:
        """What an unknown key picks out of a table of functions, classes, contexts or objects; None for another table.

        Of objects of one class that goes backward or steps, each stands for all.
        """
        named = {k: v for k, v in table.items() if isinstance(k, str)}
        if not named or len(named) != len(table):
            return None
        classes = {v.cls for v in named.values() if isinstance(v, Object)}
        if len(classes) == 1 and all(isinstance(v, Object) for v in named.values()):
            first = next(iter(named.values()))
            return first if self.machine.cross_file.makes_events(first) else None
        if not all(isinstance(v, DEFINITIONS) for v in named.values()):
            return None
        trains = [k for k, v in named.items() if self.machine.cross_file.makes_events(v)]
        asked = index.text if isinstance(index, Unknown) else written
        chosen = self.machine.guards.picked(
            asked, tuple(named), (trains or list(named))[0], matters=bool(trains)
        )
        return named[chosen]

    def find_method(self, cls: p.Class, name: str) -> Closure | None:
        for owner in self.lineage(cls):
            if name in owner.methods:
                return Closure(owner.methods[name], None, owner)
        return None

    def method_of(self, value: Object, name: str) -> Bound | None:
        if value.cls is None:
            return None
        closure = self.find_method(value.cls, name)
        if closure is None:
            return None
        if "staticmethod" in closure.function.decorators:
            return Bound(None, closure)
        return Bound(value, closure)


def _ends_a_loop(param: p.Param, function: p.Function) -> bool:
    """True for a limit without which a function does nothing (`while step < max_steps`): who calls it sets it."""
    loops = (n for n in p.walk(function.body, into_functions=False) if isinstance(n, p.While))
    return any(
        isinstance(n, p.Name) and n.id == param.name
        for loop in loops
        for n in p.walk_expr(loop.test)
    )


def _part(batch: Unknown, name: str) -> Value:
    """What a batch gives for a parameter, whose name is the key: `model(**batch)`."""
    key = f"[{name!r}]"
    return batch.attributes.setdefault(key, derived(f"{batch.text}{key}", batch))


def _holds_back(flag: str, function: p.Function) -> bool:
    """True for a flag under which a function goes backward and does not step: `if not accumulate: optimizer.step()`."""
    for node in p.walk(function.body):
        match node:
            case p.If(test=p.Unary(op="not", operand=p.Name(id=name)), body=body) if name == flag:
                calls = (n for n in p.walk(body) if isinstance(n, p.Call))
                if any(p.dotted(call.func).endswith(".step") for call in calls):
                    return True
            case _:
                pass
    return False


def _returned(function: p.Function) -> list[p.Expr | None]:
    """What a function returns, in its order."""
    body = p.walk(function.body, into_functions=False)
    return [n.value for n in body if isinstance(n, p.Return)] or [None]


def _named(value: p.Expr | None, place: int) -> str:
    """The name that is returned at a place, by itself or among others; "" for anything else."""
    items = value.items if isinstance(value, p.Sequence) else (value,)
    item = items[place] if place < len(items) else None
    return item.id if isinstance(item, p.Name) else ""
