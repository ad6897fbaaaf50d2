"""Calls that cannot be followed: what their names tell, and what they were given."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from accumlint.reading import frameworks, names
from accumlint.reading import ir as p
from accumlint.tracing import trace as t
from accumlint.tracing.calls.call import Answer, Call
from accumlint.tracing.gradients.tensors import copied, derived, detached, flat, mean_over, summed
from accumlint.tracing.parts import Parts
from accumlint.tracing.values import Counted, Lazy, Library, Method, Object, Ranks, Unknown, Value

# Classes of libraries that hold what they are given under its names.
_RECORDS = frozenset({"AttrDict", "Box", "EasyDict", "Munch", "Namespace", "SimpleNamespace"})
_OPERATORS = {
    "add": "+", "add_": "+", "sub": "-", "mul": "*", "mul_": "*", "multiply": "*", "div": "/", "div_": "/",
    "true_divide": "/",
}  # fmt: skip


class OpaqueCalls:
    """What calls give and do of which only the names are known."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def method(self, base: Unknown, call: Call) -> Value:
        """A method of something of which nobody knows what it is: a tensor's, a setting's, a library's."""
        parts, name = self.parts, call.path
        args, kwargs, node = call.args, call.kwargs, call.node
        if name in base.attributes:
            return parts.apply(base.attributes[name], args, kwargs, node)
        stepped = parts.symbols.get(base.text)
        if isinstance(stepped, Object) and stepped.role == "optimizer":
            # A scaler stepped it before: an optimizer, whatever made it.
            return parts.apply(Method(stepped, name, ""), args, kwargs, node)
        handler = METHODS.get(name)
        if handler is None and not base.parameters:
            handler = METHODS_OF_DATA.get(name)
        if handler and (found := handler(parts, base, call)) is not NotImplemented:
            return found
        if base.parameters:
            return parts.updates.parameter_method(base, name, node)
        special = parts.engines.framework_method(base, call)
        if special is not NotImplemented:
            return special
        text = f"{base.text}.{name}"
        if parts.roles.of(name) in ("model", "criterion") and not base.tensor:
            callee = parts.resolver.symbol(text, name, node)
            if isinstance(callee, Object):
                return parts.apply(callee, args, kwargs, node)
        return self.call(base, Call(text, args, kwargs, node))

    def call(self, callee: Value, call: Call) -> Value:
        """A call that cannot be followed: what it returns depends on all that it got."""
        parts, last = self.parts, call.last
        if parts.roles.is_steps(last) and not any(
            isinstance(a, Unknown) and a.tensor for a in call.args
        ):
            # A method that works the steps out (`train.gradient_accumulation_iters(devices)`).
            return parts.steps()
        for handler in _handlers(last):
            found = handler(parts, callee, call)
            if found is not NotImplemented:
                return found
        return _depending(parts, callee, call)


def _backward(parts: Parts, base: Unknown, call: Call) -> Answer:
    """A loss goes backward; ColossalAI's booster hands it to the optimizer's plugin, and divides nothing."""
    node, kwargs, text = call.node, call.kwargs, base.text
    if text.endswith("booster"):
        parts.losses.backward(call.argument(0, "loss"), "booster", node, kwargs, subject=text)
        return None
    named = parts.roles.file.is_loss(text.rpartition(".")[2])
    if not (base.tensor or base.loss or named) and call.args:
        return NotImplemented
    via = "scaler" if base.scaler is not None else "tensor"
    called = node.func if isinstance(node, p.Call) else None
    subject = p.dotted(called.base) if isinstance(called, p.Attr) else text
    loss, gradient = base, call.argument(0, "gradient")
    if gradient is not None and not (isinstance(gradient, Unknown) and "ones" in gradient.text):
        # `loss.backward(w)` is `(w * loss).backward()`.
        loss = parts.tensors.linear("*", base, gradient, node)
    parts.losses.backward(loss, via, node, kwargs, subject=subject)
    return None


def _pass(_: Parts, base: Unknown, call: Call) -> Value:
    """The same tensor, as far as its gradient goes."""
    if call.path == "clone" and base.tensor and not base.parameters:
        return copied(base, call.node)
    told = call.path in ("reshape", "view") and len(call.args) > 2 and -1 not in call.args[:-1]
    if told and base.varies.startswith(t.PICKED):
        # A shape that tells how many rows there are: as many are picked every time, or it would fail.
        found = derived(base.text, base, node=call.node)
        found.varies = ""
        return found
    return base


def _masked_select(parts: Parts, base: Unknown, call: Call) -> Answer:
    """`x.masked_select(mask)` is `x[mask]`."""
    match call.node:
        case p.Call(at=at, func=func, args=[*_, mask]) if call.args:
            return parts.attributes.item(base, call.args[0], p.Item(at, func, mask.value))
        case _:
            return NotImplemented


