"""What a call does: Python's own, torch's, the project's, and the roles'."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from accumlint.reading import frameworks, names, usage
from accumlint.reading import parts as p
from accumlint.reading.relevance import key
from accumlint.tracing import containers
from accumlint.tracing import trace as t
from accumlint.tracing.library import call_library, pending_batches
from accumlint.tracing.tensors import copied, derived, detached, flat, mean_over, summed
from accumlint.tracing.values import (
    Bound,
    ClassValue,
    Closure,
    Context,
    Counted,
    Lazy,
    Library,
    Method,
    Native,
    Object,
    Partial,
    Ranks,
    Unknown,
    Value,
)  # fmt: skip

if TYPE_CHECKING:
    from accumlint.tracing.machine import Machine

_OF_NUMBERS = frozenset({"torch", "math", "np", "numpy"})


class Calling:
    """The meaning of calls for one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def call(self, node: p.Call) -> Value:
        called = p.dotted(node.func)
        receiver, _, last = called.rpartition(".")
        # A logarithm is no entry in a log.
        shows = last in frameworks.REPORTS and node.args and receiver not in _OF_NUMBERS
        if shows and self.machine.losses.report(node):
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
                return self.machine.invoking.super_call(func.name, args, kwargs, node)
            base = self.machine.eval(func.base)
            if base is None:
                base = self.machine.members.used(func.base)
            args, kwargs = self.arguments(node)
            receiver = p.dotted(usage.unwrapped(func.base))
            averaging = names.is_averaging(receiver.rpartition(".")[2].split("[")[0], func.name)
            # An average of losses or scores is given these, not weights.
            if averaging and not (args and isinstance(args[0], Unknown) and args[0].batches):
                found = (
                    self.machine.invoking.method_of(base, func.name)
                    if isinstance(base, Object)
                    else None
                )
                if self.machine.updating.average(receiver, found, base, node):
                    return None
            return self.method(base, func.name, args, kwargs, node)
        callee = self.machine.eval(func)
        args, kwargs = self.arguments(node)
        if isinstance(callee, Unknown) and isinstance(func, p.Name) and not callee.tensor:
            if names.is_criterion(func.id):
                # Whatever made it, it works out a loss.
                callee = self.machine.things.symbol("criterion", func.id, node)
        if isinstance(func, p.Name) and names.is_averaging("", func.id):
            if self.machine.updating.average(func.id, callee, None, node):
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
                return self.machine.invoking.invoke(callee, args, kwargs, None, node)
            case Bound(receiver=receiver, closure=closure):
                return self.machine.invoking.invoke(closure, args, kwargs, receiver, node)
            case ClassValue():
                return self.machine.invoking.construct(callee, args, kwargs, node)
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
                criterion = self.machine.things.symbol("criterion", callee.text, node)
                return self.apply(criterion, args, kwargs, node)
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
                return containers.list_method(base, name, args, self.machine.items)
            case dict():
                return containers.dict_method(base, name, args, kwargs)
            case str():
                return containers.string_method(base, name, args)
            case ClassValue(cls=cls):
                found = self.machine.invoking.find_method(cls, name)
                if found is not None:
                    if "classmethod" in found.function.decorators:
                        return self.machine.invoking.invoke(found, args, kwargs, base, node)
                    return self.machine.invoking.invoke(found, args, kwargs, None, node)
                if name == "from_pretrained" and self.machine.invoking.works_out_a_loss(cls):
                    return self.machine.invoking.from_pretrained(base, args, kwargs, node)
                return self.unknown_call(f"{cls.name}.{name}", base, args, kwargs, node)
            case Context(kind="stack"):
                return self.machine.syncing.stack_method(base, name, args, node)
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
                return self.machine.iterating.next(base) if name == "__next__" else Unknown(name)
            case _:
                value = self.machine.members.attribute(base, name, node)
                return (
                    self.apply(value, args, kwargs, node)
                    if not isinstance(value, Method)
                    else Unknown(name)
                )

    def object_method(
        self, base: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> Value:
        if name in base.attributes:
            held = base.attributes[name]
            if held is None:
                held = self.machine.members.put_later(base, name, node)
            return self.apply(held, args, kwargs, node)
        if name == "module" and base.role in ("model", "engine"):
            return self.apply(
                self.machine.members.object_attribute(base, name, node), args, kwargs, node
            )
        if base.cls is not None and args and names.is_clipper(base.cls.name, name):
            self.machine.updating.clip(args, "torch", node, f"{base.text}.{name}")
            return Unknown("norm")
        if base.role in ("", "model") or base.cls is not None:
            found = self.machine.invoking.method_of(base, name)
            if found is not None and base.role != "optimizer":
                if base.role == "model" and name == "forward":
                    return self.machine.losses.forward(base, args, kwargs, node, found)
                if base.role == "model" and "loss" in name and _is_left_open(found):
                    # A subclass works the loss out.
                    return self._loss_by(base, args, kwargs, node)
                value = self.machine.invoking.invoke(
                    found.closure, args, kwargs, found.receiver, node
                )
                trains = key(found.closure.function) in self.machine.relevance.reaching_backward
                if base.role == "model" and not trains:
                    return self.machine.losses.part_of(base, value, args, kwargs, node, name)
                # What trains itself gives what it says.
                return value
        if base.role == "model" and "loss" in name and ".unwrap_model(" in base.text:
            return self._loss_by(base, args, kwargs, node)
        handled, value = self.machine.things.method(base, name, args, kwargs, node)
        if handled:
            return value
        if base.cls is not None and base.role == "":
            special = self.machine.engines.framework_method(base, name, args, kwargs, node)
            if special is not None:
                return special[0]
            callee = self.machine.naming.symbol(f"{base.text}.{name}", name, node)
            if isinstance(callee, Object) and callee.role in ("model", "criterion"):
                # An attribute that a base class or somebody else sets.
                return self.call_object(callee, args, kwargs, node)
            return self.unknown_call(f"{base.text}.{name}", callee, args, kwargs, node, base)
        return self.unknown_call(f"{base.text}.{name}", base, args, kwargs, node)

    def _loss_by(
        self, model: Object, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> Value:
        """A loss that a model's own method works out of a forward."""
        value = self.machine.losses.forward(model, args, kwargs, node, None)
        if isinstance(value, Unknown):
            value.loss = True
        return value

    def _weighed(
        self, loss: Unknown, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> Value:
        """A loss times the gradient that it goes backward from: `loss.backward(w)` is `(w * loss).backward()`."""
        gradient = args[0] if args else kwargs.get("gradient")
        if gradient is None or (isinstance(gradient, Unknown) and "ones" in gradient.text):
            return loss
        return self.machine.tensors.linear("*", loss, gradient, node)

    def unknown_method(
        self, base: Unknown, name: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> Value:
        if name in base.attributes:
            return self.apply(base.attributes[name], args, kwargs, node)
        stepped = self.machine.symbols.get(base.text)
        if isinstance(stepped, Object) and stepped.role == "optimizer":
            # A scaler stepped it before: an optimizer, whatever made it.
            return self.object_method(stepped, name, args, kwargs, node)
        if name == "backward" and base.text.endswith("booster"):
            # ColossalAI's: it hands the loss on to the optimizer's plugin, and divides nothing.
            loss = args[0] if args else kwargs.get("loss")
            self.machine.losses.backward(loss, "booster", node, kwargs, subject=base.text)
            return None
        named = "loss" in base.text.rpartition(".")[2].lower()
        if name == "backward" and (base.tensor or base.loss or named or not args):
            via = "scaler" if base.scaler is not None else "tensor"
            self.machine.losses.backward(
                self._weighed(base, args, kwargs, node),
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
        if name in ("reshape", "view") and base.varies.startswith(t.PICKED) and _is_told(args):
            # As many are picked every time, or it would fail.
            found = derived(base.text, base, node=node)
            found.varies = ""
            return found
        if name in frameworks.PASSING:
            return base
        if name in frameworks.DETACHING:
            found = detached(base)
            if name in ("size", "numel"):
                found.count = True
                found.loss = False
                # Which side it is tells rows from classes.
                side = args[0] if args and isinstance(args[0], int) else ""
                found.text = f"{base.text}.{name}({side})"
                found.counted = Counted("elements" if name == "numel" else "rows", (base,))
            elif name in ("eq", "ne"):
                found.counted = Counted("some", (base,))
            return found
        if name in ("nelement", "count_nonzero") and base.tensor and not base.networks:
            kind = "elements" if name == "nelement" else "some"
            found = Unknown(f"{base.text}.{name}()", base.batches, count=True)
            found.counted = base.counted or Counted(kind, (base,))
            return found
        if name == "sum" and (base.tensor or base.loss):
            over = args[0] if args else kwargs.get("dim", kwargs.get("axis"))
            found = summed(base, over, node)
            if base.weighs is not None and over is None and base.networks:
                return self.machine.tensors.normalised(found, base.weighs, node)
            return found
        if name in ("mean", "nanmean") and (base.tensor or base.loss):
            over = args[0] if args else kwargs.get("dim", kwargs.get("axis"))
            return mean_over(base, over, node)
        if name == "sum" and not args and not kwargs and not base.parameters:
            # Nobody knows what it is the sum of; the loss that is multiplied by it as a mask may.
            return Unknown(f"{base.text}.sum()", counted=Counted("some", (base,)))
        if name in ("div", "div_", "true_divide", "mul", "mul_", "multiply") and args:
            op = "/" if name.startswith(("div", "true")) else "*"
            if base.parameters:
                if isinstance(args[0], Unknown) and args[0].total:
                    self.machine.tensors.read(args[0], True, node)
                if not name.endswith("_"):
                    return self.machine.tensors.linear(op, base, args[0], node)
                self.machine.updating.multiplied(base, op, args[0], node)
                return base
            found = self.machine.tensors.linear(op, base, args[0], node)
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
            return self.machine.tensors.linear(
                "+" if name.startswith("add") else "-", base, args[0], node
            )
        if base.parameters:
            return self.machine.updating.parameter_method(base, name, args, node)
        if name in ("clamp", "clamp_min", "clamp_", "clip") and base.batches and not base.networks:
            return base
        if name == "get" and args and isinstance(args[0], str) and base.batches:
            if not base.networks and not base.loss:
                key = f"[{args[0]!r}]"
                return base.attributes.setdefault(
                    key, derived(f"{base.text}{key}", base, node=node)
                )
        if name == "get" and args and isinstance(args[0], str):
            return self.machine.naming.symbol(
                f"{base.text}.{args[0]}",
                args[0],
                node,
                hint=args[1] if len(args) > 1 and isinstance(args[1], bool) else None,
            )
        if name in ("items", "values", "keys"):
            return Lazy("items" if name == "items" else "iter", [base])
        if name in ("chunk", "tensor_split") and args:
            pieces = self.machine.iterating.pieces(base, args[0])
            if pieces is not None:
                return pieces
        if name in ("chunk", "split", "unbind", "tensor_split"):
            return Unknown(f"{base.text}.{name}(…)", base.batches, base.networks, base.forwards)
        special = self.machine.engines.framework_method(base, name, args, kwargs, node)
        if special is not None:
            return special[0]
        text = f"{base.text}.{name}"
        if names.role_of(name) in ("model", "criterion") and not base.tensor:
            callee = self.machine.naming.symbol(text, name, node)
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
        if self.machine.naming.is_steps(last) and not any(
            isinstance(a, Unknown) and a.tensor for a in args
        ):
            # A method that works the steps out (`train.gradient_accumulation_iters(devices)`).
            self.machine.state.asked = True
            return self.machine.scenario.steps
        if names.is_ranks(last) and not args and not kwargs:
            shown = p.render(node) if isinstance(node, p.Call) else text
            return Unknown(shown, ranks=Ranks(shown))
        model = next((a for a in [*args, *kwargs.values()] if isinstance(a, Object)), None)
        if frameworks.is_chance(last) and model is not None and model.role in ("model", "engine"):
            # No loss yet: it calls the model, and nothing is divided there.
            rest = [a for a in [*args, *kwargs.values()] if a is not model]
            if names.is_another(model.text.rpartition(".")[2]):
                # A reference, that nobody trains.
                return derived(f"{text}(…)", *rest, node=node)
            return self.machine.losses.forward(model, rest, {}, node, None)
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
        number = args[0] if args else None
        if "reduce" in last and isinstance(number, Unknown) and number.loss and not number.networks:
            # A number that is shown, over all ranks.
            return number
        if last == "cycle" and len(args) == 1 and not kwargs:
            # A helper of the project's that goes round for ever.
            return Lazy("cycle", args)
        if last in frameworks.HELPER_CLIPS or names.is_clip(last):
            self.machine.updating.clip(
                [a for a in flat(sources) if isinstance(a, Unknown | Object)], "torch", node, text
            )
            return Unknown("norm", pending_batches(self.machine))
        if names.is_clearing(last) and not isinstance(callee, Unknown | Object):
            # A function of the project's, that its name stands for.
            self.machine.updating.cleared_by_name(flat(sources), node)
            return None
        if names.is_rescaling(last) and args:
            for source in flat(args):
                if isinstance(source, Unknown) and (count := source.per or source).total:
                    self.machine.tensors.read(count, True, node)
            self.machine.updating.rescaled(args[0], text, False, node)
            return None
        if (
            (last == "backward" or last.endswith("_backward"))
            and args
            and not last.startswith(("register", "before", "after", "on_"))
        ):
            loss = next((a for a in args if isinstance(a, Unknown) and (a.tensor or a.loss)), None)
            if loss is not None:
                self.machine.losses.backward(
                    loss, "engine", node, kwargs, divided=None, subject=text.rpartition(".")[0]
                )
                return None
        if "loss_scaler" in last and len(args) > 1:
            return self.machine.updating.native_scaler(
                self.machine.things.symbol("scaler", text, node), args, kwargs, node
            )
        everything = flat(sources)
        if names.is_norm(last):
            self.machine.updating.norm(everything, node, text)
            return Unknown("norm")
        unknown = [s for s in everything if isinstance(s, Unknown)]
        objects = [s for s in everything if isinstance(s, Object)]
        received = self.machine.things.received(args, kwargs)
        if any(s.batches for s in unknown):
            # The model and its data: a forward.
            received.discard("model")
        losses = [s for s in unknown if s.loss and s.networks]
        if losses and all(map(self.machine.losses.is_gone, losses)):
            received.discard("loss")
        asked = self.machine.program.parents.get(node) if "loss" in received else None
        if isinstance(asked, p.Attr) and asked.name == "item":
            # What is asked for its number alone is told to somebody.
            received.discard("loss")
        if received and not self.machine.state.inside and not frameworks.is_harmless(text):
            inside = any(
                x.node in self.machine.relevance.backwards for x in self.machine.state.loops
            )
            self.machine.state.unread.append(t.Unread(node, text, frozenset(received), inside))
        self.machine.engines.handed(objects)
        if any(s.tensor for s in unknown):
            named = f"{text}(…)"
        else:
            named = p.render(node) if isinstance(node, p.Call) else text
        found = derived(named, *unknown, node=node)
        for source in objects:
            if source.role in ("model", "engine") and source.networks:
                if not self.machine.state.no_grad and not frameworks.is_harmless(text):
                    found.networks = found.networks | source.networks
                    found.forwards = (
                        *found.forwards,
                        *self.machine.losses.silent_forward(source, node),
                    )
        found.loss = "loss" in last.lower() and found.tensor
        library = text.startswith(("torch.", "F.")) or (
            isinstance(callee, Unknown) and callee.tensor
        )
        found.lost = any(self.machine.tensors.hides(s, library) for s in unknown)
        if any(s.parameters for s in unknown):
            found.parameters = True
            found.networks = found.networks.union(*(s.networks for s in unknown if s.parameters))
        if self.machine.state.no_grad or names.is_accuracy(last):
            found.networks = frozenset()
        found.things = tuple(s for s in objects if s.role)
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
        return call_library(self.machine, callee.path, args, kwargs, node)

    def call_object(
        self, callee: Object, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> Value:
        if callee.role == "model" or (callee.role == "" and callee.networks and callee.cls is None):
            return self.machine.losses.forward(
                callee,
                args,
                kwargs,
                node,
                self.machine.invoking.method_of(callee.inner or callee, "forward"),
            )
        if callee.role == "criterion" and callee.cls is None:
            given = [*args, *kwargs.values()]
            model = next((a for a in given if isinstance(a, Object) and a.role == "model"), None)
            if model is not None and any(isinstance(a, Unknown) and a.batches for a in given):
                # It calls the model that it is given.
                rest = [a for a in given if a is not model]
                found = self.machine.losses.forward(model, rest, {}, node, None)
                if isinstance(found, Unknown):
                    found.loss = True
                return found
            return self.machine.tensors.loss_of(
                f"{callee.text}(…)",
                [*args, *kwargs.values()],
                callee.reduction,
                callee.varies,
                node,
            )
        call = self.machine.invoking.method_of(
            callee, "__call__"
        ) or self.machine.invoking.method_of(callee, "forward")
        if call is not None:
            return self.machine.invoking.invoke(call.closure, args, kwargs, callee, node)
        if callee.role == "scaler" and len(args) > 1 and not _are_parameters(args[0]):
            return self.machine.updating.native_scaler(callee, args, kwargs, node)
        if callee.role == "engine":
            return self.machine.losses.forward(callee, args, kwargs, node, None)
        return self.unknown_call(callee.text, callee, args, kwargs, node)


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


def _is_told(sizes: list[Value]) -> bool:
    """True for a shape that tells how many rows there are: only the size of each may be left out."""
    return len(sizes) > 2 and -1 not in sizes[:-1]
