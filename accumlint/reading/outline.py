"""A module's outline: what it binds at its top level, without reading what stands there."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from accumlint.common.frozen import frozen
from accumlint.files.source import nodes


@dataclass(eq=False)
class Block:
    """One definition or assignment."""

    tree: ast.stmt

    @property
    def is_class(self) -> bool:
        return isinstance(self.tree, ast.ClassDef)

    @property
    def bases(self) -> frozenset[str]:
        """The last names of a class's bases."""
        found = self.tree.bases if isinstance(self.tree, ast.ClassDef) else ()
        return frozenset(ast.unparse(base).rpartition(".")[2] for base in found)

    @property
    def names(self) -> frozenset[str]:
        """Every plain name and attribute in it."""
        return self._words[0]

    @property
    def calls(self) -> frozenset[str]:
        """The last names of what it calls, and the attributes that it sets."""
        return self._words[1]

    @cached_property
    def _words(self) -> tuple[frozenset[str], frozenset[str]]:
        names: set[str] = set()
        calls: set[str] = set()
        for node in nodes(self.tree):
            match node:
                case ast.Name(id=name):
                    names.add(name)
                case ast.Attribute(attr=name, ctx=context):
                    names.add(name)
                    if isinstance(context, ast.Store):
                        calls.add(name)
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                    calls.add(name)
                case _:
                    pass
        return frozenset(names), frozenset(calls)


@frozen
class Outline:
    """The blocks and the imports of a module by the names that they bind; `stars` are modules imported whole."""

    blocks: dict[str, Block]
    imports: dict[str, str]
    stars: tuple[str, ...]

    def closure(self, name: str) -> tuple[str, ...]:
        """The names of all blocks that `name` leads to, itself first."""
        found = dict.fromkeys([name])
        waiting = [name]
        while waiting:
            for inner in sorted(self.blocks[waiting.pop()].names & self.blocks.keys()):
                if inner not in found:
                    found[inner] = None
                    waiting.append(inner)
        return tuple(found)


def outline(module: ast.Module) -> Outline:
    """The outline of a module."""
    found = Outline({}, {}, ())
    stars: list[str] = []
    for statement in _top_level(module.body):
        match statement:
            case ast.Import() | ast.ImportFrom():
                for bound, path in imported(statement):
                    if bound:
                        found.imports.setdefault(bound, path)
                    else:
                        stars.append(path)
            case _:
                for name in _bound(statement):
                    found.blocks[name] = Block(statement)
    for statement in _inside(module.body):
        # A function's own import binds its name there alone, and few names mean something else in their file.
        for bound, path in imported(statement):
            if bound not in found.blocks:
                found.imports.setdefault(bound, path)
    return Outline(found.blocks, found.imports, tuple(stars))


def imported(statement: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """The names that a statement binds, with what they stand for; "" and the module for a star."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            top = alias.name.partition(".")[0]
            yield alias.asname or top, alias.name if alias.asname else top
        return
    start = "." * statement.level + (statement.module or "")
    dot = "" if start.endswith(".") or not start else "."
    for alias in statement.names:
        if alias.name == "*":
            yield "", start
        else:
            yield alias.asname or alias.name, start + dot + alias.name


def _inside(statements: Iterable[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports in the functions of some statements."""
    waiting: list[ast.FunctionDef | ast.ClassDef | ast.If | ast.Try | ast.With] = [
        s for s in statements if isinstance(s, ast.FunctionDef | ast.ClassDef)
    ]
    while waiting:
        for inner in waiting.pop().body:
            match inner:
                case ast.Import() | ast.ImportFrom():
                    yield inner
                case ast.FunctionDef() | ast.ClassDef() | ast.If() | ast.Try() | ast.With():
                    waiting.append(inner)
                case _:
                    pass


def used(tree: ast.AST, imports: Mapping[str, str]) -> frozenset[str]:
    """What a tree uses of its file's imports: `.loss.Masked` for `loss.Masked`."""
    found = list(nodes(tree))
    paths = {
        imports[node.id] for node in found if isinstance(node, ast.Name) and node.id in imports
    }
    for node in found:
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if names and isinstance(node, ast.Name) and node.id in imports:
            paths.add(".".join([imports[node.id], *reversed(names)]))
    return frozenset(paths)


def _top_level(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module; of alternatives, the first comes last and so has the last word."""
    for statement in statements:
        match statement:
            case ast.If(body=body, orelse=orelse):
                yield from _top_level(orelse)
                yield from _top_level(body)
            case ast.Try(body=body, handlers=handlers):
                yield from _top_level(body)
                for handler in handlers:
                    yield from (s for s in _top_level(handler.body) if isinstance(s, ast.Import))
            case _:
                yield statement


def _bound(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
            yield name
        case _:
            return
