"""Tells whether the objects on which a fix calls methods have these methods, as far as the file says."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from enum import IntEnum

from accumlint.editing.operations import Enclose, Guard, Insert, Replace, Verb
from accumlint.reading import frameworks
from accumlint.reading import ir as p
from accumlint.reading.program import Program

# What each role offers, by the method's name.
_METHODS = {
    "optimizer": frozenset({"step", "zero_grad"}),
    "scaler": frozenset({"scale", "unscale_", "step", "update"}),
    "accelerator": frozenset({"backward", "accumulate", "no_sync", "clip_grad_norm_", "prepare"}),
    "wrapper": frozenset({"no_sync", "zero_grad"}),
    "model": frozenset({"zero_grad", "parameters"}),
    "fabric": frozenset({"backward", "no_sync"}),
}
# Calls that give back what they are given, with all of its methods.
_KEEPING = frozenset({"prepare", "initialize", "setup", "setup_optimizers", "prepare_optimizer"})
# Libraries whose loaders have no length.
_STREAMING = frozenset({"lhotse", "webdataset", "streaming", "tensorflow_datasets"})


class Standing(IntEnum):
    """Whether an object has a method: no, nobody knows, yes."""

    LACKING = 0
    UNKNOWN = 1
    CERTAIN = 2


def standing(verbs: Iterable[Verb], program: Program) -> Standing:
    """How sure it is that every method that the verbs bring calls of is there: as sure as the least sure one."""
    calls = {call for verb in verbs for text in _texts(verb) for call in _calls(text)}
    found = (_has(name, method, program) for name, method in calls)
    return min(found, default=Standing.CERTAIN)


def unmeasured(verbs: Iterable[Verb], program: Program) -> tuple[str, ...]:
    """The names whose length a fix takes although the file does not tell that they have one: loaders of streams."""
    taken = {name for verb in verbs for text in _texts(verb) for name in _measured(text)}
    known = {
        p.dotted(argument.value) for call in program.calls.get("len", ()) for argument in call.args
    }
    return tuple(sorted(name for name in taken - known if not _has_length(name, program)))


def may_stream(program: Program) -> bool:
    """True for a file that speaks of data sets or samplers that come without a length."""
    paths = {path.lstrip("*").partition(".")[0] for path in program.imports.values()}
    return "IterableDataset" in program.words or not _STREAMING.isdisjoint(paths)


def _has_length(name: str, program: Program) -> bool:
    made = [value for value in _values(name, program) if isinstance(value, p.Call)]
    return (
        bool(made)
        and not may_stream(program)
        and all(p.dotted(value.func).rpartition(".")[2] in frameworks.LOADERS for value in made)
    )


def _measured(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Name(id="len"), args=[ast.Name() | ast.Attribute() as measured]):
                yield ast.unparse(measured)
            case _:
                pass


def _texts(verb: Verb) -> Iterator[str]:
    match verb:
        case Insert(text=text) | Replace(text=text):
            yield text
        case Guard(test=test):
            yield test
        case Enclose(header=header):
            yield f"{header} pass"
        case _:
            pass


def _calls(text: str) -> Iterator[tuple[str, str]]:
    """The methods that a text calls, each with the dotted name of its object."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            base = node.func.value
            while isinstance(base, ast.Attribute):
                base = base.value
            if isinstance(base, ast.Name):
                yield ast.unparse(node.func.value), node.func.attr


def _has(name: str, method: str, program: Program) -> Standing:
    if name.partition(".")[0] in program.imports or _is_called(name, method, program):
        return Standing.CERTAIN
    values = list(_values(name, program))
    found = [_gives(value, name, method, program) for value in values]
    if Standing.LACKING in found:
        return Standing.LACKING
    roles = {role for role in _METHODS if method in _METHODS[role]}
    if any(map(roles.__contains__, _used_as(name, program))):
        return Standing.CERTAIN
    return min(found, default=Standing.UNKNOWN)


def _is_called(name: str, method: str, program: Program) -> bool:
    """True when the file itself calls the method on a name."""
    return any(p.dotted(call.func) == f"{name}.{method}" for call in program.calls.get(method, ()))


def _values(name: str, program: Program) -> Iterator[p.Expr]:
    """What is assigned to a name anywhere in the file, and what annotates it as a parameter."""
    for node in program.of(p.Assign):
        for target in node.targets:
            items = target.items if isinstance(target, p.Sequence) else (target,)
            if any(p.dotted(item) == name for item in items):
                yield node.value


def _gives(value: p.Expr, name: str, method: str, program: Program) -> Standing:
    """Whether an assigned value has a method."""
    if not isinstance(value, p.Call):
        return Standing.UNKNOWN
    called = p.dotted(value.func)
    last = called.rpartition(".")[2]
    if last in _KEEPING:
        # What is handed over and given back under the same name is assigned in another place, too.
        given = any(p.dotted(argument.value) == name for argument in value.args)
        return Standing.CERTAIN if given or last in ("setup", "prepare") else Standing.UNKNOWN
    return _made_by(called, method, program)


def _made_by(called: str, method: str, program: Program, depth: int = 0) -> Standing:
    """Whether what a class makes has a method."""
    root, _, rest = called.partition(".")
    last = called.rpartition(".")[2]
    path = program.imports.get(root, root) + (f".{rest}" if rest else "")
    own = program.classes.get(called) or next(
        (s for s in _imported(called, program) if isinstance(s, p.Class) and s.name == last), None
    )
    if own is not None:
        if method in own.methods:
            return Standing.CERTAIN
        bases = [base for base in own.bases if base != "object"]
        if not bases:
            return Standing.LACKING
        if depth > 5:
            return Standing.UNKNOWN
        return max(_made_by(base, method, program, depth + 1) for base in bases)
    role = _role_of_class(path, last)
    return Standing.CERTAIN if method in _METHODS.get(role, ()) else Standing.UNKNOWN


def _imported(called: str, program: Program) -> Iterable[p.Stmt]:
    return program.imported(called) if called in program.imports else ()


def _role_of_class(path: str, last: str) -> str:
    """The role of what a known class, or a call that is known to make one, makes; "" for any other."""
    if frameworks.optimizer_kind(path) or last in ("optimizers", "Optimizer"):
        return "optimizer"
    if last in frameworks.SCALERS:
        return "scaler"
    if last in frameworks.WRAPPERS:
        return "wrapper"
    return {"Accelerator": "accelerator", "Fabric": "fabric", "Module": "model"}.get(last, "")


def _used_as(name: str, program: Program) -> Iterator[str]:
    """The roles that a name has since the file uses it where only such an object will do."""
    for function in program.functions:
        for param in function.params:
            if param.name == name and param.annotation:
                called = param.annotation.strip("\"'")
                root, _, rest = called.partition(".")
                path = program.imports.get(root, root) + (f".{rest}" if rest else "")
                yield _role_of_class(path, called.rpartition(".")[2])
    called = {method for method in ("scale", "unscale_", "step", "update", "accumulate")
              if _is_called(name, method, program)}  # fmt: skip
    if "accumulate" in called:
        yield "accelerator"
    if "scale" in called or "unscale_" in called:
        yield "scaler"
    for call in program.of(p.Call):
        last = p.dotted(call.func).rpartition(".")[2]
        # GradScaler and the schedulers of torch refuse what is no optimizer.
        takes = last in ("unscale_", *frameworks.SCHEDULERS) or (
            last == "step" and len(call.args) == 1
        )
        if takes and any(p.dotted(argument.value) == name for argument in call.args):
            yield "optimizer"
