"""Calls of Python's own functions: what goes through items, counts, converts and asks for attributes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from accumlint.reading import ir as p
from accumlint.tracing.calls.numeric import numeric
from accumlint.tracing.gradients.tensors import derived, detached, flat
from accumlint.tracing.values import Counted, Key, Lazy, Library, Number, Object, Unknown, Value

if TYPE_CHECKING:
    from accumlint.tracing.interpreter import Machine

# What a `defaultdict` gives for a key that it does not hold.
_EMPTY: Mapping[str, Callable[[], Value]] = {
    "int": lambda: 0,
    "float": lambda: 0.0,
    "list": list,
    "dict": dict,
}
# The arguments without which Python raises an exception.
_LEAST = {"range": 1, "enumerate": 1, "islice": 1, "map": 2}


def call_builtin(
    machine: Machine, name: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
) -> tuple[Value] | None:
    """What one of Python's own functions gives, as the only item; None for any other name."""
    first = args[0] if args else None
    match name:
        case "range" | "enumerate" | "zip" | "map" | "reversed" | "filter" | "iter":
            return (iterable(machine, name, args, kwargs),)
        case "len":
            return (machine.iterating.length(first),)
        case "next":
            return (machine.iterating.next(first),)
        case "list" | "tuple" | "set" | "sorted":
            if not args:
                return ([],)
            if isinstance(first, Unknown) or (isinstance(first, Object) and first.role != ""):
                return (first,)
            if isinstance(first, Lazy) and _endless(first):
                return (first,)
            items = machine.items(first, 512)
            return (tuple(items) if name == "tuple" else items,)
        case "dict" | "OrderedDict":
            found: dict[Key, Value] = {k: v for k, v in kwargs.items() if k != "**"}
            match first:
                case dict():
                    found = {**first, **found}
                case Lazy(kind="zip", args=[list() | tuple() as keys, Unknown() as values]):
                    for i, key in enumerate(keys):
                        if isinstance(key, str):
                            found[key] = derived(f"{values.text}[{i}]", values)
                case Lazy(kind="zip", args=[_, Unknown() as values]) if values.batches:
                    return (derived(f"dict({values.text})", values),)
                case _:
                    pass
            return (found,)
        case "defaultdict" if isinstance(first, Library) and first.path in _EMPTY:
            return (defaultdict[Key, Value](_EMPTY[first.path]),)
        case "int" | "float":
            if isinstance(first, Number):
                return (numeric(name, [first]) if name == "int" else first,)
            if isinstance(first, Unknown):
                return (detached(first) if first.tensor else first,)
            return (0 if not args else Unknown(name),)
        case "bool":
            known = machine.guards.known_truth(first)
            return (known if known is not None else first,)
        case "abs" | "round" | "max" | "min" | "pow":
            values = flat(args) if len(args) == 1 else args
            if values and all(isinstance(v, Number) for v in values):
                return (numeric(name, values),)
            number = [v for v in values if isinstance(v, Number)]
            unknown = [v for v in values if isinstance(v, Unknown)]
            # `max(n, 1)` guards against zero; it is n for our purposes.
            if name == "max" and len(number) == 1 and len(unknown) == 1:
                return (unknown[0],)
            return (derived(f"{name}({', '.join(text_of(v) for v in values)})", *values),)
        case "sum":
            return (added_up(machine, first, node),)
        case "isinstance":
            shown = p.render(node) if isinstance(node, p.Call) else name
            if isinstance(first, Object) and ("DistributedDataParallel" in shown or "DDP" in shown):
                return (first.wrapper == "ddp",)
            return (Unknown(shown),)
        case "hasattr":
            shown = p.render(node) if isinstance(node, p.Call) else name
            attribute = args[1] if len(args) > 1 else None
            if isinstance(first, Object) and isinstance(attribute, str):
                if first.cls is not None and (
                    attribute in first.attributes
                    or machine.invoking.method_of(first, attribute) is not None
                ):
                    return (True,)
                if attribute == "no_sync" and first.role == "model":
                    wrappers = machine.state.wrappers
                    return (any(n in wrappers for n in first.networks) or None is first.thing,)
                if attribute == "module":
                    return (bool(first.wrapper) or first.inner is not None,)
            return (Unknown(shown),)
        case "getattr":
            if len(args) > 1 and isinstance(args[1], str):
                if isinstance(first, Object) and args[1] in first.attributes:
                    return (first.attributes[args[1]],)
                told = args[2] if len(args) > 2 else None
                # A limit of 0 is none, and an epoch of 0 has come.
                if isinstance(first, Unknown) and (isinstance(told, bool) or told in (0, -1)):
                    return (
                        machine.naming.symbol(f"{first.text}.{args[1]}", args[1], node, hint=told),
                    )
                if isinstance(first, Object) and first.role and told is None and len(args) > 2:
                    # Not every one has it.
                    return (Unknown(f"{first.text}.{args[1]}"),)
                return (machine.members.attribute(first, args[1], node),)
            if len(args) > 1 and isinstance(first, Library) and isinstance(args[1], Unknown):
                table = machine.elsewhere.classes(first)
                picked = machine.invoking.picked(table, args[1], args[1].text)
                if picked is not None:
                    return (picked,)
            return (Unknown("getattr(…)"),)
        case "setattr":
            if len(args) > 2 and isinstance(args[1], str):
                machine.members.set_attribute(
                    first, args[1], args[2], node, f"{text_of(first)}.{args[1]}"
                )
            return (None,)
        case "any" | "all":
            items = machine.items(first) if first is not None else []
            known = [machine.guards.known_truth(i) for i in items]
            if items and all(k is not None for k in known):
                return (any(known) if name == "any" else all(known),)
            return (derived(p.render(node) if isinstance(node, p.Call) else name, *items),)
        case "globals":
            return (machine.elsewhere.classes(),)
        case "divmod":
            match args:
                case [int() as number, int() as divisor] if divisor:
                    return (divmod(number, divisor),)
                case _:
                    return ((Unknown("div"), Unknown("mod")),)
        case "print" | "open" | "id" | "repr" | "str" | "type" | "input" | "vars" | "delattr":
            return (Unknown(p.render(node) if isinstance(node, p.Call) else name),)
        case "callable":
            return (not isinstance(first, Unknown | None),)
        case _:
            return None