def _detach(_: Parts, base: Unknown, call: Call) -> Value:
    """A number or a tensor without a graph, and how many rows or elements there are."""
    name = call.path
    if name == "numel" and base.loss and base.reduction in ("mean", "sum"):
        # A loss that was reduced is one number.
        return 1
    found = detached(base)
    if name in ("size", "numel"):
        found.count = True
        found.loss = False
        # Which side it is tells rows from classes.
        found.text = f"{base.text}.{name}({call.first if isinstance(call.first, int) else ''})"
        found.counted = Counted("elements" if name == "numel" else "rows", (base,))
    elif name in ("eq", "ne"):
        found.counted = Counted("some", (base,))
    return found


def _sum_or_mean(parts: Parts, base: Unknown, call: Call) -> Answer:
    """The sum or mean of a tensor; the sum of something else may be that of a mask that a loss is multiplied by."""
    over, sums = call.argument(0, "dim", "axis"), call.path == "sum"
    if base.tensor or base.loss:
        found = (summed if sums else mean_over)(base, over, call.node)
        if sums and base.weighs is not None and over is None and base.networks:
            return parts.tensors.normalised(found, base.weighs, call.node)
        return found
    masks = sums and not call.given and not base.parameters
    return (
        Unknown(f"{base.text}.sum()", counted=Counted("some", (base,))) if masks else NotImplemented
    )


def _arithmetic(parts: Parts, base: Unknown, call: Call) -> Answer:
    """A tensor plus, minus, times or over something, also in place."""
    if not call.args:
        return NotImplemented
    op, by, node = _OPERATORS[call.path], call.args[0], call.node
    changes = call.path.endswith("_") and op in "*/"
    if base.parameters and op in "*/":
        if isinstance(by, Unknown) and by.total:
            parts.tensors.read(by, True, node)
        if changes:
            parts.updates.multiplied(base, op, by, node)
            return base
    found = parts.tensors.linear(op, base, by, node)
    if not changes or not isinstance(found, Unknown):
        return found
    base.terms, base.reduction = found.linear, found.reduction
    if base.terms and base.terms[0].atom is base:
        fresh = derived(base.text, base)
        fresh.loss, fresh.reduction = base.loss, base.reduction
        base.terms = tuple(replace(x, atom=fresh) if x.atom is base else x for x in base.terms)
    return base


def _get(parts: Parts, base: Unknown, call: Call) -> Answer:
    """A part of a batch, or a setting with its default."""
    key = call.first
    if not isinstance(key, str):
        return NotImplemented
    if base.batches and not base.networks and not base.loss:
        shown = f"[{key!r}]"
        part = derived(f"{base.text}{shown}", base, node=call.node)
        return base.attributes.setdefault(shown, part)
    hint = call.argument(1) if isinstance(call.argument(1), bool) else None
    return parts.resolver.symbol(f"{base.text}.{key}", key, call.node, hint)


def _clamp(_: Parts, base: Unknown, __: Call) -> Answer:
    """Data within limits."""
    return base if base.batches and not base.networks else NotImplemented


def _items(_: Parts, base: Unknown, call: Call) -> Value:
    """The items of a table that nobody knows."""
    return Lazy("items" if call.path == "items" else "iter", [base])


def _split(parts: Parts, base: Unknown, call: Call) -> Value:
    """The pieces of a tensor, each by itself where their number is known."""
    if call.path in ("chunk", "tensor_split") and call.args:
        pieces = parts.iteration.pieces(base, call.args[0])
        if pieces is not None:
            return pieces
    return Unknown(f"{base.text}.{call.path}(…)", base.batches, base.networks, base.forwards)


# What models a method of something unknown, by its name: of anything, and of what is no parameter.
METHODS: Mapping[str, Callable[[Parts, Unknown, Call], Answer]] = {
    **dict.fromkeys(frameworks.PASSING, _pass),
    **dict.fromkeys(frameworks.DETACHING, _detach),
    **dict.fromkeys(_OPERATORS, _arithmetic),
    "backward": _backward,
    "masked_select": _masked_select,
    **dict.fromkeys(("sum", "mean", "nanmean"), _sum_or_mean),
}
METHODS_OF_DATA: Mapping[str, Callable[[Parts, Unknown, Call], Answer]] = {
    **dict.fromkeys(("clamp", "clamp_min", "clamp_", "clip"), _clamp),
    "get": _get,
    **dict.fromkeys(("items", "values", "keys"), _items),
    **dict.fromkeys(("chunk", "split", "unbind", "tensor_split"), _split),
}


