"""What names, attributes and calls mean: Python's own, torch's, and the roles'."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from accumlint.reading import frameworks, names
from accumlint.reading import program as p
from accumlint.reading.relevance import key
from accumlint.tracing import trace as t
from accumlint.tracing.iterating import Iterating
from accumlint.tracing.leaving import Stopped
from accumlint.tracing.library import call_library, pending_batches
from accumlint.tracing.numeric import word
from accumlint.tracing.tensors import Tensors, copied, derived, detached, flat, reduced
from accumlint.tracing.things import Things
from accumlint.tracing.values import (
    Batch,
    Bound,
    ClassValue,
    Closure,
    Context,
    Counted,
    Frame,
    Key,
    Lazy,
    Library,
    Method,
    Native,
    Number,
    Object,
    Partial,
    Ranks,
    Unknown,
    Value,
)  # fmt: skip

if TYPE_CHECKING:
    from accumlint.tracing.machine import Machine

MAX_DEPTH = 24
_BUILTINS = frozenset(
    {
        "range", "enumerate", "zip", "len", "iter", "next", "list", "tuple", "dict", "set", "int", "float", "bool",
        "str", "abs", "max", "min", "sum", "round", "print", "isinstance", "hasattr", "getattr", "setattr", "map",
        "filter", "sorted", "reversed", "any", "all", "super", "type", "callable", "divmod", "pow", "object", "open",
        "id", "repr", "vars", "delattr", "issubclass", "property", "exit", "quit", "input", "slice",
    }
)  # fmt: skip
_PLAIN_ATTRIBUTES = frozenset(
    {
        "config", "cfg", "training", "device", "dtype", "args", "hparams", "name", "shape", "device_ids",
        "generation_config",
    }
)  # fmt: skip
_RESCALES = re.compile(
    r"scale_grad|rescale_?grad|grad_scaler$|div(ide)?_grad|normali[sz]e_grad|multiply_grad"
)
_UNBOUND = frozenset(
    {
        "no_sync",
        "backward",
        "step",
        "zero_grad",
        "accumulate",
        "clip_grad_norm_",
        "scale",
        "forward",
        "no_backward_sync",
    }
)


class Calling:
    """The meaning of names, attributes and calls for one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.tensors = Tensors(machine)
        self.iterating = Iterating(machine)
        self.things = Things(machine, self)
        self.naming = ""
        self.locals_assigned: dict[str, object] = {}
        self.totals: set[str] = set()
        self.linear = self.tensors.linear
        self.threshold = self.tensors.threshold
        self.stream = self.iterating.stream
        self.cut: dict[object, Batch] = {}
        self.lineages: dict[p.Class, list[p.Class]] = {}

    # Names

    def free(self, name: str, node: p.Node) -> Value:
        """A name that nothing in reach has bound."""
        if name == "__name__":
            return "__main__"
        if name in _BUILTINS:
            return Library(name)
        home = self.machine.home
        if home.module is not None:
            found = self.machine.elsewhere.bound(home, name)
            return found[0] if found is not None else self.symbol(name, name, node)
        if name in self.machine.program.classes and name not in self.machine.program.imports:
            return ClassValue(self.machine.program.classes[name], None)
        if name in self.machine.program.imports:
            return self.imported(self.machine.program.imports[name])
        whole = self.machine.elsewhere.starred(name)
        return whole[0] if whole is not None else self.symbol(name, name, node)

    def imported(self, path: str) -> Library:
        """What the file that is being executed imports under a dotted path."""
        return Library(path, self.machine.home.source.path)

    def is_steps(self, name: str) -> bool:
        """True for the accumulation steps by name; what is counted up is a counter, whatever its name."""
        return names.is_steps(name) and name not in self.machine.home.relevance.counters

    def is_epoch(self, text: str, name: str) -> bool:
        """True for the number of the running epoch by name; what bounds a range is a number of epochs."""
        relevance = self.machine.home.relevance
        return (
            names.is_epoch(name)
            and not names.is_configuration(text)
            and name not in relevance.bounds
            and name not in relevance.counters
        )

    def symbol(self, text: str, name: str, node: p.Node, hint: object = None) -> Value:
        """Something that comes from elsewhere, known by its name alone; the same text is the same thing."""
        machine = self.machine
        if self.is_steps(name) or text in machine.home.relevance.window_names:
            machine.state.asked = True
            return machine.scenario.steps
        if self.is_epoch(text, name):
            return machine.passed()
        if names.is_updates_per_epoch(name):
            machine.state.asked = machine.state.length_asked = True
            return machine.scenario.length // machine.scenario.steps
        if text in machine.symbols:
            return machine.symbols[text]
        value = self._symbol(text, name, node, hint)
        machine.symbols[text] = value
        return value

    def _symbol(self, text: str, name: str, node: p.Node, hint: object) -> Value:
        relevance = self.machine.home.relevance
        role = "" if names.is_configuration(text) else self.role(name)
        if role and not isinstance(hint, bool):
            return self.things.symbol(role, text, node)
        if names.is_ranks(name):
            return Unknown(text, ranks=Ranks(text))
        if name in relevance.counters or names.is_start(name):
            return 0
        return Unknown(text, hint=hint)

    def role(self, name: str) -> str:
        """The role that a name suggests, and what the file does with it."""
        relevance = self.machine.home.relevance
        role = names.role_of(name)
        if name in relevance.optimizers and role in ("", "scheduler"):
            return "optimizer"
        if not role and name in relevance.models and name not in ("self", "p", "m", "module"):
            return "model"
        return role

    def named(self, name: str, path: str, value: Value, node: p.Node) -> Value:
        """A value that is being given a name: the name may tell what it is."""
        machine = self.machine
        if isinstance(value, int) and not isinstance(value, bool) and self.is_steps(name):
            computed = isinstance(node, p.Assign) and not isinstance(node.value, p.Const)
            if (
                computed
                and not machine.state.asked
                and machine.state.literal is None
                and not machine.state.loops
            ):
                # The number comes from sizes that somebody may choose otherwise.
                machine.state.asked = True
                return machine.scenario.steps
            if value > 1 and not machine.state.asked:
                machine.state.literal = value
            return value
        if isinstance(value, Object) and value.thing is not None and not value.used:
            self.things.rename(value, path)
            return value
        if not isinstance(value, Unknown):
            return value
        if names.is_ranks(name) and not value.tensor:
            return Unknown(path, ranks=Ranks(path))
        if value.things and not value.batches:
            back = next((x for x in value.things if x.text == path), None)
            if back is not None and (
                back.role == "engine" or sum(x.role == back.role for x in value.things) > 1
            ):
                return back
            same = [x for x in value.things if x.role == self.role(name)]
            if len(same) == 1 and (
                same[0].role in ("optimizer", "scheduler") or "wrap" in value.text
            ):
                return same[0]
        if not value.tensor and self.is_steps(name) and not value.loss:
            machine.state.asked = True
            return machine.scenario.steps
        if not value.tensor and names.is_updates_per_epoch(name):
            machine.state.asked = machine.state.length_asked = True
            return machine.scenario.length // machine.scenario.steps
        if not value.tensor and value.terms is None and value.hint is None and not value.loss:
            role = self.role(name)
            if (
                not role
                and (name in machine.home.relevance.counters or names.is_start(name))
                and not value.count
            ):
                # A counter taken up from a checkpoint starts at nothing in a fresh run.
                return 0
            given = [x for x in value.things if x.role == role == "model"]
            if given and not names.is_another(name):
                # What a helper makes of a model, or takes out of its wrapper, has its parameters.
                networks = frozenset[str]().union(*(x.networks for x in given))
                return Object(path, given[0].thing, networks=networks)
            if role and not value.parameters and not value.count:
                return self.things.symbol(role, path, node)
        elif (
            value.networks
            and not value.batches
            and self.role(name) in ("model", "optimizer", "scheduler")
        ):
            role = self.role(name)
            # What a factory makes of parameters is an optimizer; what is called a model then is only a part of one.
            if (
                (role == "optimizer" or not value.parameters)
                and not value.loss
                and value.terms is None
            ):
                known = machine.symbols.get(f"{role} of {value.text}")
                if known is None:
                    known = self.things.made(role, path, "", value.networks, node)
                    machine.symbols[f"{role} of {value.text}"] = known
                return known
        if "loss" in name.lower() and value.tensor and not value.loss:
            value.loss = True
        from_call = "(" in value.text and not names.is_skipped_step(value.text)
        if not value.tensor and from_call and not value.attributes and not value.count:
            # What a call returned is known to the reader by the name that it got.
            value.text = path
        return value

    def assigned(self, target: p.Expr, value: Value, node: p.Node) -> None:
        """Bookkeeping of running totals after an assignment."""
        text = p.dotted(target)
        if isinstance(node, p.Augment):
            return
        if isinstance(node, p.Assign) and isinstance(node.value, p.Binary) and node.value.op == "+":
            if p.dotted(node.value.left) == text and isinstance(value, Unknown):
                machine = self.machine
                old = Unknown(text)
                added = self.added(text, old, value, value, node)
                if added is not value:
                    self.machine.store(text, added)
                del machine
                return
        if isinstance(value, dict | Unknown):
            for total in [x for x in self.totals if x.startswith(f"{text}[")]:
                self.machine.emit(t.Reset(*self.machine.stamp(node, total), total))
        if text in self.totals and isinstance(value, Number):
            self.machine.emit(t.Reset(*self.machine.stamp(node, text), text))
        self.locals_assigned[text] = self.machine.iteration()

    def added(self, target: str, old: Value, value: Value, new: Unknown, node: p.Node) -> Value:
        """`target += value`: a running total, unless it was begun in this very iteration."""
        machine = self.machine
        if not isinstance(value, Unknown) or not machine.state.loops:
            return new
        if self.locals_assigned.get(target) == machine.iteration():
            return new
        if not value.batches and not value.loss and not value.networks:
            return new
        if not isinstance(old, Number | Unknown):
            return new
        self.totals.add(target)
        new.total = target
        # A sum of one micro-batch's own losses is no running total: it goes backward with its micro-batch.
        rounds = {b.when for b in new.batches}
        attached = bool(value.networks) and not machine.state.no_grad and len(rounds) != 1
        machine.emit(t.Add(*machine.stamp(node, target), target, attached, not value.loss))
        return new

    def gradient_changed(
        self, target: p.Expr, old: Value, op: str, value: Value, node: p.Node
    ) -> None:
        """`p.grad /= n`."""
        named = any(isinstance(n, p.Attr) and n.name == "grad" for n in p.walk_expr(target))
        alias = isinstance(old, Unknown) and old.parameters and ".grad" in old.text
        if op in "*/" and (named or alias):
            self.things.multiplied(old, op, value, node)

    def modulus(self, right: int) -> None:
        """A number's remainder was asked for: perhaps the window is written as a number."""
        state = self.machine.state
        if right > 1 and right <= 512 and right != self.machine.scenario.steps and state.loops:
            if state.literal is None:
                state.literal = right

    # Attributes and items

    def attribute(self, base: Value, name: str, node: p.Node) -> Value:
        match base:
            case Object():
                return self.object_attribute(base, name, node)
            case Unknown():
                return self.unknown_attribute(base, name, node)
            case Library(path=path, importer=importer):
                full = f"{path}.{name}"
                if full in self.machine.symbols:
                    return self.machine.symbols[full]
                if self.is_steps(name):
                    known = self.machine.elsewhere.constant(Library(full, importer))
                    return known[0] if known is not None else self.symbol(full, name, node)
                return Library(full, importer)
            case ClassValue(cls=cls):
                method = self.find_method(cls, name)
                if method is not None:
                    return method
                return self.class_attribute(cls, name, f"{cls.name}.{name}", node)
            case None:
                return Unknown(f"None.{name}")
            case slice():
                return Unknown(name)
            case _:
                return Method(base, name, f"{word(base)}.{name}")

    def object_attribute(self, base: Object, name: str, node: p.Node) -> Value:
        if name in base.attributes:
            return base.attributes[name]
        special = self.things.attribute(base, name, node)
        if special is not None:
            return special
        if base.cls is not None:
            method = self.method_of(base, name)
            if method is not None:
                if "property" in method.closure.function.decorators or any(
                    d.endswith("cached_property") for d in method.closure.function.decorators
                ):
                    return self.invoke(method.closure, [], {}, method.receiver, node)
                return method
        if name in _UNBOUND and base.role:
            return Method(base, name, f"{base.text}.{name}")
        text = f"{base.text}.{name}"
        if base.cls is not None:
            return self.class_attribute(base.cls, name, text, node)
        if base.networks and name not in _PLAIN_ATTRIBUTES and base.role == "model":
            if text not in self.machine.symbols:
                self.machine.symbols[text] = self.things.part(base, text)
            return self.machine.symbols[text]
        return self.symbol(text, name, node)

    def class_attribute(self, cls: p.Class, name: str, text: str, node: p.Node) -> Value:
        if text in self.machine.symbols:
            return self.machine.symbols[text]
        for owner in self.lineage(cls):
            for statement in owner.body:
                if isinstance(statement, p.Assign):
                    for target in statement.targets:
                        if isinstance(target, p.Name) and target.id == name:
                            value = self.machine.eval(statement.value)
                            # A default of a configuration class may be overridden by whoever makes it.
                            if isinstance(value, Number) and self.is_steps(name):
                                return self.symbol(text, name, node)
                            if isinstance(value, bool) and any(
                                "dataclass" in d for d in owner.decorators
                            ):
                                return self.symbol(text, name, node, hint=value)
                            return value
        return self.symbol(text, name, node)

    def unknown_attribute(self, base: Unknown, name: str, node: p.Node) -> Value:
        if name in base.attributes:
            return base.attributes[name]
        text = f"{base.text}.{name}"
        if name == "grad":
            return Unknown(text, frozenset(), base.networks, parameters=True)
        if base.parameters:
            return Unknown(text, frozenset(), base.networks, parameters=True)
        if self.is_epoch(text, name) and not base.batches:
            return self.machine.passed()
        if base.tensor:
            if name == "requires_grad" and base.networks:
                return True
            if name == "data" and base.loss:
                return detached(base)
            if self.is_steps(name) and not base.networks:
                return self.symbol(text, name, node)
            if name in ("shape", "device", "dtype", "is_cuda", "ndim"):
                found = Unknown(text, base.batches, count=name == "shape")
                found.counted = Counted("rows", (base,)) if name == "shape" else None
                return found
            found = derived(text, base, node=node)
            found.loss = base.loss or "loss" in name
            found.lost = base.lost and base.loss
            if name in ("data", "T", "real", "values") and base.terms is not None:
                found.terms = base.terms
            base.attributes[name] = found
            return found
        return self.symbol(text, name, node)

    def set_attribute(
        self, receiver: Value, name: str, value: Value, node: p.Node, path: str
    ) -> None:
        if name == "grad":
            if value is None:
                self.things.clear_parameters(receiver, node)
            else:
                self.things.replaced(receiver, value, node)
            return
        if name == "require_backward_grad_sync":
            self.things.sync_flag(receiver, value, node, path)
            return
        if isinstance(receiver, Object):
            self.things.set_attribute(receiver, name, value)
            receiver.attributes[name] = value
        elif isinstance(receiver, Unknown):
            receiver.attributes[name] = value
        elif isinstance(receiver, Library | ClassValue):
            text = receiver.path if isinstance(receiver, Library) else receiver.cls.name
            self.machine.symbols[f"{text}.{name}"] = value

    def set_item(self, base: Value, index: Value, value: Value) -> None:
        if isinstance(base, dict):
            if isinstance(index, str | int | float | bool | type(None)):
                base[index] = value
        elif isinstance(base, list) and isinstance(index, int) and -len(base) <= index < len(base):
            base[index] = value
        elif isinstance(base, Unknown) and isinstance(index, str | int):
            base.attributes[f"[{index!r}]"] = value
        elif isinstance(base, list) and base and isinstance(value, Unknown) and value.loss:
            base.append(value)

    def item(self, base: Value, index: Value, node: p.Item) -> Value:
        match base:
            case dict():
                if isinstance(index, str | int | float | bool | type(None)):
                    if index in base:
                        return base[index]
                    return Unknown(p.dotted(node))
                values = list(base.values())
                return values[0] if len(values) == 1 else derived(p.dotted(node), *values)
            case list() | tuple() | str():
                if isinstance(index, int) and -len(base) <= index < len(base):
                    return base[index]
                if isinstance(index, slice):
                    try:
                        return base[index]
                    except (TypeError, ValueError):
                        return base
                return derived(p.dotted(node), base) if base else Unknown(p.dotted(node))
            case Object():
                return self.things.item(base, index, node)
            case Unknown():
                return self.unknown_item(base, index, node)
            case Lazy():
                return Unknown(p.dotted(node))
            case _:
                text = p.dotted(node)
                if isinstance(index, str):
                    return self.symbol(text, index, node)
                return Unknown(text)

    def unknown_item(self, base: Unknown, index: Value, node: p.Item) -> Value:
        if isinstance(index, str):
            key = f"[{index!r}]"
            if key in base.attributes:
                return base.attributes[key]
            if not base.tensor:
                return self.symbol(f"{base.text}{key}", index, node)
            found = derived(f"{base.text}{key}", base, node=node)
            found.loss = "loss" in index or base.loss
            base.attributes[key] = found
            return found
        if not base.tensor:
            if isinstance(index, int):
                return self.symbol(f"{base.text}[{index}]", base.text.rpartition(".")[2], node)
            if isinstance(index, Unknown) and index.batches:
                return derived(f"{base.text}[…]", base, index, node=node)
            return Unknown(f"{base.text}[…]")
        if base.parameters:
            return base
        cut = self._cuts(index, node)
        if base.networks or not cut:
            found = derived(f"{base.text}[…]", base, node=node)
            found.rows = base.rows or (
                isinstance(index, tuple) and len(index) > 1 and not isinstance(index[1], slice)
            )
            found.loss = base.loss
            if base.terms is not None:
                found.terms = base.terms
            found.reduction = base.reduction
            found.count = base.count
            found.counted = base.counted
            found.whole = base if _drops_first(node) else base.whole
            return found
        return Unknown(f"{base.text}[…]", frozenset({self.piece(base, index)}))

    def _cuts(self, index: Value, node: p.Item) -> bool:
        """True when an index takes a varying part of the batch (not a column, not always the same part)."""
        if isinstance(index, tuple):
            return bool(index) and self._cuts(index[0], node)
        shown = node.index
        if isinstance(shown, p.Sequence) and shown.items:
            shown = shown.items[0]
        if isinstance(shown, p.Slice):
            return any(
                not isinstance(b, p.Const | p.Unary)
                for b in (shown.lower, shown.upper)
                if b is not None
            )
        return not isinstance(shown, p.Const | p.Unary | p.Compare)

    def piece_of_iteration(self) -> Batch:
        """The data of this iteration where nothing names it."""
        key = ("iteration", self.machine.iteration())
        if key not in self.cut:
            self.cut[key] = self.machine.fetch(None)
        return self.cut[key]

    def piece(self, base: Unknown, index: Value) -> Batch:
        """The part of a batch that an index takes; the same index in the same iteration is the same part."""
        parent = max(base.batches, key=lambda b: b.serial)
        key = (parent, _index_key(index), self.machine.iteration())
        if key not in self.cut:
            self.cut[key] = self.machine.fetch(parent, (parent.serial, _index_key(index)))
        return self.cut[key]

    def unpacked(self, value: Value, items: tuple[p.Expr, ...], node: p.Node) -> list[Value]:
        """The parts of a value for the targets of a tuple assignment."""
        wanted = len(items)
        starred = next((i for i, item in enumerate(items) if isinstance(item, p.Star)), None)
        if isinstance(value, list | tuple):
            values = list(value)
            if starred is not None and len(values) >= wanted - 1:
                after = wanted - starred - 1
                middle = values[starred : len(values) - after]
                return (
                    [*values[:starred], middle, *values[len(values) - after :]]
                    if after
                    else [*values[:starred], middle]
                )
            if len(values) == wanted:
                return values
        if isinstance(value, Unknown):
            found: list[Value] = []
            for i, item in enumerate(items):
                name = p.dotted(item.value if isinstance(item, p.Star) else item).rpartition(".")[2]
                part = derived(f"{value.text}[{i}]", value, node=node)
                part.loss = "loss" in name.lower() and value.tensor
                part.lost = value.lost and part.loss
                part.things = value.things
                part.counted = value.counted
                if "mask" in name.lower() and value.batches:
                    # What is masked with it is known by its name.
                    part.text = name
                if names.is_count(name):
                    part = detached(part)
                    part.count = True
                found.append(part)
            return found
        if isinstance(value, Object) and value.text.endswith(".optimizers()"):
            # Lightning hands out as many as the module configured.
            return [
                self.things.symbol("optimizer", p.dotted(i), node) if wanted > 1 else value
                for i in items
            ]
        if isinstance(value, Object) and value.role in ("model", "optimizer", "loader"):
            return [
                value
                if names.role_of(p.dotted(i).rpartition(".")[2]) == value.role
                else Unknown(f"{value.text}[…]")
                for i in items
            ]
        return [Unknown(f"{word(value)}[{i}]") for i in range(wanted)]

    # Calls

    def call(self, node: p.Call) -> Value:
        if p.dotted(node.func).rpartition(".")[2] in frameworks.REPORTS and self.things.report(
            node
        ):
            return None
        return self._call(node)

    def _call(self, node: p.Call) -> Value:
        func = node.func
        if isinstance(func, p.Attr):
            if (
                isinstance(func.base, p.Call)
                and isinstance(func.base.func, p.Name)
                and func.base.func.id == "super"
            ):
                args, kwargs = self.arguments(node)
                return self.super_call(func.name, args, kwargs, node)
            base = self.machine.eval(func.base)
            args, kwargs = self.arguments(node)
            receiver = p.dotted(func.base)
            if names.is_averaging(receiver.rpartition(".")[2].split("[")[0], func.name):
                found = self.method_of(base, func.name) if isinstance(base, Object) else None
                if self.things.average(receiver, found, base, node):
                    return None
            return self.method(base, func.name, args, kwargs, node)
        callee = self.machine.eval(func)
        args, kwargs = self.arguments(node)
        if isinstance(func, p.Name) and names.is_averaging("", func.id):
            if self.things.average(func.id, callee, None, node):
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
                return self.invoke(callee, args, kwargs, None, node)
            case Bound(receiver=receiver, closure=closure):
                return self.invoke(closure, args, kwargs, receiver, node)
            case ClassValue():
                return self.construct(callee, args, kwargs, node)
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
            case Unknown():
                return self.unknown_call(callee.text, callee, args, kwargs, node)
            case Context():
                return callee
            case _:
                return self.unknown_call("…", callee, args, kwargs, node)

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
                return self.unknown_method(base, name, args, kwargs, node)
            case list():
                return self.list_method(base, name, args, node)
            case dict():
                return self.dict_method(base, name, args, kwargs, node)
            case str():
                return _string_method(base, name, args)
            case ClassValue(cls=cls):
                found = self.find_method(cls, name)
                if found is not None:
                    if "classmethod" in found.function.decorators:
                        return self.invoke(found, args, kwargs, base, node)
                    return self.invoke(found, args, kwargs, None, node)
                return self.unknown_call(f"{cls.name}.{name}", base, args, kwargs, node)
            case Context(kind="stack"):
                return self.things.stack_method(base, name, args, node)
            case int() | float() | Fraction():
                # A tensor that is only a number here.
                return (
                    base
                    if name in frameworks.PASSING | frameworks.DETACHING | {"mean", "sum"}
                    else Unknown(name)
                )
            case None:
                return None
            case Lazy():
                return self.iterating.next(base) if name == "__next__" else Unknown(name)
            case _:
                value = self.attribute(base, name, node)
                return (
                    self.apply(value, args, kwargs, node)
                    if not isinstance(value, Method)
                    else Unknown(name)
                )

    def object_method(
        self, base: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> Value:
        if name in base.attributes:
            return self.apply(base.attributes[name], args, kwargs, node)
        if name == "module" and base.role in ("model", "engine"):
            return self.apply(self.object_attribute(base, name, node), args, kwargs, node)
        if base.role in ("", "model") or base.cls is not None:
            found = self.method_of(base, name)
            if found is not None and base.role != "optimizer":
                if base.role == "model" and name == "forward":
                    return self.things.forward(base, args, kwargs, node, found)
                value = self.invoke(found.closure, args, kwargs, found.receiver, node)
                if base.role == "model":
                    return self.things.part_of(base, value, args, kwargs, node, name)
                return value
        handled, value = self.things.method(base, name, args, kwargs, node)
        if handled:
            return value
        if base.cls is not None and base.role == "":
            special = self.things.framework_method(base, name, args, kwargs, node)
            if special is not None:
                return special[0]
            callee = self.symbol(f"{base.text}.{name}", name, node)
            if isinstance(callee, Object) and callee.role in ("model", "criterion"):
                # An attribute that a base class or somebody else sets.
                return self.call_object(callee, args, kwargs, node)
            return self.unknown_call(f"{base.text}.{name}", callee, args, kwargs, node, base)
        return self.unknown_call(f"{base.text}.{name}", base, args, kwargs, node)

    def unknown_method(
        self, base: Unknown, name: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> Value:
        if name in base.attributes:
            return self.apply(base.attributes[name], args, kwargs, node)
        if name == "backward" and (base.tensor or base.loss or not args):
            via = "scaler" if base.scaler is not None else "tensor"
            self.things.backward(
                base,
                via,
                node,
                kwargs,
                subject=p.dotted(node.func.base)
                if isinstance(node, p.Call) and isinstance(node.func, p.Attr)
                else base.text,
            )
            return None
        if name == "clone" and base.tensor and not base.parameters:
            return copied(base, node)
        if name in frameworks.PASSING:
            return base
        if name in frameworks.DETACHING:
            found = detached(base)
            if name in ("size", "numel"):
                found.count = True
                found.loss = False
                found.text = f"{base.text}.{name}()"
                found.counted = Counted("elements" if name == "numel" else "rows", (base,))
            elif name in ("eq", "ne"):
                found.counted = Counted("some", (base,))
            return found
        if name in ("nelement", "count_nonzero") and base.tensor and not base.networks:
            kind = "elements" if name == "nelement" else "some"
            found = Unknown(f"{base.text}.{name}()", base.batches, count=True)
            found.counted = base.counted or Counted(kind, (base,))
            return found
        if name in ("mean", "sum", "nanmean") and (base.tensor or base.loss):
            result = reduced(base, "sum" if name == "sum" else "mean", node)
            if not base.networks and name == "sum":
                result.loss = False
                result.count = True
                result.counted = base.counted or Counted("some", (base,))
            return result
        if name in ("div", "div_", "true_divide", "mul", "mul_", "multiply") and args:
            op = "/" if name.startswith(("div", "true")) else "*"
            if base.parameters:
                if isinstance(args[0], Unknown) and args[0].total:
                    self.tensors.read(args[0], True, node)
                if not name.endswith("_"):
                    return self.linear(op, base, args[0], node)
                self.things.multiplied(base, op, args[0], node)
                return base
            found = self.linear(op, base, args[0], node)
            if name.endswith("_") and isinstance(found, Unknown):
                base.terms, base.reduction = found.linear, found.reduction
                if base.terms and base.terms[0].atom is base:
                    fresh = derived(base.text, base)
                    fresh.loss, fresh.reduction = base.loss, base.reduction
                    base.terms = tuple(
                        replace(x, atom=fresh) if x.atom is base else x for x in base.terms
                    )
                return base
            return found
        if name in ("add", "add_", "sub") and args:
            return self.linear("+" if name.startswith("add") else "-", base, args[0], node)
        if base.parameters:
            return self.things.parameter_method(base, name, args, node)
        if name in ("clamp", "clamp_min", "clamp_", "clip") and base.batches and not base.networks:
            return base
        if name == "get" and args and isinstance(args[0], str):
            return self.symbol(
                f"{base.text}.{args[0]}",
                args[0],
                node,
                hint=args[1] if len(args) > 1 and isinstance(args[1], bool) else None,
            )
        if name in ("items", "values", "keys"):
            return Lazy("items" if name == "items" else "iter", [base])
        if name in ("chunk", "split", "unbind", "tensor_split"):
            return Unknown(f"{base.text}.{name}(…)", base.batches, base.networks, base.forwards)
        special = self.things.framework_method(base, name, args, kwargs, node)
        if special is not None:
            return special[0]
        text = f"{base.text}.{name}"
        if names.role_of(name) in ("model", "criterion") and not base.tensor:
            callee = self.symbol(text, name, node)
            if isinstance(callee, Object):
                return self.call_object(callee, args, kwargs, node)
        return self.unknown_call(text, base, args, kwargs, node)

    def unknown_call(
        self,
        text: str,
        callee: Value,
        args: list[Value],
        kwargs: dict[str, Value],
        node: p.Node,
        owner: Object | None = None,
    ) -> Value:
        """A call that cannot be followed: what it returns depends on all that it got."""
        last = text.rpartition(".")[2]
        if self.is_steps(last) and not any(isinstance(a, Unknown) and a.tensor for a in args):
            # A method that works the steps out (`train.gradient_accumulation_iters(devices)`).
            self.machine.state.asked = True
            return self.machine.scenario.steps
        if names.is_ranks(last) and not args and not kwargs:
            shown = p.render(node) if isinstance(node, p.Call) else text
            return Unknown(shown, ranks=Ranks(shown))
        sources = (
            [callee, *args, *kwargs.values()]
            if isinstance(callee, Unknown | Object)
            else [*args, *kwargs.values()]
        )
        if last in frameworks.WRAPPING_ITERABLES or last.lower().startswith(
            ("tqdm", "prefetch", "progress")
        ):
            for source in args:
                if isinstance(source, Lazy | list | tuple) or (
                    isinstance(source, Object) and source.role == "loader"
                ):
                    return source
        if last in frameworks.HELPER_CLIPS or ("clip" in last and "grad" in last):
            self.things.clip(
                [a for a in flat(sources) if isinstance(a, Unknown | Object)], "torch", node, text
            )
            return Unknown("norm", pending_batches(self))
        if _RESCALES.search(last.lower()) and args:
            for source in flat(args):
                if isinstance(source, Unknown) and source.total:
                    self.tensors.read(source, True, node)
            self.things.rescaled(args[0], text, False, node)
            return None
        if (
            (last == "backward" or last.endswith("_backward"))
            and args
            and not last.startswith(("register", "before", "after", "on_"))
        ):
            loss = next((a for a in args if isinstance(a, Unknown) and (a.tensor or a.loss)), None)
            if loss is not None:
                self.things.backward(
                    loss, "engine", node, kwargs, divided=None, subject=text.rpartition(".")[0]
                )
                return None
        if "loss_scaler" in last and len(args) > 1:
            return self.things.native_scaler(
                self.things.symbol("scaler", text, node), args, kwargs, node
            )
        everything = flat(sources)
        if names.is_norm(last):
            self.things.norm(everything, node, text)
            return Unknown("norm")
        received = self.things.received(args, kwargs)
        if any(isinstance(s, Unknown) and s.batches for s in everything):
            # The model and its data: a forward.
            received.discard("model")
        if received and not self.machine.state.inside and not frameworks.is_harmless(text):
            inside = any(
                x.node in self.machine.relevance.backwards for x in self.machine.state.loops
            )
            self.machine.state.unread.append(t.Unread(node, text, frozenset(received), inside))
        self.things.handed(everything)
        found = derived(
            f"{text}(…)"
            if any(isinstance(s, Unknown) and s.tensor for s in everything)
            else p.render(node)
            if isinstance(node, p.Call)
            else text,
            *everything,
            node=node,
        )
        for source in everything:
            if isinstance(source, Object) and source.role == "model" and source.networks:
                if not self.machine.state.no_grad and not frameworks.is_harmless(text):
                    found.networks = found.networks | source.networks
                    found.forwards = (*found.forwards, *self.things.silent_forward(source, node))
        found.loss = "loss" in last.lower() and found.tensor
        library = text.startswith(("torch.", "F.")) or (
            isinstance(callee, Unknown) and callee.tensor
        )
        found.lost = any(
            isinstance(s, Unknown) and self.tensors.hides(s, library) for s in everything
        )
        if any(isinstance(s, Unknown) and s.parameters for s in everything):
            found.parameters = True
            found.networks = found.networks.union(
                *(s.networks for s in everything if isinstance(s, Unknown) and s.parameters)
            )
        if self.machine.state.no_grad:
            found.networks = frozenset()
        found.things = tuple(s for s in everything if isinstance(s, Object) and s.role)
        if last[:1].isupper() and "Output" in last:
            # A model's output holds what it is made of under the names that it is given.
            found.attributes.update((k, v) for k, v in kwargs.items() if isinstance(v, Unknown))
        return found

    def library(
        self, callee: Library, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> Value:
        """A call of something imported or built in."""
        followed = self.machine.elsewhere.call(callee, args, kwargs, node)
        if followed is not None:
            return followed[0]
        return call_library(self, callee.path, args, kwargs, node)

    def call_object(
        self, callee: Object, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> Value:
        if callee.role == "model" or (callee.role == "" and callee.networks and callee.cls is None):
            return self.things.forward(
                callee, args, kwargs, node, self.method_of(callee.inner or callee, "forward")
            )
        if callee.role == "criterion" and callee.cls is None:
            return self.tensors.loss_of(
                f"{callee.text}(…)",
                [*args, *kwargs.values()],
                callee.reduction,
                callee.varies,
                node,
            )
        call = self.method_of(callee, "__call__") or self.method_of(callee, "forward")
        if call is not None:
            return self.invoke(call.closure, args, kwargs, callee, node)
        if callee.role == "scaler" and len(args) > 1:
            return self.things.native_scaler(callee, args, kwargs, node)
        if callee.role == "engine":
            return self.things.forward(callee, args, kwargs, node, None)
        return self.unknown_call(callee.text, callee, args, kwargs, node)

    # Functions and classes of the project

    def invoke(
        self,
        closure: Closure,
        args: list[Value],
        kwargs: dict[str, Value],
        receiver: Value,
        node: p.Node,
    ) -> Value:
        """A call of a function whose body is known."""
        elsewhere = self.machine.elsewhere
        if elsewhere.crosses(closure.function):
            return elsewhere.entered(closure, args, kwargs, receiver, node)
        return self.executed(closure, args, kwargs, receiver, node)

    def executed(
        self,
        closure: Closure,
        args: list[Value],
        kwargs: dict[str, Value],
        receiver: Value,
        node: p.Node,
    ) -> Value:
        """What the body of a function gives."""
        function = closure.function
        decorators = function.decorators
        if function.yields and function.name != "<lambda>":
            bound: Closure | Bound = Bound(receiver, closure) if receiver is not None else closure
            if any(d.endswith("contextmanager") for d in decorators):
                return Context("generator", generator=bound, args=args, kwargs=kwargs)
            return Lazy("generator", args, closure=bound, kwargs=kwargs)
        machine = self.machine
        if machine.state.depth >= MAX_DEPTH:
            if key(function) in machine.relevance.reaching:
                raise Stopped("calls nested too deeply")
            return derived(f"{function.name}(…)", *flat([*args, *kwargs.values()]))
        quiet = any(d.split("(")[0].endswith(("no_grad", "inference_mode")) for d in decorators)
        frame = self.framed(closure, args, kwargs, receiver, node)
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

    def framed(
        self,
        closure: Closure,
        args: list[Value],
        kwargs: dict[str, Value],
        receiver: Value,
        node: p.Node,
    ) -> Frame:
        """A frame with the parameters bound; what was not given is known by its name."""
        function = closure.function
        home = self.machine.elsewhere.home_of(function.source)
        frame = Frame({}, closure.scope, owner=closure.owner, receiver=receiver, home=home)
        given = list(args)
        params = list(function.params)
        if (
            receiver is not None
            and params
            and not params[0].star
            and "staticmethod" not in function.decorators
        ):
            frame.names[params.pop(0).name] = receiver
        left = dict(kwargs)
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
                frame.names[param.name] = self.machine.elsewhere.default(param.default, home)
            else:
                frame.names[param.name] = self.parameter(param, function)
        for name, value in list(frame.names.items()):
            frame.names[name] = (
                self.named(name, name, value, function)
                if isinstance(value, Unknown)
                and (self.is_steps(name) or names.is_updates_per_epoch(name))
                else value
            )
        return frame

    def parameter(self, param: p.Param, function: p.Function) -> Value:
        """A parameter that nobody gives: known by its name, with its default as a hint."""
        default = param.default
        if isinstance(default, p.Const):
            if isinstance(default.value, bool):
                return self.symbol(param.name, param.name, function, hint=default.value)
            if (
                isinstance(default.value, int)
                and not self.is_steps(param.name)
                and names.is_start(param.name)
            ):
                return default.value
            if isinstance(default.value, str):
                return Unknown(param.name)
        if "loss" in param.name.lower() and not names.role_of(param.name):
            return Unknown(param.name, loss=True, lost=True)
        return self.symbol(param.name, param.name, function)

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
        receiver = closure.receiver if isinstance(closure, Bound) else None
        inner = closure.closure if isinstance(closure, Bound) else closure
        frame = self.framed(inner, args, kwargs, receiver, node)
        frame.on_yield = body
        frame.driver = node
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
        found = self.things.instance(cls, bases, node, flat([*args, *kwargs.values()]))
        init = self.find_method(cls, "__init__")
        if init is not None:
            self.invoke(init, args, kwargs, found, node)
        elif any("dataclass" in d for d in cls.decorators):
            found.attributes.update({k: v for k, v in kwargs.items() if k != "**"})
        return found

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
        special = self.things.framework_method(receiver, name, args, kwargs, node)
        if special is not None:
            return special[0]
        return self.unknown_call(f"super().{name}", None, args, kwargs, node)

    def lineage(self, cls: p.Class) -> list[p.Class]:
        """The class and its bases as far as they can be read, nearest first."""
        found = self.lineages.get(cls)
        if found is None:
            self.lineages[cls] = found = [cls]
            for current in found:
                for base in current.bases:
                    other = self.machine.elsewhere.base(base, current)
                    if other is not None and other not in found:
                        found.append(other)
        return found

    def all_bases(self, cls: p.Class) -> set[str]:
        return {
            base.rpartition(".")[2].split("[")[0] for c in self.lineage(cls) for base in c.bases
        }

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

    def context(self, value: Value, node: p.Node) -> Context:
        if isinstance(value, Context):
            return value
        if isinstance(value, Object) and value.cls is not None:
            enter, leave = self.method_of(value, "__enter__"), self.method_of(value, "__exit__")
            if enter is not None or leave is not None:
                return Context(
                    "plain",
                    (lambda at: self.invoke(enter.closure, [], {}, value, at)) if enter else None,
                    (
                        lambda at: _nothing(
                            self.invoke(leave.closure, [None, None, None], {}, value, at)
                        )
                    )
                    if leave
                    else None,
                )
        return Context("plain", lambda _: value)

    # Lists, dicts

    def list_method(self, base: list[Value], name: str, args: list[Value], node: p.Node) -> Value:
        match name:
            case "append" if args:
                base.append(args[0])
            case "extend" if args:
                base.extend(self.machine.items(args[0]))
            case "insert" if len(args) > 1:
                base.insert(args[0] if isinstance(args[0], int) else 0, args[1])
            case "pop":
                if base:
                    index = (
                        args[0]
                        if args and isinstance(args[0], int) and abs(args[0]) < len(base)
                        else -1
                    )
                    return base.pop(index)
                return Unknown("pop()")
            case "clear":
                base.clear()
            case "copy":
                return list(base)
            case "index" | "count":
                return Unknown(name)
            case _:
                return None
        return None

    def dict_method(
        self,
        base: dict[Key, Value],
        name: str,
        args: list[Value],
        kwargs: dict[str, Value],
        node: p.Node,
    ) -> Value:
        key = args[0] if args else None
        known = key if isinstance(key, str | int | float | bool | type(None)) else None
        match name:
            case "get" | "pop" | "setdefault":
                if known in base:
                    return base.pop(known) if name == "pop" else base[known]
                fallback = args[1] if len(args) > 1 else None
                if name == "setdefault" and known is not None:
                    base[known] = fallback
                return fallback
            case "items":
                return list(base.items())
            case "keys":
                return list(base)
            case "values":
                return list(base.values())
            case "update":
                if args and isinstance(args[0], dict):
                    base.update(args[0])
                base.update({k: v for k, v in kwargs.items() if k != "**"})
                return None
            case "copy":
                return dict(base)
            case _:
                return None


def _drops_first(node: p.Item) -> bool:
    """True for `labels[..., 1:]` and `labels[:, 1:]`."""
    index = node.index
    last = index.items[-1] if isinstance(index, p.Sequence) and len(index.items) == 2 else None
    return isinstance(last, p.Slice) and last.upper is None and p.shown(last) == "1:"


def _string_method(base: str, name: str, args: list[Value]) -> Value:
    match name, args:
        case "lower", []:
            return base.lower()
        case "upper", []:
            return base.upper()
        case "title", []:
            return base.title()
        case "strip", []:
            return base.strip()
        case "lstrip", []:
            return base.lstrip()
        case "rstrip", []:
            return base.rstrip()
        case "startswith", [str() as start, *_]:
            return base.startswith(start)
        case "endswith", [str() as end, *_]:
            return base.endswith(end)
        case _:
            return Unknown(f"{base!r}.{name}")


def _index_key(index: Value) -> object:
    if isinstance(index, slice):
        return ("slice", _index_key(index.start), _index_key(index.stop))
    if isinstance(index, tuple):
        return tuple(_index_key(i) for i in index)
    if isinstance(index, Number | str | None):
        return index
    return word(index)


def _nothing(_: Value) -> None:
    return None