def _endless(value: Lazy) -> bool:
    return value.kind in ("cycle", "count", "generator")


def iterable(machine: Machine, kind: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What hands out items one after another; nothing is fetched before somebody goes through it."""
    if kind == "enumerate":
        args = [
            *args,
            *(kwargs[name] for name in ("iterable", "start")[len(args) :] if name in kwargs),
        ]
    if kind == "chain":
        if args and all(isinstance(a, Unknown) and a.parameters for a in args):
            return derived("parameters", *[_carrying(a) for a in args])
        return Lazy("iter", args)
    if kind == "filter":
        return args[1] if len(args) > 1 else Unknown("filter(…)")
    if kind in ("sorted", "reversed"):
        first = args[0] if args else None
        if isinstance(first, list | tuple):
            return list(reversed(first)) if kind == "reversed" else list(first)
        if isinstance(first, Lazy) and first.kind == "range":
            return list(reversed(machine.items(first, 400)))
        return first
    if kind == "iter" and len(args) == 1 and isinstance(args[0], Lazy) and args[0].kind == "iter":
        return args[0]
    if len(args) < _LEAST.get(kind, 0):
        return Unknown(f"{kind}(…)")
    return Lazy(kind, args)


def _carrying(value: Value) -> Value:
    if isinstance(value, Unknown):
        return Unknown(value.text, networks=value.networks)
    return value


def added_up(machine: Machine, value: Value, node: p.Node) -> Value:
    """The sum of some items; of data without a loss, a count."""
    items = machine.items(value)
    total: Value = 0
    for item in items:
        total = machine.expressions.arithmetic(
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


def text_of(value: Value) -> str:
    """What a value is called in another one's text."""
    if isinstance(value, Unknown | Object):
        return value.text
    return str(value) if isinstance(value, Number | str) else "…"
