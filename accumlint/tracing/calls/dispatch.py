"""What a call does: Python's own, torch's, the project's, and the roles'."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from accumlint.reading import frameworks, names, usage
from accumlint.reading import ir as p
from accumlint.reading.excerpts import Excerpt
from accumlint.reading.gradient_slice import key
from accumlint.reading.modules import Definition, anything
from accumlint.tracing import trace as t
from accumlint.tracing.calls import containers
from accumlint.tracing.calls.call import Answer, Call
from accumlint.tracing.calls.cross_file import passed_through, works_out_a_loss
from accumlint.tracing.calls.library import call_library
from accumlint.tracing.calls.opaque import OpaqueCalls
from accumlint.tracing.gradients.tensors import flat
from accumlint.tracing.objects import skips_steps
from accumlint.tracing.parts import Parts
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

_OF_NUMBERS = frozenset({"torch", "math", "np", "numpy"})
# What torch's modules give themselves back from.
_MOVING = frozenset({"to", "cuda", "cpu", "half", "float", "double", "bfloat16", "train", "eval"})
_CLIPPING = (t.Clip, t.Rescale, t.Unscale, t.Step)
_TABLED = frozenset({"Accelerator", "Fabric"}).union(
    frameworks.WRAPPERS, frameworks.SCALERS, frameworks.NATIVE_SCALERS, frameworks.LOADERS, frameworks.OPTIMIZERS,
    frameworks.OPTIMIZER_FACTORIES, frameworks.SCHEDULERS, frameworks.CLIPS, frameworks.HELPER_CLIPS,
    frameworks.WRAPPING_ITERABLES,
)  # fmt: skip


class Dispatch:
    """The meaning of calls for one machine."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.opaque_calls = OpaqueCalls(parts)

    def call(self, node: p.Call) -> Value:
        called = p.dotted(node.func)
        receiver, _, last = called.rpartition(".")
        # A logarithm is no entry in a log.
        shows = frameworks.is_report(last) and node.args and receiver not in _OF_NUMBERS
        if shows and self.parts.losses.report(node) and last in frameworks.REPORTS:
            return None
        return self._call(node)

    def _call(self, node: p.Call) -> Value:
        func = node.func
        if isinstance(func, p.Attr):
            of = func.base.func if isinstance(func.base, p.Call) else None
            if isinstance(of, p.Name) and of.id == "super":
                return self.parts.function_calls.super_call(self.evaluated(node, func.name))
            base = self.parts.eval(func.base)
            if base is None:
                base = self.parts.resolver.used(func.base)
            call = self.evaluated(node, func.name)
            receiver = p.dotted(usage.unwrapped(func.base))
            roles = self.parts.roles.file
            averaging = roles.is_averaging(receiver.rpartition(".")[2].split("[")[0], func.name)
            if averaging and not _gives_numbers(node, call.args):
                owned = isinstance(base, Object)
                found = self.parts.cross_file.method_of(base, func.name) if owned else None
                if self.parts.updates.average(receiver, found, base, node):
                    return None
            return self.method(base, call)
        callee = self.parts.eval(func)
        call = self.evaluated(node, "…")
        if isinstance(callee, Unknown) and isinstance(func, p.Name) and not callee.tensor:
            if self.parts.roles.of(func.id) == "criterion":
                # Whatever made it, it works out a loss.
                callee = self.parts.objects.symbol("criterion", func.id, node)
        if isinstance(func, p.Name) and names.is_averaging("", func.id):
            if self.parts.updates.average(func.id, callee, None, node):
                return None
        return self.apply(callee, call.args, call.kwargs, node)

    def evaluated(self, node: p.Call, path: str) -> Call:
        """A call with the values of its arguments."""
        args: list[Value] = []
        kwargs: dict[str, Value] = {}
        for argument in node.args:
            value = self.parts.eval(argument.value)
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
        return Call(path, args, kwargs, node)

    def apply(
        self, callee: Value, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> Value:
        match callee:
            case Closure():
                call = Call(callee.function.name, args, kwargs, node)
                return self.parts.function_calls.invoke(callee, None, call)
            case Bound(receiver=receiver, closure=closure):
                call = Call(closure.function.name, args, kwargs, node)
                return self.parts.function_calls.invoke(closure, receiver, call)
            case ClassValue():
                return self.parts.function_calls.construct(
                    callee, Call("__init__", args, kwargs, node)
                )
            case Library():
                return self.library(callee, Call(callee.path, args, kwargs, node))
            case Method(receiver=receiver, name=name):
                return self.method(receiver, Call(name, args, kwargs, node))
            case Partial():
                return self.apply(
                    callee.callee, [*callee.args, *args], {**callee.kwargs, **kwargs}, node
                )
            case Native():
                return callee.call(args, kwargs)
            case Object():
                return self.call_object(callee, Call(callee.text, args, kwargs, node))
            case Unknown(text=text, loss=True, lost=True) if text.endswith("loss"):
                # A parameter called `loss` that is called is no loss yet, but works one out.
                criterion = self.parts.objects.symbol("criterion", callee.text, node)
                return self.apply(criterion, args, kwargs, node)
            case Unknown():
                return self.opaque_calls.call(callee, Call(callee.text, args, kwargs, node))
            case Context():
                return callee
            case _:
                return self.opaque_calls.call(callee, Call("…", args, kwargs, node))

    def method(self, base: Value, call: Call) -> Value:
        """A call of a method by its name."""
        name, args, kwargs, node = call.path, call.args, call.kwargs, call.node
        match base:
            case Library(path=path, importer=importer):
                full = f"{path}.{name}"
                if full in self.parts.symbols:
                    return self.apply(self.parts.symbols[full], args, kwargs, node)
                return self.library(Library(full, importer), Call(full, args, kwargs, node))
            case Object():
                return self.object_method(base, call)
            case Unknown():
                return self.opaque_calls.method(base, call)
            case list():
                return containers.list_method(base, name, args, self.parts.iteration.items)
            case dict():
                if name in ("get", "pop") and args and isinstance(args[0], Unknown):
                    picked = self.parts.cross_file.picked(base, args[0], args[0].text)
                    if picked is not None:
                        return picked
                return containers.dict_method(base, name, args, kwargs)
            case str():
                return containers.string_method(base, name, args)
            case ClassValue(cls=cls):
                found = self.parts.cross_file.find_method(cls, name)
                if found is not None:
                    receiver = base if "classmethod" in found.function.decorators else None
                    return self.parts.function_calls.invoke(found, receiver, call)
                if name == "apply" and (passed := passed_through(cls, args)):
                    return passed
                if name == "from_pretrained" and works_out_a_loss(cls):
                    return self.parts.function_calls.from_pretrained(base, call)
                return self.opaque_calls.call(base, replace(call, path=f"{cls.name}.{name}"))
            case Context(kind="stack"):
                return self.parts.sync_contexts.stack_method(base, name, args, node)
            case int() | float() | Fraction():
                # A tensor that is only a number here.
                known = frameworks.PASSING | frameworks.DETACHING | {"mean", "sum"}
                return base if name in known else Unknown(name)
            case None:
                return None
            case Lazy():
                return self.parts.iteration.next(base) if name == "__next__" else Unknown(name)
            case _:
                value = self.parts.attributes.attribute(base, name, node)
                if isinstance(value, Method):
                    return Unknown(name)
                return self.apply(value, args, kwargs, node)

    def object_method(self, base: Object, call: Call) -> Value:
        name, args, kwargs, node = call.path, call.args, call.kwargs, call.node
        if name in base.attributes:
            held = base.attributes[name]
            if held is None:
                held = self.parts.resolver.put_later(base, name, node)
            return self.apply(held, args, kwargs, node)
        if name == "module" and base.role in ("model", "engine"):
            inner = self.parts.attributes.object_attribute(base, name, node)
            return self.apply(inner, args, kwargs, node)
        opaque = Call(f"{base.text}.{name}", args, kwargs, node)
        if base.role in ("", "model") or base.cls is not None:
            found = self.parts.cross_file.method_of(base, name)
            if found is not None and base.role not in ("optimizer", "scheduler"):
                if base.role == "model" and name == "forward":
                    return self.parts.losses.forward(base, call, found)
                if base.role == "model" and "loss" in name and _is_left_open(found):
                    # A subclass works the loss out.
                    return self._loss_by(base, call)
                if base.role == "" and _is_abstract(found):
                    return self.opaque_calls.call(None, opaque)
                value = self.parts.function_calls.invoke(found.closure, found.receiver, call)
                trains = key(found.closure.function) in self.parts.relevance.reaching_backward
                if base.role == "model" and not trains:
                    return self.parts.losses.part_of(base, value, call)
                # What trains itself gives what it says.
                return value
        handled = self.parts.object_methods.method(base, call)
        if handled is not NotImplemented:
            return handled
        if base.cls is not None and base.role == "":
            if name in _MOVING:
                # A loss of one's own is a module, and the same one elsewhere.
                return base
            special = self.parts.engines.framework_method(base, call)
            if special is not NotImplemented:
                return special
            callee = self.parts.resolver.symbol(opaque.path, name, node)
            if isinstance(callee, Object) and callee.role in ("model", "criterion"):
                # An attribute that a base class or somebody else sets.
                return self.call_object(callee, replace(call, path=callee.text))
            return self.opaque_calls.call(callee, opaque)
        return self.opaque_calls.call(base, opaque)

    def _loss_by(self, model: Object, call: Call) -> Value:
        """A loss that a model's own method, or what is given the model, works out of a forward."""
        value = self.parts.losses.forward(model, call, None)
        if isinstance(value, Unknown):
            value.loss = True
        return value

    def library(self, callee: Library, call: Call) -> Value:
        """A call of something imported or built in."""
        found = self._imported(callee, call)
        return found if found is not NotImplemented else call_library(self.parts, call)

    def _imported(self, callee: Library, call: Call) -> Answer:
        """What a call of something imported gives; NotImplemented where it is not followed."""
        last, parts = call.last, self.parts
        if last == "from_pretrained":
            return self._from_pretrained(callee, call)
        definition = self.parts.cross_file.find(callee)
        # A class that the project defines under a framework's name is the project's, but for the framework's source.
        defined = definition is not None and not callee.path.startswith(
            ("accelerate.", "lightning")
        )
        tabled = last in _TABLED and not (defined and last in ("Accelerator", "Fabric"))
        if tabled or (definition is not None and _clips_by_own_means(definition)):
            return NotImplemented
        if definition is not None and _is_scheduler(definition):
            return parts.objects.made("scheduler", "", last, frozenset(), call.node)
        if definition is not None and len(definition.attributes) == 1:
            excerpt = self.parts.cross_file.followed(Definition(definition.module, definition.name))
            cls = excerpt.statement if excerpt is not None else None
            found = parts.cross_file.find_method(cls, last) if isinstance(cls, p.Class) else None
            if isinstance(cls, p.Class) and found is not None:
                return self.method(ClassValue(cls, None), replace(call, path=last))
        excerpt = self.parts.cross_file.followed(definition) or self._given_a_gradient(callee, call)
        match excerpt.statement if excerpt is not None else None:
            case p.Function() as function if function not in self.parts.cross_file.borders.refused:
                before = len(parts.state.events)
                value = parts.function_calls.invoke(Closure(function, None), None, call)
                done = parts.state.events[before:]
                clips = not names.is_clip(last) or any(isinstance(e, _CLIPPING) for e in done)
                clears = not names.is_clearing(last) or any(isinstance(e, t.Clear) for e in done)
                tells = (excerpt is not None and excerpt.is_eventful) or _tells(value)
                # Where nothing is seen of how it clips, by means of its own, its name stands for it.
                return value if clips and clears and tells else NotImplemented
            case p.Class() as cls:
                return parts.function_calls.construct(ClassValue(cls, None), call)
            case _:
                return NotImplemented

    def _given_a_gradient(self, callee: Library, call: Call) -> Excerpt | None:
        """The excerpt of a function that a loss, or what a network gave, passes through."""
        passed = flat(call.given)
        if not callee.importer or not any(isinstance(v, Unknown) and v.networks for v in passed):
            return None
        project = self.parts.cross_file.borders.project
        definition = project.find(callee.path, callee.importer, anything)
        return self.parts.cross_file.executable(
            project.of_values(definition) if definition is not None else None
        )

    def _from_pretrained(self, callee: Library, call: Call) -> Answer:
        """What a class of another file makes of a checkpoint, where its forward tells of a loss."""
        holder = Library(callee.path.rpartition(".")[0], callee.importer)
        excerpt = self.parts.cross_file.followed(self.parts.cross_file.find(holder))
        match excerpt.statement if excerpt is not None else None:
            case p.Class() as cls if works_out_a_loss(cls):
                if self.parts.cross_file.find_method(cls, "from_pretrained") is not None:
                    return NotImplemented
                return self.parts.function_calls.from_pretrained(ClassValue(cls, None), call)
            case _:
                return NotImplemented

    def call_object(self, callee: Object, call: Call) -> Value:
        if callee.role == "model" or (callee.role == "" and callee.networks and callee.cls is None):
            own = self.parts.cross_file.method_of(callee.inner or callee, "forward")
            return self.parts.losses.forward(callee, call, own)
        if callee.role == "criterion" and callee.cls is None:
            given = call.given
            model = next((a for a in given if isinstance(a, Object) and a.role == "model"), None)
            if model is not None and any(isinstance(a, Unknown) and a.batches for a in given):
                # It calls the model that it is given.
                rest = [a for a in given if a is not model]
                return self._loss_by(model, replace(call, args=rest, kwargs={}))
            text = f"{callee.text}(…)"
            return self.parts.tensors.loss_of(
                text, given, callee.reduction, callee.varies, call.node
            )
        method_of = self.parts.cross_file.method_of
        own = method_of(callee, "__call__") or method_of(callee, "forward")
        if own is not None:
            return self.parts.function_calls.invoke(own.closure, callee, call)
        if callee.role == "scaler" and len(call.args) > 1 and not _are_parameters(call.first):
            return self.parts.updates.native_scaler(callee, call)
        if callee.role == "engine":
            return self.parts.losses.forward(callee, call, None)
        return self.opaque_calls.call(callee, call)


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


def _clips_by_own_means(definition: Definition) -> bool:
    """True for a function that its name says to clip gradients, with nothing in it that a table knows."""
    if not names.is_clip(definition.name) or definition.block.is_class:
        return False
    return not definition.calls & (frameworks.CLIPS | {"unscale_", "step", "backward"})


def _is_scheduler(definition: Definition) -> bool:
    """True for a class that derives from one of torch's schedulers, and moves whenever it is told to."""
    plain = definition.name and not definition.attributes
    derived = plain and frameworks.is_scheduler(definition.block.bases)
    cls = definition.module.part(definition.name) if derived else None
    return isinstance(cls, p.Class) and not skips_steps(cls)


def _tells(value: Value) -> bool:
    """True for a result that says more than its name does."""
    match value:
        case Unknown():
            return value.tensor or value.loss
        case Object():
            return bool(value.role) or value.cls is not None
        case tuple() | list():
            return any(_tells(part) for part in flat([value]) if not isinstance(part, tuple | list))
        case _:
            return value is not None and not isinstance(value, Library)
