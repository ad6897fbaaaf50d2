"""What the source says about a line at which a run failed: the names read, called, computed or shaped there."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator

from accumlint.confirming import setup_template
from accumlint.reading import names

# What is done with a tensor, by which nothing else goes.
_OF_TENSORS = {
    "size", "shape", "to", "view", "reshape", "item", "detach", "float", "long", "bool", "cpu", "cuda", "device",
    "dtype", "unsqueeze", "squeeze", "flatten", "expand", "clone", "mean", "sum",
}  # fmt: skip
# Names of modules and of what is the same everywhere.
_KNOWN = {*dir(builtins), "torch", "F", "nn", "np", "os", "sys", "math", "dist", "self", "cls"}
_LOSS = re.compile(r"loss")
_ATTRIBUTE = re.compile(r"'(\w+)' object has no attribute '(\w+)'")


def stepping(line: int, source: str) -> list[str]:
    """What is asked to step nearest to a line, schedulers left out."""
    found = {
        ast.unparse(n.func.value): abs(n.lineno - line)
        for n in ast.walk(ast.parse(source))
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "step"
    }
    free = {n: at for n, at in found.items() if is_free(n) and names.role_of(n) != "scheduler"}
    return sorted(free, key=lambda n: free[n])[:1]


def behind(line: int, source: str) -> set[str]:
    """What the statement at a line reads, and what the names in it were computed with."""
    nodes = list(ast.walk(ast.parse(source)))
    around = [
        n
        for n in nodes
        if isinstance(n, ast.stmt) and n.lineno <= line <= (n.end_lineno or n.lineno)
    ]
    read = _texts(around[-1]) if around else set[str]()
    computed = [
        _texts(n.value)
        for n in nodes
        if isinstance(n, ast.Assign) and any(ast.unparse(t) in read for t in n.targets)
    ]
    return read.union(*computed)


def behind_losses(source: str) -> set[str]:
    """The names that what is called a loss is computed with, in however many statements."""
    assigned = [
        ({ast.unparse(t) for t in n.targets}, _texts(n.value))
        for n in ast.walk(ast.parse(source))
        if isinstance(n, ast.Assign)
    ]
    found = {t for targets, _ in assigned for t in targets if _LOSS.search(t.lower())}
    while True:
        more = {name for targets, read in assigned if targets & found for name in read} - found
        if not more:
            return found
        found |= more


def _texts(node: ast.AST) -> set[str]:
    return {ast.unparse(n) for n in ast.walk(node) if isinstance(n, ast.Name | ast.Attribute)}


def shaping(line: int, source: str) -> Iterator[str]:
    """The names by which a statement at a line gives tensors a shape."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(attr="view" | "reshape"), args=args, lineno=at) if (
                at == line
            ):
                yield from (ast.unparse(a) for a in args if isinstance(a, ast.Name | ast.Attribute))
            case _:
                pass


def shaped_by(line: int, source: str) -> Iterator[str]:
    """The settings that what gives a tensor its shape at a line is computed from."""
    names_of = set(shaping(line, source))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign) and names_of & {ast.unparse(t) for t in node.targets}:
            for part in ast.walk(node.value):
                if isinstance(part, ast.Attribute) and setup_template.is_configuration(
                    ast.unparse(part.value)
                ):
                    yield ast.unparse(part)


def made_of(name: str, source: str) -> list[str]:
    """What takes the place of a name: of a class of the user's, or a method of one, what is made of it."""
    cls = name.partition(".")[0]
    if f"class {cls}" not in source:
        return [name]
    made = [
        ast.unparse(target)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if ast.unparse(node.value.func) == cls
        for target in node.targets
    ]
    return list(dict.fromkeys(made)) or [name]


def missed(message: str, line: int, text: str) -> str:
    """What lacks the attribute of an object of the user's that an exception misses at a line, "" for none.

    Of the object itself it is the attribute that is asked for, and of its settings they are.
    """
    found = _ATTRIBUTE.search(message)
    if not found or f"class {found[1]}" not in text:
        return ""
    owners = [
        ast.unparse(n.value)
        for n in ast.walk(ast.parse(text))
        if isinstance(n, ast.Attribute) and n.attr == found[2] and n.lineno == line
    ]
    owner = owners[0] if owners else "self"
    return owner if setup_template.is_configuration(owner) else f"self.{found[2]}"


def unmade(line: int, text: str) -> str:
    """The name of the loss function that a statement at a line makes, "" where it makes none."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Assign(targets=[ast.Name() | ast.Attribute() as target], value=ast.Call()):
                inside = node.lineno <= line <= (node.end_lineno or line)
                if inside and setup_template.is_criterion(ast.unparse(target).rpartition(".")[2]):
                    return ast.unparse(target)
            case _:
                pass
    return ""


def given(text: str) -> str:
    """The name under which what a run calls `text` is given: that of what is called, and not of what it gives."""
    found = re.match(r"[A-Za-z_][\w.]*", text)
    owner, _, last = found[0].rstrip(".").rpartition(".") if found else ("", "", "")
    return owner if owner and last in _OF_TENSORS else f"{owner}.{last}".lstrip(".")


def giving(name: str, source: str) -> str:
    """What is given in the place of a name: of a loss, and of what a call gives, what is called."""
    if "(" in name or name.rpartition(".")[2] in _OF_TENSORS:
        return given(name)
    if "." in name or not _LOSS.search(name.lower()):
        return name
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Assign(targets=[target], value=ast.Call(func=called)):
                parts = target.elts if isinstance(target, ast.Tuple) else [target]
                text = ast.unparse(called)
                if name in map(ast.unparse, parts) and is_free(text):
                    return text
            case _:
                pass
    return name


def read(line: int, text: str) -> Iterator[str]:
    """What is called at a line, or else read there; nothing where a loss goes backward, which is the end of all."""
    nodes = [n for n in ast.walk(ast.parse(text)) if getattr(n, "lineno", 0) == line]
    called = [n.func for n in nodes if isinstance(n, ast.Call)]
    if any(isinstance(f, ast.Attribute) and f.attr == "backward" for f in called):
        return
    read = [
        ast.unparse(n)
        for n in nodes
        if isinstance(n, ast.Name | ast.Attribute) and isinstance(n.ctx, ast.Load)
    ]
    for told in (map(_called, called), read):
        if found := [name for name in dict.fromkeys(told) if is_free(name)]:
            yield from found
            return


def _called(function: ast.expr) -> str:
    """What has to be given for a call: a function, or the object that has the method."""
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return function.value.id if function.value.id != "self" else ast.unparse(function)
    if isinstance(function, ast.Attribute) and ast.unparse(function).count(".") > 1:
        # What an attribute of an object of the user's can do comes with it.
        owner = ast.unparse(function.value)
        return owner if owner.startswith("self.") else ast.unparse(function)
    return ast.unparse(function)


def is_free(name: str) -> bool:
    """Whether a name is the user's own."""
    dotted = all(part.isidentifier() for part in name.split("."))
    return dotted and (name.startswith("self.") or name.partition(".")[0] not in _KNOWN)
