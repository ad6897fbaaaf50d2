"""Functions and classes of the project: their frames, parameters, methods and base classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from accumlint.reading import ir as p
from accumlint.reading import names
from accumlint.reading.gradient_slice import key
from accumlint.reading.syntax import Source
from accumlint.tracing import trace as t
from accumlint.tracing.attributes import Attributes
from accumlint.tracing.calls.call import Answer, Call
from accumlint.tracing.calls.containers import record
from accumlint.tracing.calls.cross_file import CrossFile, works_out_a_loss
from accumlint.tracing.control.exits import PythonError, Stopped, TooFar
from accumlint.tracing.control.guards import Guards
from accumlint.tracing.gradients.engines import Engines
from accumlint.tracing.gradients.tensors import derived, flat
from accumlint.tracing.machine import Machine
from accumlint.tracing.name_resolver import NameResolver
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

MAX_DEPTH = 24
# A call that only makes a value may take so many expressions; past that it is not worth following.
MAX_NODES_OF_VALUE = 1_500
# All such calls of a run together.
MAX_NODES_OF_VALUES = 60_000
# How often a run goes through one evaluation. What the training does with it shows by then.
_MEASURED = 2
# Base classes of what only holds values under names.
_RECORDS = frozenset({"ModelOutput", "NamedTuple"})


@dataclass(eq=False, repr=False)
class FunctionCalls:
    """Executes the project's own functions and makes instances of its classes."""

    machine: Machine
    cross_file: CrossFile
    guards: Guards
    resolver: NameResolver
    engines: Engines
    attributes: Attributes
    # How many expressions took values of other files.
    spent: int = 0

    def __post_init__(self) -> None:
        self.objects = self.resolver.objects

    def invoke(self, closure: Closure, receiver: Value, call: Call) -> Value:
        """A call of a function whose body is known; an evaluation that was gone through twice gives what it gave."""
        state = self.machine.state
        measured = state.evaluated.get(closure.function, ())
        if len(measured) == _MEASURED:
            return measured[-1]
        begun, fetched = len(state.events), state.serial
        run = self._entered if self._crosses(closure.function) else self.executed
        call = Call(closure.function.name, call.args, call.kwargs, call.node)
        found = run(closure, receiver, call)
        if state.loops and names.is_evaluation(closure.function.name):
            # It fetches its data itself, and nothing that trains hears of it.
            given = any(isinstance(a, Unknown) and a.tensor for a in flat(call.given))
            events = state.events[begun:]
            aside = all(isinstance(e, t.Add | t.Reset) and "." not in e.total for e in events)
            if aside and state.serial > fetched and not given:
                state.evaluated.setdefault(closure.function, []).append(found)
        return found

    def _crosses(self, function: p.Function) -> bool:
        """True for a function of another file, called by the one that is being checked."""
        at_home = self.machine.home is self.machine.main
        return at_home and function.source is not self.machine.program.source

    def _entered(self, closure: Closure, receiver: Value, call: Call) -> Value:
        """A call into another file. One that only makes a value is given up when it takes too long or raises."""
        machine = self.machine
        function, node = closure.function, call.node
        led_by, machine.led_by = machine.led_by, node
        try:
            if not machine.making and self.cross_file.reaches(
                function, lambda r: r.reaching_strong, node
            ):
                value = self.executed(closure, receiver, call)
                return self._given(value, node)
            if function not in machine.borders.refused:
                return self._given(self._tried(closure, receiver, call), node)
        finally:
            machine.led_by = led_by
        return machine.opaque_call(receiver, call)

    def _given(self, value: Value, node: p.Node) -> Value:
        """A result on its way into the checked file, where objects take the names that they are given there."""
        for given in flat([value]):
            traced = given.traced if isinstance(given, Object) else None
            if (
                isinstance(given, Object)
                and traced is not None
                and traced.node in self.machine.borders.leads
            ):
                given.traced = replace(traced, text=traced.role, node=node)
                given.text = traced.role
                given.used = False
        return value

    def _tried(self, closure: Closure, receiver: Value, call: Call) -> Value:
        machine, state = self.machine, self.machine.state
        ceiling, begun = machine.ceiling, state.nodes
        machine.ceiling = min(ceiling, begun + MAX_NODES_OF_VALUE)
        machine.making += 1
        value: Value = None
        try:
            value = self.executed(closure, receiver, call)
        except (PythonError, TooFar):
            machine.borders.refused.add(closure.function)
            self.guards.goal = self.guards.deciding = None
        finally:
            machine.ceiling = ceiling
            machine.making -= 1
            # The budget of a run is for its loops; what they are made of has one of its own.
            self.spent += state.nodes - begun
            state.nodes = begun
        if self.spent > MAX_NODES_OF_VALUES:
            raise Stopped("too many steps in other files")
        if closure.function in machine.borders.refused:
            return machine.opaque_call(receiver, call)
        return value

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
        home = self.cross_file.homes[function.source]
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
                frame.names[param.name] = self.cross_file.default(param.default, home)
            elif param.default is None and isinstance(spread, Unknown) and spread.batches:
                frame.names[param.name] = _part(spread, param.name)
            else:
                frame.names[param.name] = self.parameter(param, function)
        for name, value in list(frame.names.items()):
            told = self.resolver.roles.is_steps(name) or names.is_updates_per_epoch(name)
            if told and (isinstance(value, Unknown) or (value == 1 and type(value) is int)):
                frame.names[name] = self.resolver.named(name, name, value, function)
        return frame

    def parameter(self, param: p.Param, function: p.Function) -> Value:
        """A parameter that nobody gives: known by its type or its name, with its default as a hint."""
        trainer = self.trainer(param, function)
        if trainer is not None:
            return trainer
        default = param.default
        if default is not None and p.render(default) == "-1" and not _ends_a_loop(param, function):
            # Unset, as limits are.
            return self.resolver.symbol(param.name, param.name, function, hint=-1)
        if isinstance(default, p.Const):
            if isinstance(default.value, bool):
                return self.resolver.symbol(param.name, param.name, function, hint=default.value)
            if (
                isinstance(default.value, int)
                and not self.resolver.roles.is_steps(param.name)
                and names.is_start(param.name)
            ):
                return default.value
            if isinstance(default.value, str):
                return Unknown(param.name)
        if self.resolver.roles.file.is_loss(param.name):
            return Unknown(param.name, loss=True, lost=True)
        found = self.resolver.symbol(param.name, param.name, function)
        return self.annotated(found, param.annotation, function.source, function)

    def annotated(self, value: Value, annotation: str, source: Source, node: p.Node) -> Value:
        """A value that its annotation tells to be of a class of the project is what that class makes.

        Only classes of models and losses are looked for.
        """
        match value:
            case Object(cls=None, role="model" | "criterion") | Unknown(tensor=False, terms=None):
                cls = self.cross_file.cls(annotation, source) if annotation else None
            case _:
                return value
        call = Call("__init__", [], {"**": Unknown("kwargs")}, node)
        if isinstance(value, Object) and value.role == "model":
            init = self.cross_file.find_method(cls, "__init__") if cls is not None else None
            value.cls = cls if cls is not None and "forward" in cls.methods else None
            if value.cls is not None and init is not None:
                self.invoke(init, value, call)
        elif cls is not None and works_out_a_loss(cls):
            return self.construct(ClassValue(cls, None), call)
        return value

    def trainer(self, param: p.Param, function: p.Function) -> Value:
        """What a parameter holds that is annotated with a class of the project that trains."""
        machine = self.machine
        if not param.annotation:
            return None
        cls = self.cross_file.cls(param.annotation, function.source)
        if cls is None or not any(
            map(machine.relevance.reaching_backward.__contains__, map(key, cls.methods.values()))
        ):
            return None
        text = f"{cls.name} of {param.name}"
        if text not in machine.symbols:
            # A class may be given what it is given to.
            machine.symbols[text] = Unknown(param.name)
            call = Call("__init__", [], {"**": Unknown("kwargs")}, function)
            made = self.construct(ClassValue(cls, None), call)
            if isinstance(made, Object) and made.traced is None:
                made.text = param.name
            machine.symbols[text] = made
        return machine.symbols[text]

    def run_generator(
        self, closure: Closure | Bound, call: Call, body: Callable[[Value], None]
    ) -> None:
        """Runs a generator function, giving each yielded value to `body`."""
        machine = self.machine
        if machine.state.depth >= MAX_DEPTH:
            raise Stopped("calls nested too deeply")
        receiver = closure.receiver if isinstance(closure, Bound) else None
        inner = closure.closure if isinstance(closure, Bound) else closure
        frame = self.framed(inner, receiver, call)
        frame.on_yield = body
        # Nobody asks a function that runs by itself: its loops go as far as they go.
        frame.driver = call.node if call.node is not inner.function else None
        saved, machine.frame = machine.frame, frame
        machine.state.depth += 1
        try:
            machine.entered.add(inner.function)
            machine.block(inner.function.body)
        finally:
            machine.frame = saved
            machine.state.depth -= 1

    def construct(self, value: ClassValue, call: Call) -> Value:
        cls, kwargs, node = value.cls, call.kwargs, call.node
        bases = self.cross_file.all_bases(cls)
        found = self.objects.instance(cls, bases, node, flat(call.given))
        init = self.cross_file.find_method(cls, "__init__")
        told = any("dataclass" in d for d in cls.decorators)
        if init is not None:
            self.invoke(init, found, call)
        elif (plain := not cls.methods and (told or not bases.isdisjoint(_RECORDS))) or told:
            given = (v for v in call.given if isinstance(v, Unknown))
            if plain and (self.machine.state.inside or any(v.tensor for v in given)):
                return record(cls.fields, call.args, kwargs, node)
            found.attributes.update({k: v for k, v in kwargs.items() if k != "**"})
        return found

    def from_pretrained(self, value: ClassValue, call: Call) -> Value:
        """A model that its library makes of a checkpoint: of its configuration, and what else is given."""
        left_out = ("config", "cache_dir", "from_tf")
        given = {k: v for k, v in call.kwargs.items() if k not in left_out}
        config = call.kwargs.get("config", Unknown("config"))
        return self.construct(value, replace(call, args=[config, *call.args[1:]], kwargs=given))

    def super_call(self, call: Call) -> Value:
        name = call.path
        frame: Frame | None = self.machine.frame
        while frame is not None and frame.owner is None:
            frame = frame.outer
        if frame is None or frame.owner is None:
            return Unknown(f"super().{name}")
        receiver = frame.receiver
        for parent in self.cross_file.lineage(frame.owner)[1:]:
            if name in parent.methods:
                closure = Closure(parent.methods[name], None, parent)
                return self.invoke(closure, receiver, call)
        if name == "__init__":
            return None
        if name == "compute_loss":
            special = self._loss_of_trainer(call)
        else:
            special = self.engines.framework_method(receiver, call)
        if special is not NotImplemented:
            return special
        return self.machine.opaque_call(None, replace(call, path=f"super().{name}"))

    def _loss_of_trainer(self, call: Call) -> Answer:
        """What `Trainer.compute_loss` of transformers returns: the model's loss, with its outputs where asked for."""
        args, kwargs, node = call.args, call.kwargs, call.node
        if len(args) < 2 or not isinstance(args[0], Object) or "num_items_in_batch" in kwargs:
            # What a model divides by the count that it is given is not known.
            return NotImplemented
        outputs = self.machine.apply(args[0], [], {"**": args[1]}, node)
        loss = self.attributes.attribute(outputs, "loss", node)
        with_outputs = True in (*args[2:3], kwargs.get("return_outputs"))
        return (loss, outputs) if with_outputs else loss


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