def _ranks(_: Parts, __: Value, call: Call) -> Answer:
    """How many ranks there are."""
    return NotImplemented if call.given else Unknown(call.shown, ranks=Ranks(call.shown))


def _chances(parts: Parts, _: Value, call: Call) -> Answer:
    """The logarithms of a model's chances: no loss yet, but it calls the model, and nothing is divided there."""
    if (model := _model(call)) is None:
        return NotImplemented
    rest = [a for a in call.given if a is not model]
    if names.is_another(model.text.rpartition(".")[2]):
        # A reference, that nobody trains.
        return derived(f"{call.path}(…)", *rest, node=call.node)
    return parts.losses.forward(model, replace(call, args=rest, kwargs={}), None)


def _iterable(_: Parts, __: Value, call: Call) -> Answer:
    """What goes through a loader or another iterable, and changes none of its items."""
    for source in call.args:
        loads = isinstance(source, Object) and source.role == "loader"
        if loads or isinstance(source, Lazy | list | tuple):
            return source
    return NotImplemented


def _reduced(_: Parts, __: Value, call: Call) -> Answer:
    """A number that is shown, over all ranks."""
    number = call.first
    shown = isinstance(number, Unknown) and number.loss and not number.networks
    return number if shown else NotImplemented


def _cycle(_: Parts, __: Value, call: Call) -> Answer:
    """A helper of the project's that goes round for ever."""
    return Lazy("cycle", call.args) if len(call.given) == len(call.args) == 1 else NotImplemented


def _clip(parts: Parts, callee: Value, call: Call) -> Value:
    """A function of the project's, or of a library, that clips gradients as its name tells."""
    clipped = [a for a in flat(_sources(callee, call)) if isinstance(a, Unknown | Object)]
    parts.updates.clip(clipped, "torch", call.node, call.path)
    return parts.updates.clipped_norm()


def _clear(parts: Parts, callee: Value, call: Call) -> Answer:
    """A function of the project's that clears gradients, as its name tells."""
    if isinstance(callee, Unknown | Object):
        return NotImplemented
    parts.updates.cleared_by_name(flat(call.given), call.node)
    return None


def _rescale(parts: Parts, _: Value, call: Call) -> Answer:
    """A function that multiplies gradients, as its name tells."""
    if not call.args:
        return NotImplemented
    for source in flat(call.args):
        if isinstance(source, Unknown) and (count := source.per or source).total:
            parts.tensors.read(count, True, call.node)
    parts.updates.rescaled(call.args[0], call.path, False, call.node)
    return None


def _go_backward(parts: Parts, _: Value, call: Call) -> Answer:
    """Something that goes backward with the loss that it is given."""
    subject = call.path.rpartition(".")[0]
    for loss in call.args:
        if isinstance(loss, Unknown) and (loss.tensor or loss.loss):
            parts.losses.backward(loss, "engine", call.node, call.kwargs, None, subject)
            return None
    return NotImplemented


def _parameters(_: Parts, __: Value, call: Call) -> Answer:
    """timm's `model_parameters`, and helpers that pick some of them."""
    if (model := _model(call)) is None:
        return NotImplemented
    return Unknown(f"{call.path}(…)", networks=model.networks, parameters=True)


def _scaler(parts: Parts, _: Value, call: Call) -> Answer:
    """timm's scaler, which goes backward, clips and steps."""
    if len(call.args) < 2:
        return NotImplemented
    scaler = parts.objects.symbol("scaler", call.path, call.node)
    return parts.updates.native_scaler(scaler, call)


def _norm(parts: Parts, callee: Value, call: Call) -> Value:
    """The size of gradients."""
    parts.updates.norm(flat(_sources(callee, call)), call.node, call.path)
    return Unknown("norm")


# What models a call, by what tells of its last name, in this order.
CALLS: tuple[tuple[Callable[[str], object], Callable[[Parts, Value, Call], Answer]], ...] = (
    (names.is_ranks, _ranks),
    (frameworks.is_chance, _chances),
    (frameworks.WRAPPING_ITERABLES.__contains__, _iterable),
    (re.compile("tqdm|prefetch|progress", re.IGNORECASE).match, _iterable),
    (re.compile("reduce").search, _reduced),
    (re.compile("cycle").fullmatch, _cycle),
    (frameworks.HELPER_CLIPS.__contains__, _clip),
    (names.is_clip, _clip),
    (names.is_clearing, _clear),
    (names.is_rescaling, _rescale),
    (re.compile(r"(?!register|before|after|on_)(.*_)?backward", re.DOTALL).fullmatch, _go_backward),
    (re.compile(r"parameters\Z").search, _parameters),
    (re.compile("loss_scaler").search, _scaler),
    (names.is_norm, _norm),
)


