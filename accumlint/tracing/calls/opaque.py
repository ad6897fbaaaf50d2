"""Calls that cannot be followed: what their names tell, and what they were given."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from accumlint.reading import frameworks, names
from accumlint.reading import ir as p
from accumlint.tracing import trace as t
from accumlint.tracing.calls.library import pending_batches
from accumlint.tracing.gradients.tensors import copied, derived, detached, flat, mean_over, summed
from accumlint.tracing.values import Counted, Lazy, Library, Object, Ranks, Unknown, Value

if TYPE_CHECKING:
    from accumlint.tracing.interpreter import Machine

# Classes of libraries that hold what they are given under its names.
_RECORDS = frozenset({"AttrDict", "Box", "EasyDict", "Munch", "Namespace", "SimpleNamespace"})


class Unfollowed:
    """What calls give and do of which only the names are known, for one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def method(
        self, base: Unknown, name: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> Value:
        """A method of something of which nobody knows what it is: a tensor's, a setting's, a library's."""
        if name in base.attributes:
            return self.machine.calling.apply(base.attributes[name], args, kwargs, node)
        stepped = self.machine.symbols.get(base.text)
        if isinstance(stepped, Object) and stepped.role == "optimizer":
            # A scaler stepped it before: an optimizer, whatever made it.
            return self.machine.calling.object_method(stepped, name, args, kwargs, node)
        if name == "backward" and base.text.endswith("booster"):
            # ColossalAI's: it hands the loss on to the optimizer's plugin, and divides nothing.
            loss = args[0] if args else kwargs.get("loss")
            self.machine.losses.backward(loss, "booster", node, kwargs, subject=base.text)
            return None
        named = self.machine.naming.roles.is_loss(base.text.rpartition(".")[2])
        if name == "backward" and (base.tensor or base.loss or named or not args):
            via = "scaler" if base.scaler is not None else "tensor"
            called = node.func if isinstance(node, p.Call) else None
            subject = p.dotted(called.base) if isinstance(called, p.Attr) else base.text
            loss = self._weighed(base, args, kwargs, node)
            self.machine.losses.backward(loss, via, node, kwargs, subject=subject)
            return None
        if name == "clone" and base.tensor and not base.parameters:
            return copied(base, node)
        if name in ("reshape", "view") and base.varies.startswith(t.PICKED) and _is_told(args):
            # As many are picked every time, or it would fail.
            found = derived(base.text, base, node=node)
            found.varies = ""
            return found
        if name == "masked_select" and args and isinstance(node, p.Call):
            mask = p.Item(node.at, node.func, node.args[-1].value)
            return self.machine.members.item(base, args[0], mask)
        if name in frameworks.PASSING:
            return base
        if name in frameworks.DETACHING:
            if name == "numel" and base.loss and base.reduction in ("mean", "sum"):
                # A loss that was reduced is one number.
                return 1
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
            hint = args[1] if len(args) > 1 and isinstance(args[1], bool) else None
            return self.machine.naming.symbol(f"{base.text}.{args[0]}", args[0], node, hint)
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
        if self.machine.naming.role(name) in ("model", "criterion") and not base.tensor:
            callee = self.machine.naming.symbol(text, name, node)
            if isinstance(callee, Object):
                return self.machine.calling.call_object(callee, args, kwargs, node)
        return self.call(text, base, args, kwargs, node)

    def call(
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
        given = [*args, *kwargs.values()]
        model = next((a for a in given if isinstance(a, Object)), None)
        if frameworks.is_chance(last) and model is not None and model.role in ("model", "engine"):
            # No loss yet: it calls the model, and nothing is divided there.
            rest = [a for a in given if a is not model]
            if names.is_another(model.text.rpartition(".")[2]):
                # A reference, that nobody trains.
                return derived(f"{text}(…)", *rest, node=node)
            return self.machine.losses.forward(model, rest, {}, node, None)
        sources = [callee, *given] if isinstance(callee, Unknown | Object) else given
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
            clipped = [a for a in flat(sources) if isinstance(a, Unknown | Object)]
            self.machine.updating.clip(clipped, "torch", node, text)
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
        if model is not None and model.role in ("model", "engine") and last.endswith("parameters"):
            # timm's `model_parameters`, and helpers that pick some of them.
            return Unknown(f"{text}(…)", networks=model.networks, parameters=True)
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
        harmless = frameworks.is_harmless(text) or (
            isinstance(callee, Library) and self.machine.elsewhere.is_harmless(text)
        )
        if received and not self.machine.state.inside and not harmless:
            inside = any(
                x.node in self.machine.relevance.backwards for x in self.machine.state.loops
            )
            self.machine.state.unread.append(t.Unread(node, text, frozenset(received), inside))
        self.machine.engines.handed(objects)
        if any(s.tensor for s in unknown):
            named = f"{text}(…)"
        else:
            named = p.render(node) if isinstance(node, p.Call) else text
            if self.machine.state.asked and self.machine.scenario.steps in given:
                # `every_n_iters(runner, N)`, around a step.
                self.machine.guards.counted(named)
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
        blind = not self._may_know_steps(callee, given)
        found.lost = any(self.machine.tensors.hides(s, blind) for s in unknown)
        if any(s.parameters for s in unknown):
            found.parameters = True
            found.networks = found.networks.union(*(s.networks for s in unknown if s.parameters))
        if self.machine.state.no_grad or names.is_accuracy(last):
            found.networks = frozenset()
        found.things = tuple(s for s in objects if s.role)
        if last in _RECORDS or (last[:1].isupper() and "Output" in last):
            # A model's output holds what it is made of under the names that it is given, and in their order.
            held = {k: v for k, v in kwargs.items() if isinstance(v, Unknown)}
            found.attributes.update(held)
            found.attributes.update((f"[{n}]", v) for n, v in enumerate(held.values()))
        return found

    def _may_know_steps(self, callee: Value, given: list[Value]) -> bool:
        """True where a call may divide by the accumulation steps: somebody tells it, or it finds them by itself."""
        if any(self._may_tell_steps(value) for value in given):
            return True
        match callee:
            case Unknown():
                return not callee.tensor
            case Library():
                definition = self.machine.elsewhere.find(callee)
                return definition is not None and any(map(names.is_steps, definition.names))
            case Object():
                # A model that works out its loss in a method is none that divides it.
                return callee.role not in ("model", "criterion")
            case _:
                return True

    def _may_tell_steps(self, value: Value) -> bool:
        """True for a number of the accumulation steps, and for what may hold it: settings, an object of the project."""
        match value:
            case Unknown():
                last = value.text.rpartition(".")[2]
                return not value.tensor and (
                    names.is_steps(last) or names.is_configuration(f"{value.text}.")
                )
            case Object():
                return value.role == "" and value.cls is not None
            case int() | float() | Fraction() if not isinstance(value, bool):
                steps = self.machine.scenario.steps
                return value in (steps, Fraction(1, steps))
            case _:
                return isinstance(value, dict)

    def _weighed(
        self, loss: Unknown, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> Value:
        """A loss times the gradient that it goes backward from: `loss.backward(w)` is `(w * loss).backward()`."""
        gradient = args[0] if args else kwargs.get("gradient")
        if gradient is None or (isinstance(gradient, Unknown) and "ones" in gradient.text):
            return loss
        return self.machine.tensors.linear("*", loss, gradient, node)


def _is_told(sizes: list[Value]) -> bool:
    """True for a shape that tells how many rows there are: only the size of each may be left out."""
    return len(sizes) > 2 and -1 not in sizes[:-1]
