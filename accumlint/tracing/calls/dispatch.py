"""What a call does: Python's own, torch's, the project's, and the roles'."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from accumlint.reading import frameworks, names, usage
from accumlint.reading import ir as p
from accumlint.reading.gradient_slice import key
from accumlint.tracing.calls import containers
from accumlint.tracing.calls.call import Call
from accumlint.tracing.calls.library import call_library
from accumlint.tracing.values import (
    Bound,
    ClassValue,
    Closure,
    Context,
    Lazy,
    Library,
    Method,
    Native,
    Object,
    Partial,
    Unknown,
    Value,
)  # fmt: skip

if TYPE_CHECKING:
    from accumlint.tracing.interpreter import Machine

_OF_NUMBERS = frozenset({"torch", "math", "np", "numpy"})
# What torch's modules give themselves back from.
_MOVING = frozenset({"to", "cuda", "cpu", "half", "float", "double", "bfloat16", "train", "eval"})


class Dispatch:
    """The meaning of calls for one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def call(self, node: p.Call) -> Value:
        called = p.dotted(node.func)
        receiver, _, last = called.rpartition(".")
        # A logarithm is no entry in a log.
        shows = frameworks.is_report(last) and node.args and receiver not in _OF_NUMBERS
        if shows and self.machine.losses.report(node) and last in frameworks.REPORTS:
            return None
        return self._call(node)

    def _call(self, node: p.Call) -> Value:
        func = node.func
        if isinstance(func, p.Attr):
            function_calls = self.machine.function_calls
            of = func.base.func if isinstance(func.base, p.Call) else None
            if isinstance(of, p.Name) and of.id == "super":
                args, kwargs = self.arguments(node)
                return function_calls.super_call(func.name, args, kwargs, node)
            base = self.machine.eval(func.base)
            if base is None:
                base = self.machine.attributes.used(func.base)
            args, kwargs = self.arguments(node)
            receiver = p.dotted(usage.unwrapped(func.base))
            roles = self.machine.resolver.roles
            averaging = roles.is_averaging(receiver.rpartition(".")[2].split("[")[0], func.name)
            if averaging and not _gives_numbers(node, args):
                found = (
                    function_calls.method_of(base, func.name) if isinstance(base, Object) else None
                )
                if self.machine.updates.average(receiver, found, base, node):
                    return None
            return self.method(base, func.name, args, kwargs, node)
        callee = self.machine.eval(func)
        args, kwargs = self.arguments(node)
        if isinstance(callee, Unknown) and isinstance(func, p.Name) and not callee.tensor:
            if self.machine.resolver.role(func.id) == "criterion":
                # Whatever made it, it works out a loss.
                callee = self.machine.objects.symbol("criterion", func.id, node)
        if isinstance(func, p.Name) and names.is_averaging("", func.id):
            if self.machine.updates.average(func.id, callee, None, node):
                return None
        return self.apply(callee, args, kwargs, node)

    def arguments(self, node: p.Call) -> tuple[list[Value], dict[str, Value]]:
        args: list[Value] = []
        kwargs: dict[str, Value] = {}
        for argument in node.args:
            value = self.machine.eval(argument.value)
            if argument.star == "*":
                args.extend(value if isinstance(value, list | tuple) else [value])
            elif argument.star == "**":
                if isinstance(value, dict):
                    kwargs.update({k: v for k, v in value.items() if isinstance(k, str)})
                else:
                    kwargs["**"] = value
            elif argument.keyword:
                kwargs[argument.keyword] = value
            else:
                args.append(value)
        return args, kwargs

    def apply(
        self, callee: Value, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> Value:
        match callee:
            case Closure():
                return self.machine.function_calls.invoke(callee, args, kwargs, None, node)
            case Bound(receiver=receiver, closure=closure):
                return self.machine.function_calls.invoke(closure, args, kwargs, receiver, node)
            case ClassValue():
                return self.machine.function_calls.construct(callee, args, kwargs, node)
            case Library():
                return self.library(callee, args, kwargs, node)
            case Method(receiver=receiver, name=name):
                return self.method(receiver, name, args, kwargs, node)
            case Partial():
                return self.apply(
                    callee.callee, [*callee.args, *args], {**callee.kwargs, **kwargs}, node
                )
            case Native():
                return callee.call(args, kwargs)
            case Object():
                return self.call_object(callee, args, kwargs, node)
            case Unknown(text=text, loss=True, lost=True) if text.endswith("loss"):
                # A parameter called `loss` that is called is no loss yet, but works one out.
                criterion = self.machine.objects.symbol("criterion", callee.text, node)
                return self.apply(criterion, args, kwargs, node)
            case Unknown():
                return self.machine.opaque_calls.call(callee, Call(callee.text, args, kwargs, node))
            case Context():
                return callee
            case _:
                return self.machine.opaque_calls.call(callee, Call("…", args, kwargs, node))

    def method(
        self, base: Value, name: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> Value:
        match base:
            case Library(path=path, importer=importer):
                full = f"{path}.{name}"
                if full in self.machine.symbols:
                    return self.apply(self.machine.symbols[full], args, kwargs, node)
                return self.library(Library(full, importer), args, kwargs, node)
            case Object():
                return self.object_method(base, name, args, kwargs, node)
            case Unknown():
                return self.machine.opaque_calls.method(base, Call(name, args, kwargs, node))
            case list():
                return containers.list_method(base, name, args, self.machine.items)
            case dict():
                if name in ("get", "pop") and args and isinstance(args[0], Unknown):
                    picked = self.machine.function_calls.picked(base, args[0], args[0].text)
                    if picked is not None:
                        return picked
                return containers.dict_method(base, name, args, kwargs)
            case str():
                return containers.string_method(base, name, args)
            case ClassValue(cls=cls):
                found = self.machine.function_calls.find_method(cls, name)
                if found is not None:
                    receiver = base if "classmethod" in found.function.decorators else None
                    return self.machine.function_calls.invoke(found, args, kwargs, receiver, node)
                if name == "apply" and (
                    passed := self.machine.function_calls.passed_through(cls, args)
                ):
                    return passed
                if name == "from_pretrained" and self.machine.function_calls.works_out_a_loss(cls):
                    return self.machine.function_calls.from_pretrained(
                        base, Call(name, args, kwargs, node)
                    )
                call = Call(f"{cls.name}.{name}", args, kwargs, node)
                return self.machine.opaque_calls.call(base, call)
            case Context(kind="stack"):
                return self.machine.sync_contexts.stack_method(base, name, args, node)
            case int() | float() | Fraction():
                # A tensor that is only a number here.
                known = frameworks.PASSING | frameworks.DETACHING | {"mean", "sum"}
                return base if name in known else Unknown(name)
            case None:
                return None
            case Lazy():
                return self.machine.iteration.next(base) if name == "__next__" else Unknown(name)
            case _:
                value = self.machine.attributes.attribute(base, name, node)
                if isinstance(value, Method):
                    return Unknown(name)
                return self.apply(value, args, kwargs, node)

    def object_method(
        self, base: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> Value:
        if name in base.attributes:
            held = base.attributes[name]
            if held is None:
                held = self.machine.attributes.put_later(base, name, node)
            return self.apply(held, args, kwargs, node)
        if name == "module" and base.role in ("model", "engine"):
            inner = self.machine.attributes.object_attribute(base, name, node)
            return self.apply(inner, args, kwargs, node)
        call = Call(f"{base.text}.{name}", args, kwargs, node)
        if base.role in ("", "model") or base.cls is not None:
            found = self.machine.function_calls.method_of(base, name)
            if found is not None and base.role not in ("optimizer", "scheduler"):
                if base.role == "model" and name == "forward":
                    return self.machine.losses.forward(base, args, kwargs, node, found)
                if base.role == "model" and "loss" in name and _is_left_open(found):
                    # A subclass works the loss out.
                    return self._loss_by(base, args, kwargs, node)
                if base.role == "" and _is_abstract(found):
                    return self.machine.opaque_calls.call(None, call)
                value = self.machine.function_calls.invoke(
                    found.closure, args, kwargs, found.receiver, node
                )
                trains = key(found.closure.function) in self.machine.relevance.reaching_backward
                if base.role == "model" and not trains:
                    return self.machine.losses.part_of(base, value, args, kwargs, node)
                # What trains itself gives what it says.
                return value
        if base.role == "model" and "loss" in name and ".unwrap_model(" in base.text:
            return self._loss_by(base, args, kwargs, node)
        handled, value = self.machine.objects.method(base, name, args, kwargs, node)
        if handled:
            return value
        if base.cls is not None and base.role == "":
            if name in _MOVING:
                # A loss of one's own is a module, and the same one elsewhere.
                return base
            special = self.machine.engines.framework_method(base, name, args, kwargs, node)
            if special is not None:
                return special[0]
            callee = self.machine.resolver.symbol(call.path, name, node)
            if isinstance(callee, Object) and callee.role in ("model", "criterion"):
                # An attribute that a base class or somebody else sets.
                return self.call_object(callee, args, kwargs, node)
            return self.machine.opaque_calls.call(callee, call)
        return self.machine.opaque_calls.call(base, call)

    def _loss_by(
        self, model: Object, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> Value:
        """A loss that a model's own method, or what is given the model, works out of a forward."""
        value = self.machine.losses.forward(model, args, kwargs, node, None)
        if isinstance(value, Unknown):
            value.loss = True
        return value

    def library(
        self, callee: Library, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> Value:
        """A call of something imported or built in."""
        call = Call(callee.path, args, kwargs, node)
        found = self.machine.cross_file.call(callee, call)
        return found if found is not NotImplemented else call_library(self.machine, call)

    def call_object(
        self, callee: Object, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> Value:
        if callee.role == "model" or (callee.role == "" and callee.networks and callee.cls is None):
            own = self.machine.function_calls.method_of(callee.inner or callee, "forward")
            return self.machine.losses.forward(callee, args, kwargs, node, own)
        if callee.role == "criterion" and callee.cls is None:
            given = [*args, *kwargs.values()]
            model = next((a for a in given if isinstance(a, Object) and a.role == "model"), None)
            if model is not None and any(isinstance(a, Unknown) and a.batches for a in given):
                # It calls the model that it is given.
                return self._loss_by(model, [a for a in given if a is not model], {}, node)
            text = f"{callee.text}(…)"
            return self.machine.tensors.loss_of(text, given, callee.reduction, callee.varies, node)
        call = self.machine.function_calls.method_of(
            callee, "__call__"
        ) or self.machine.function_calls.method_of(callee, "forward")
        if call is not None:
            return self.machine.function_calls.invoke(call.closure, args, kwargs, callee, node)
        if callee.role == "scaler" and len(args) > 1 and not _are_parameters(args[0]):
            return self.machine.updates.native_scaler(callee, args, kwargs, node)
        if callee.role == "engine":
            return self.machine.losses.forward(callee, args, kwargs, node, None)
        return self.machine.opaque_calls.call(callee, Call(callee.text, args, kwargs, node))


def _gives_numbers(node: p.Call, args: list[Value]) -> bool:
    """True where an average is given losses, scores or what was measured (`ema.update(*found)`), not weights."""
    if node.args and node.args[0].star:
        return True
    return bool(args) and isinstance(args[0], Unknown) and bool(args[0].batches)


def _is_abstract(method: Bound) -> bool:
    """True for a method that every subclass has to write anew."""
    function = method.closure.function
    if any(d.rpartition(".")[2] == "abstractmethod" for d in function.decorators):
        return True
    # A docstring may stand before it.
    match [s for s in function.body if not isinstance(s, p.Do)]:
        case [p.Raise(exception=raised)]:
            return raised.startswith("NotImplementedError")
        case _:
            return False


def _is_left_open(method: Bound) -> bool:
    """True for a method that says what subclasses are to do, and gives nothing itself."""
    body = [s for s in method.closure.function.body if not isinstance(s, p.Do)]
    match body:
        case [] | [p.Return(value=None | p.Const())] | [p.Raise()]:
            return True
        case _:
            return False


def _are_parameters(value: Value) -> bool:
    """True for what a helper that multiplies gradients is given, whatever it is called."""
    return isinstance(value, list | tuple) or (isinstance(value, Unknown) and value.parameters)
