"""Hints from the text of a source about the use of its names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# Attributes of a micro-batch or of a network's output.
_PART = re.compile(r"_ids$|_mask$|^labels$|_values$|_features$|loss$")
_STEPS = re.compile(r"\.accumulate\(|accumulation|accum_|sync_gradients")
# An Accelerator that drives the loop.
_DRIVES = re.compile(r"accelerator\.(backward|accumulate)\(")


@dataclass(frozen=True)
class Source:
    """How a source uses its names.

    `called` and `read` are attribute names; a called one is not a setting. `subscripted` are names that are indexed
    by words or have attributes like `input_ids`, and `keyed` the words of those that are iterated over. `prepares`:
    the source calls Accelerate's `prepare`; `accelerated`: another file does, and passes the Accelerator; `scales`:
    the source takes Apex's optimizer that scales the loss; `mentions_steps`: it mentions accumulation steps.
    `from_one` are names from which one is subtracted, such as an epoch that counts from one. `windows` are names of
    lists of the micro-batches of one update.
    """

    called: frozenset[str]
    read: frozenset[str]
    keyed: dict[str, tuple[str, ...]]
    subscripted: frozenset[str]
    prepares: bool
    accelerated: bool
    scales: bool
    mentions_steps: bool
    from_one: frozenset[str]
    windows: frozenset[str]


def look(text: str) -> Source:
    """The hints of a source.

    Raises:
        SyntaxError: where `text` is not valid Python.
    """
    nodes = list(ast.walk(ast.parse(text)))
    called = (n.func for n in nodes if isinstance(n, ast.Call))
    prepares = ".prepare(" in text
    keys = _keys(nodes)
    return Source(
        called=frozenset(f.attr for f in called if isinstance(f, ast.Attribute)),
        read=frozenset(n.attr for n in nodes if isinstance(n, ast.Attribute)),
        keyed={name: keys[name] for name in _iterated(nodes) & keys.keys()},
        subscripted=frozenset((*keys, *_structured(nodes))),
        prepares=prepares,
        accelerated=not prepares and bool(_DRIVES.search(text)),
        scales=any(map(_takes_scaling_optimizer, nodes)),
        mentions_steps=bool(_STEPS.search(text)),
        from_one=frozenset(filter(None, map(_reduced, nodes))),
        windows=frozenset(name for node in nodes for name in _windows(node)),
    )


def _takes_scaling_optimizer(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("apex.")
        and any(alias.name == "FP16_Optimizer" for alias in node.names)
    )


def _windows(outer: ast.AST) -> Iterator[str]:
    """Lists that a loop fills and iterates over, before a step."""
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
    """The name from which an expression subtracts one, "" for none."""
    match node:
        case ast.BinOp(ast.Name(name), ast.Sub(), ast.Constant(1)):
            return name
        case _:
            return ""


def _keys(nodes: Iterable[ast.AST]) -> dict[str, tuple[str, ...]]:
    """The words by which mappings under a name are indexed."""
    keys: dict[str, dict[str, None]] = {}
    for node in nodes:
        match node:
            case ast.Subscript(value=ast.Name(name), slice=ast.Constant(str(key))):
                keys.setdefault(name, {})[key] = None
            case _:
                pass
    return {name: tuple(found) for name, found in keys.items()}


def _structured(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names with attributes that are parts of a micro-batch, or a loss."""
    for node in nodes:
        match node:
            case ast.Attribute(ast.Name(name), attribute) if _PART.search(attribute):
                yield name
            case _:
                pass


def _iterated(nodes: Iterable[ast.AST]) -> set[str]:
    """The names of mappings whose items are read."""
    calls = (node.func for node in nodes if isinstance(node, ast.Call) and not node.args)
    methods = (f for f in calls if isinstance(f, ast.Attribute) and f.attr == "items")
    return {f.value.id for f in methods if isinstance(f.value, ast.Name)}
