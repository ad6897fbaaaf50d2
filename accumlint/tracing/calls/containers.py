"""Methods of lists, dicts and strings, and named tuples."""

from __future__ import annotations

from collections.abc import Callable

from accumlint.reading import ir as p
from accumlint.tracing.gradients.tensors import derived
from accumlint.tracing.values import Key, Unknown, Value


def list_method(
    base: list[Value], name: str, args: list[Value], items: Callable[[Value], list[Value]]
) -> Value:
    """What a method of a list gives and does; `items` lists what something holds."""
    match name:
        case "append" if args:
            base.append(args[0])
        case "extend" if args:
            base.extend(items(args[0]))
        case "insert" if len(args) > 1:
            base.insert(args[0] if isinstance(args[0], int) else 0, args[1])
        case "pop":
            place = args[0] if args and isinstance(args[0], int) else -1
            if not base:
                return Unknown("pop()")
            return base.pop(place if abs(place) < len(base) else -1)
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
    base: dict[Key, Value], name: str, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """What a method of a dict gives and does."""
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
        case "copy":
            return dict(base)
        case _:
            pass
    return None


def string_method(base: str, name: str, args: list[Value]) -> Value:
    """What a method of a string gives."""
    match name, args:
        case "lower" | "upper" | "title" | "strip" | "lstrip" | "rstrip", []:
            return getattr(base, name)()
        case "startswith", [str() as start, *_]:
            return base.startswith(start)
        case "endswith", [str() as end, *_]:
            return base.endswith(end)
        case _:
            return Unknown(f"{base!r}.{name}")


def record(fields: list[str], given: list[Value], named: dict[str, Value], node: p.Node) -> Unknown:
    """A named tuple: what it holds goes by a number and by a name."""
    found = derived("namedtuple(…)", *given, *named.values(), node=node)
    for position, name in enumerate(fields):
        value = given[position] if position < len(given) else named.get(name)
        found.attributes[name] = found.attributes[f"[{position}]"] = value
    return found
