"""Python's own functions: what goes through items, counts, converts and asks for attributes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from fractions import Fraction

from accumlint.reading import ir as p
from accumlint.tracing.calls.call import Answer, Call
from accumlint.tracing.calls.numeric import numeric, word
from accumlint.tracing.gradients.tensors import derived, detached, flat
from accumlint.tracing.parts import Parts
from accumlint.tracing.values import Counted, Key, Lazy, Library, Number, Object, Unknown, Value

# What a `defaultdict` gives for a key that it does not hold.
_EMPTY: Mapping[str, Callable[[], Value]] = {
    "int": lambda: 0,
    "float": lambda: 0.0,
    "list": list,
    "dict": dict,
}
# The arguments without which Python raises an exception.
_LEAST = {"range": 1, "enumerate": 1, "islice": 1, "map": 2}


def _lazy(_: Parts, call: Call) -> Value:
    """What hands out items one after another; nothing is fetched before somebody goes through it."""
    name, args = call.last, call.args
    if name == "enumerate":
        named = ("iterable", "start")[len(args) :]
        args = [*args, *(call.kwargs[key] for key in named if key in call.kwargs)]
    elif name == "iter" and len(args) == 1 and isinstance(args[0], Lazy) and args[0].kind == name:
        return args[0]
    return Lazy(name, args) if len(args) >= _LEAST.get(name, 0) else Unknown(f"{name}(…)")


def _chain(_: Parts, call: Call) -> Value:
    """The items of several iterables, one after another; of parameters, all of them."""
    parameters = [a for a in call.args if isinstance(a, Unknown) and a.parameters]
    if parameters and len(parameters) == len(call.args):
        return derived("parameters", *(Unknown(a.text, networks=a.networks) for a in parameters))
    return Lazy("iter", call.args)


def _filter(_: Parts, call: Call) -> Value:
    """The items that a test keeps, as if it kept all."""
    return call.args[1] if len(call.args) > 1 else Unknown("filter(…)")


def _ordered(parts: Parts, call: Call) -> Value:
    """The same items in another order."""
    match call.first:
        case list() | tuple() as items:
            return list(reversed(items)) if call.last == "reversed" else list(items)
        case Lazy(kind="range") as numbers:
            return list(reversed(parts.iteration.items(numbers, 400)))
        case first:
            return first


def _len(parts: Parts, call: Call) -> Value:
    """How many items there are."""
    return parts.iteration.length(call.first)


def _next(parts: Parts, call: Call) -> Value:
    """The item that an iterator gives next."""
    return parts.iteration.next(call.first)


def _list(parts: Parts, call: Call) -> Value:
    """The items of something that ends; what is not known, and what has a role, is itself."""
    first = call.first
    if not call.args:
        return []
    if isinstance(first, Unknown) or (isinstance(first, Object) and first.role != ""):
        return first
    if isinstance(first, Lazy) and first.kind in ("cycle", "count", "generator"):
        return first
    items = parts.iteration.items(first, 512)
    return tuple(items) if call.last == "tuple" else items


def _dict(_: Parts, call: Call) -> Value:
    """A table, also of names and the parts of a batch that are zipped."""
    match call.first:
        case Lazy(kind="zip", args=[_, Unknown() as values]) if values.batches:
            return derived(f"dict({values.text})", values)
        case first:
            given = {k: v for k, v in call.kwargs.items() if k != "**"}
            return {**first, **given} if isinstance(first, dict) else {**given}


def _defaultdict(_: Parts, call: Call) -> Answer:
    """A table that makes what it does not hold, of numbers, lists or tables."""
    match call.first:
        case Library(path=path) if path in _EMPTY:
            return defaultdict[Key, Value](_EMPTY[path])
        case _:
            return NotImplemented


def _number(_: Parts, call: Call) -> Value:
    """A number as it is, and what a tensor is as a number."""
    match call.first:
        case int() | float() | Fraction() as number:
            return numeric("int", [number]) if call.last == "int" else number
        case Unknown() as unknown:
            return detached(unknown) if unknown.tensor else unknown
        case _:
            return Unknown(call.last) if call.args else 0


def _bool(parts: Parts, call: Call) -> Value:
    """Whether something is true, where that is known."""
    known = parts.guards.known_truth(call.first)
    return known if known is not None else call.first


def _of_numbers(_: Parts, call: Call) -> Value:
    """A function of some numbers, or of one list of them."""
    name = call.last
    values = flat(call.args) if len(call.args) == 1 else call.args
    numbers = [v for v in values if isinstance(v, Number)]
    if values and len(numbers) == len(values):
        return numeric(name, values)
    unknown = [v for v in values if isinstance(v, Unknown)]
    # `max(n, 1)` guards against zero; it is n for our purposes.
    if name == "max" and len(numbers) == 1 and len(unknown) == 1:
        return unknown[0]
    return derived(f"{name}({', '.join(word(v) for v in values)})", *values)


def _sum(parts: Parts, call: Call) -> Value:
    """The sum of the items of one iterable."""
    return added_up(parts, call.first, call.node)


def _isinstance(_: Parts, call: Call) -> Value:
    """Whether a model is wrapped in DistributedDataParallel; of all else nobody knows."""
    shown, first = call.shown, call.first
    if isinstance(first, Object) and ("DistributedDataParallel" in shown or "DDP" in shown):
        return first.wrapper == "ddp"
    return Unknown(shown)


def _hasattr(parts: Parts, call: Call) -> Value:
    """Whether an object has an attribute: of its class, of a wrapper."""
    match call.args:
        case [Object() as first, str() as attribute, *_]:
            held = attribute in first.attributes
            if first.cls is not None and (held or parts.cross_file.method_of(first, attribute)):
                return True
            if attribute == "no_sync" and first.role == "model":
                wrappers = parts.state.wrappers
                return any(n in wrappers for n in first.networks) or first.traced is None
            if attribute == "module":
                return bool(first.wrapper) or first.inner is not None
        case _:
            pass
    return Unknown(call.shown)


def _getattr(parts: Parts, call: Call) -> Value:
    """An attribute by its name, or what a setting picks among the classes of a module."""
    match call.args:
        case [Object() as first, str() as name, *_] if name in first.attributes:
            return first.attributes[name]
        case [Unknown() as first, str() as name, bool() | 0 | -1 as told, *_]:
            # A limit of 0 is none, and an epoch of 0 has come.
            return parts.resolver.symbol(f"{first.text}.{name}", name, call.node, hint=told)
        case [Object() as first, str() as name, None, *_] if first.role:
            # Not every one has it.
            return Unknown(f"{first.text}.{name}")
        case [first, str() as name, *_]:
            return parts.attributes.attribute(first, name, call.node)
        case [Library() as first, Unknown() as name, *_]:
            picked = parts.cross_file.picked(parts.cross_file.of_module(first), name, name.text)
            return picked if picked is not None else Unknown("getattr(…)")
        case _:
            return Unknown("getattr(…)")


def _setattr(parts: Parts, call: Call) -> Value:
    """Sets an attribute by its name."""
    name = call.argument(1)
    if len(call.args) > 2 and isinstance(name, str):
        text = f"{word(call.first)}.{name}"
        parts.attributes.set_attribute(call.first, name, call.args[2], call.node, text)


def _any_or_all(parts: Parts, call: Call) -> Value:
    """Whether any or all items are true, where that is known of each."""
    items = parts.iteration.items(call.first) if call.first is not None else []
    known = [parts.guards.known_truth(i) for i in items]
    if items and all(k is not None for k in known):
        return any(known) if call.last == "any" else all(known)
    return derived(call.shown, *items)


def _globals(parts: Parts, _: Call) -> Value:
    """The classes of the file that is executed."""
    return parts.cross_file.of_module()


def _divmod(_: Parts, call: Call) -> Value:
    """A quotient and a remainder."""
    match call.args:
        case [int() as number, int() as divisor] if divisor:
            return divmod(number, divisor)
        case _:
            return Unknown("div"), Unknown("mod")


def _shown(_: Parts, call: Call) -> Value:
    """What is known by how it is written alone."""
    return Unknown(call.shown)


def _callable(_: Parts, call: Call) -> Value:
    """Whether something can be called, as if all that is known could."""
    return not isinstance(call.first, Unknown | None)


# The functions that go through items, of Python and of its standard library.
ITERABLES: Mapping[str, Callable[[Parts, Call], Value]] = {
    "chain": _chain,
    "filter": _filter,
    **dict.fromkeys(("reversed", "sorted"), _ordered),
    **dict.fromkeys(
        ("count", "cycle", "enumerate", "islice", "iter", "map", "range", "zip"), _lazy
    ),
}
# What models a call of one of Python's own functions, by its name.
BUILTINS: Mapping[str, Callable[[Parts, Call], Answer]] = {
    **ITERABLES,
    "bool": _bool,
    "callable": _callable,
    "defaultdict": _defaultdict,
    "divmod": _divmod,
    "getattr": _getattr,
    "globals": _globals,
    "hasattr": _hasattr,
    "isinstance": _isinstance,
    "len": _len,
    "next": _next,
    "setattr": _setattr,
    "sum": _sum,
    **dict.fromkeys(("abs", "max", "min", "pow", "round"), _of_numbers),
    **dict.fromkeys(("all", "any"), _any_or_all),
    **dict.fromkeys(("dict", "OrderedDict"), _dict),
    **dict.fromkeys(("float", "int"), _number),
    **dict.fromkeys(("list", "set", "sorted", "tuple"), _list),
    **dict.fromkeys(
        ("delattr", "id", "input", "open", "print", "repr", "str", "type", "vars"), _shown
    ),
}


def added_up(parts: Parts, value: Value, node: p.Node) -> Value:
    """The sum of some items; of data without a loss, a count."""
    items = parts.iteration.items(value)
    total: Value = 0
    for item in items:
        total = parts.tensors.arithmetic(
            "+", total, item, p.Binary(node.at, "+", p.Const(node.at, 0), p.Const(node.at, 0))
        )
    if isinstance(total, Unknown) and total.batches and not total.networks and not total.loss:
        total.count = True
        if _adds_lengths(node):
            # As many boxes, words or points as the rows of this micro-batch hold together.
            total.counted = Counted("some", ())
    return total


def _adds_lengths(node: p.Node) -> bool:
    """True for `sum(len(row) for row in rows)`."""
    match node:
        case p.Call(
            args=[p.Argument(value=p.Comprehension(element=p.Call(func=p.Name(id="len"))))]
        ):
            return True
        case _:
            return False
