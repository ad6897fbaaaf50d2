"""What the text of a source tells about its names, by which fakes are chosen."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_STEPS = re.compile(r"\.accumulate\(|accumulation|accum_|sync_gradients")
# An Accelerator that says when a window ends.
_DRIVES = re.compile(r"accelerator\.(backward|accumulate)\(")


@dataclass(frozen=True)
class Source:
    """How a source uses its names.

    `called` and `read` are attributes, the former those that it calls: what it calls is no setting. `keyed` has the
    keys by which it takes parts of what a name holds. `prepares`: it has Accelerate prepare its things; `accelerated`:
    an Accelerator comes from elsewhere, with what it has prepared; `tells_steps`: it speaks of accumulation steps.
    `from_one` has the names that one is subtracted from, as of a number that counts from one. `windows` are names for
    the micro-batches of one update, listed before they are gone through.
    """

    called: frozenset[str]
    read: frozenset[str]
    keyed: dict[str, tuple[str, ...]]
    prepares: bool
    accelerated: bool
    tells_steps: bool
    from_one: frozenset[str]
    windows: frozenset[str]


def look(text: str) -> Source:
    """Reads off a source how it uses its names.

    Raises:
        SyntaxError: where `text` is no Python.
    """
    nodes = list(ast.walk(ast.parse(text)))
    called = (n.func for n in nodes if isinstance(n, ast.Call))
    prepares = ".prepare(" in text
    return Source(
        called=frozenset(f.attr for f in called if isinstance(f, ast.Attribute)),
        read=frozenset(n.attr for n in nodes if isinstance(n, ast.Attribute)),
        keyed=_keyed(nodes),
        prepares=prepares,
        accelerated=not prepares and bool(_DRIVES.search(text)),
        tells_steps=bool(_STEPS.search(text)),
        from_one=frozenset(filter(None, map(_reduced, nodes))),
        windows=frozenset(name for node in nodes for name in _windows(node)),
    )


def _windows(outer: ast.AST) -> Iterator[str]:
    """The names that a loop lists something under and goes through, and steps behind that."""
    if not isinstance(outer, ast.For | ast.While):
        return
    inside = list(ast.walk(outer))
    listed = {
        target.id
        for node in inside
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for inner in inside:
        if isinstance(inner, ast.For) and inner is not outer and not _steps(inner):
            through = (n.id for n in ast.walk(inner.iter) if isinstance(n, ast.Name))
            yield from (name for name in through if name in listed and _steps(outer))


def _steps(loop: ast.AST) -> bool:
    calls = (n.func for n in ast.walk(loop) if isinstance(n, ast.Call))
    return any(isinstance(f, ast.Attribute) and f.attr == "step" for f in calls)


def _reduced(node: ast.AST) -> str:
    """The name that an expression subtracts one from."""
    match node:
        case ast.BinOp(ast.Name(name), ast.Sub(), ast.Constant(1)):
            return name
        case _:
            return ""


def _keyed(nodes: Iterable[ast.AST]) -> dict[str, tuple[str, ...]]:
    """The keys by which parts are taken of what a name holds, where that is gone through as a mapping too."""
    keys: dict[str, list[str]] = {}
    gone_through: set[str] = set()
    for node in nodes:
        match node:
            case ast.Subscript(value=ast.Name(name), slice=ast.Constant(str(key))):
                keys.setdefault(name, []).append(key)
            case ast.Call(func=ast.Attribute(ast.Name(name), "items"), args=[]):
                gone_through.add(name)
            case _:
                pass
    return {name: tuple(dict.fromkeys(keys[name])) for name in gone_through & keys.keys()}
