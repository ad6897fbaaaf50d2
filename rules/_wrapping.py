"""Where a file wraps a model with DDP that no traced path to the loop passes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from accumlint.reading.ir import Assign, Attr, Call, Expr, Item, Name, Node, dotted, render
from accumlint.reading.program import Program, Spot
from accumlint.tracing.trace import Contribution, Entry

# Torch's own wrapper, and helpers called after it (`create_ddp_model`); what only prepares for it makes no model.
_WRAPS = re.compile(r"(^|_)(\w*DistributedDataParallel|ddp)($|_)|^DDP$", re.IGNORECASE)
_WRAPPED = re.compile(r"\w*DistributedDataParallel|DDP")
_ELSEWHERE = ("apex.", "deepspeed.")


def wrapped_elsewhere(
    program: Program, entry: Entry, contributions: list[Contribution]
) -> Node | None:
    """The assignment that wraps the one trained model with DDP, in another method, helper or branch; None without one.

    The model is known by the last part of its name, and by that of the parameter to which the file's own calls give it.
    """
    if not any(map(_WRAPS.search, (*program.words, *map(_last, program.imports.values())))):
        return None
    trained = {_last(c.forward.model.text if c.forward else c.network) for c in contributions}
    if len(trained) != 1:
        return None
    (name,) = trained
    for node in program.of(Assign):
        for target in node.targets:
            if wraps(program, node.value, target) and name in {
                _last(render(target)),
                *_parameters(program, entry, target),
            }:
                return node
    return None


def wrapped_in_project(program: Program, contributions: list[Contribution]) -> Spot | None:
    """Where another file of the project wraps a network with DDP: the trained one's name, or the only one there is."""
    trained = {_last(c.forward.model.text if c.forward else c.network) for c in contributions}
    if len(trained) != 1:
        return None
    found: dict[str, Spot] = {}
    for source, tree in program.neighbours:
        if any(map(_WRAPPED.fullmatch, source.identifiers)) and "apex" not in source.identifiers:
            for name, node in _wrappings(tree):
                found.setdefault(name, Spot(source, source.place(node)))
    (name,) = trained
    return found.get(name) or (next(iter(found.values())) if len(found) == 1 else None)


def _wrappings(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What is wrapped by torch's own class, by the last part of its name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            target = ast.unparse(node.targets[0])
            if _WRAPPED.fullmatch(_last(ast.unparse(node.value.func))):
                yield _last(target), node


def wraps(program: Program, made: Expr, target: Expr) -> bool:
    """True for `model = DistributedDataParallel(net)`, and for a helper called after it that gives a model back."""
    if not isinstance(made, Call) or not isinstance(target, Attr | Name | Item):
        return False
    # By the name that it has where it is imported from.
    first, dot, rest = dotted(made.func).partition(".")
    callee = program.imports.get(first, first) + dot + rest
    last = _last(callee)
    if callee.startswith(_ELSEWHERE) or not _WRAPS.search(last):
        return False
    given = {_last(_moved(a.value)) for a in made.args}
    return last in ("DistributedDataParallel", "DDP") or _last(render(target)) in given


def _parameters(program: Program, entry: Entry, given: Expr) -> Iterator[str]:
    """What the entry's function calls what the file's own calls give it."""
    if entry.function is None:
        return
    names = [p.name for p in entry.function.params]
    skipped = int(names[:1] == ["self"])
    for call in program.calls.get(entry.function.name, ()):
        for position, argument in enumerate(call.args):
            if render(argument.value) == render(given):
                index = position + skipped
                yield argument.keyword or (names[index] if index < len(names) else "")


def _moved(value: Expr) -> str:
    """The name of a model that is given as it is, or as `model.to(device)`."""
    while isinstance(value, Call) and isinstance(value.func, Attr):
        value = value.func.base
    return dotted(value)


def _last(name: str) -> str:
    return name.rpartition(".")[2]