@lru_cache(maxsize=4096)
def _handlers(last: str) -> tuple[Callable[[Parts, Value, Call], Answer], ...]:
    return tuple(handler for told, handler in CALLS if told(last))


def _model(call: Call) -> Object | None:
    """The first object that a call is given, where it is a model or an engine."""
    first = next((a for a in call.given if isinstance(a, Object)), None)
    return first if first is not None and first.role in ("model", "engine") else None


def _sources(callee: Value, call: Call) -> list[Value]:
    """What the result of a call depends on."""
    return [callee, *call.given] if isinstance(callee, Unknown | Object) else call.given


def _depending(parts: Parts, callee: Value, call: Call) -> Unknown:
    """What depends on all that a call is given, as the call of a network does on its gradient."""
    text, last, node, state = call.path, call.last, call.node, parts.state
    sources = flat(_sources(callee, call))
    unknown = [s for s in sources if isinstance(s, Unknown)]
    objects = [s for s in sources if isinstance(s, Object)]
    _note_unread(parts, callee, call, unknown)
    parts.gating.handed(objects)
    if any(s.tensor for s in unknown):
        named = f"{text}(…)"
    else:
        named = call.shown
        if state.asked and parts.scenario.steps in call.given:
            # `every_n_iters(runner, N)`, around a step.
            parts.guards.counted(named)
    found = derived(named, *unknown, node=node)
    if not state.no_grad and not frameworks.is_harmless(text):
        for source in objects:
            if source.role in ("model", "engine") and source.networks:
                found.networks = found.networks | source.networks
                forwards = parts.losses.silent_forward(source, node)
                found.forwards = (*found.forwards, *forwards)
    found.loss = "loss" in last.lower() and found.tensor
    blind = not _may_know_steps(parts, callee, call.given)
    found.lost = any(parts.tensors.hides(s, blind) for s in unknown)
    found.parameters = any(s.parameters for s in unknown)
    found.networks = found.networks.union(*(s.networks for s in unknown if s.parameters))
    if state.no_grad or names.is_accuracy(last):
        found.networks = frozenset()
    found.objects = tuple(s for s in objects if s.role)
    if last in _RECORDS or (last[:1].isupper() and "Output" in last):
        # A model's output holds what it is made of under the names that it is given, and in their order.
        held = {k: v for k, v in call.kwargs.items() if isinstance(v, Unknown)}
        found.attributes |= held | {f"[{n}]": v for n, v in enumerate(held.values())}
    return found


def _note_unread(parts: Parts, callee: Value, call: Call, unknown: list[Unknown]) -> None:
    """Notes a call that is given what trains, and of which nobody knows what it does with it."""
    text, state = call.path, parts.state
    received = parts.objects.received(call.args, call.kwargs)
    if any(s.batches for s in unknown):
        # The model and its data: a forward.
        received.discard("model")
    losses = [s for s in unknown if s.loss and s.networks]
    asked = parts.program.parents.get(call.node) if "loss" in received else None
    shown = isinstance(asked, p.Attr) and asked.name == "item"
    if shown or (losses and all(map(parts.losses.is_gone, losses))):
        # What is asked for its number alone is told to somebody.
        received.discard("loss")
    harmless = frameworks.is_harmless(text) or (
        isinstance(callee, Library) and parts.cross_file.is_harmless(text)
    )
    if received and not state.inside and not harmless:
        inside = any(x.node in parts.relevance.backwards for x in state.loops)
        state.unread.append(t.Unread(call.node, text, frozenset(received), inside))


def _may_know_steps(parts: Parts, callee: Value, given: list[Value]) -> bool:
    """True where a call may divide by the accumulation steps: somebody tells it, or it finds them by itself."""
    if any(_may_tell_steps(parts, value) for value in given):
        return True
    match callee:
        case Unknown():
            return not callee.tensor
        case Library():
            definition = parts.cross_file.find(callee)
            return definition is not None and any(map(names.is_steps, definition.names))
        case Object():
            # A model that works out its loss in a method is none that divides it.
            return callee.role not in ("model", "criterion")
        case _:
            return True


def _may_tell_steps(parts: Parts, value: Value) -> bool:
    """True for a number of the accumulation steps, and for what may hold it: settings, an object of the project."""
    match value:
        case Unknown():
            told = names.is_steps(value.text.rpartition(".")[2])
            return not value.tensor and (told or names.is_configuration(f"{value.text}."))
        case Object():
            return value.role == "" and value.cls is not None
        case int() | float() | Fraction() if not isinstance(value, bool):
            return value in (parts.scenario.steps, Fraction(1, parts.scenario.steps))
        case _:
            return isinstance(value, dict)
