"""What a program is made of: statements, expressions, functions and classes, without syntax's details.

A part keeps the node of Python's own tree that it came from, which knows where it stands. Bodies of functions and
classes are lowered when somebody asks for them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from functools import cached_property
from operator import attrgetter
from typing import TypeAlias

from accumlint.common.frozen import frozen
from accumlint.reading.ir_expressions import (
    Argument,
    Attr,
    Binary,
    Bool,
    Call,
    Choice,
    Compare,
    Comprehension,
    Const,
    Expr,
    Item,
    Name,
    Node,
    Opaque,
    Sequence,
    Slice,
    Star,
    Table,
    Text,
    Unary,
    Walrus,
    Yield,
    called,
    dotted,
    render,
    target_names,
    text_of,
)
from accumlint.reading.syntax import Source

__all__ = [
    "Argument", "Assign", "Attr", "Augment", "Binary", "Bool", "Call", "Choice", "Class", "Compare", "Comprehension",
    "Const", "Delete", "Do", "Expr", "For", "Function", "If", "Import", "Item", "Jump", "Lambda", "Name", "Node",
    "Opaque", "Param", "Raise", "Return", "Scope", "Sequence", "Slice", "Star", "Stmt", "Table", "Text", "Try",
    "Unary", "Walrus", "While", "With", "Yield", "blocks", "called", "dotted", "names_in", "render", "target_names",
    "text_of", "walk", "walk_expr",
]  # fmt: skip


@frozen(eq=False, slots=True)
class Assign(Node):
    targets: tuple[Expr, ...]
    value: Expr
    annotation: str = ""

    @property
    def below(self) -> tuple[Node, ...]:
        return (self.value, *self.targets)


@frozen(eq=False, slots=True)
class Augment(Node):
    """`target op= value`."""

    target: Expr
    op: str
    value: Expr
    children = attrgetter("target", "value")


@frozen(eq=False, slots=True)
class Do(Node):
    """An expression statement."""

    value: Expr

    @property
    def below(self) -> tuple[Node, ...]:
        return (self.value,)


@frozen(eq=False, slots=True)
class If(Node):
    test: Expr
    body: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...]

    @property
    def below(self) -> tuple[Node, ...]:
        return (self.test, *self.body, *self.orelse)


@frozen(eq=False, slots=True)
class For(Node):
    target: Expr
    iterable: Expr
    body: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...]

    @property
    def below(self) -> tuple[Node, ...]:
        return (self.target, self.iterable, *self.body, *self.orelse)


@frozen(eq=False, slots=True)
class While(Node):
    test: Expr
    body: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...]

    @property
    def below(self) -> tuple[Node, ...]:
        return (self.test, *self.body, *self.orelse)


@frozen(eq=False, slots=True)
class With(Node):
    items: tuple[tuple[Expr, Expr | None], ...]
    body: tuple[Stmt, ...]

    @property
    def below(self) -> tuple[Node, ...]:
        entered = (part for item in self.items for part in item if part is not None)
        return (*entered, *self.body)


@frozen(eq=False, slots=True)
class Try(Node):
    """`handlers` are the exceptions' dotted text ("" for a bare one), the bound name and the body."""

    body: tuple[Stmt, ...]
    handlers: tuple[tuple[str, str, tuple[Stmt, ...]], ...]
    orelse: tuple[Stmt, ...]
    final: tuple[Stmt, ...]

    @property
    def below(self) -> tuple[Node, ...]:
        handled = (statement for _, _, body in self.handlers for statement in body)
        return (*self.body, *handled, *self.orelse, *self.final)


@frozen(eq=False, slots=True)
class Return(Node):
    value: Expr | None

    @property
    def below(self) -> tuple[Node, ...]:
        return () if self.value is None else (self.value,)


@frozen(eq=False, slots=True)
class Jump(Node):
    """`kind` is "break" or "continue"."""

    kind: str


@frozen(eq=False, slots=True)
class Raise(Node):
    exception: str


@frozen(eq=False, slots=True)
class Delete(Node):
    targets: tuple[Expr, ...]
    children = attrgetter("targets")


@frozen(eq=False, slots=True)
class Scope(Node):
    """`global` and `nonlocal`."""

    kind: str
    names: tuple[str, ...]


@frozen(eq=False, slots=True)
class Import(Node):
    """Names bound to dotted paths: `import torch.nn as nn` binds "nn" to "torch.nn"."""

    names: tuple[tuple[str, str], ...]


@frozen(eq=False)
class Param:
    """One parameter. `star` is "", "*" or "**"; `annotation` is the dotted name of its type ("" where that is none)."""

    name: str
    default: Expr | None
    star: str
    keyword_only: bool
    annotation: str = ""


@frozen(eq=False)
class Function(Node):
    """A function, method or lambda of `source`. `owner` is its class ("" outside), `bases` that class's bases."""

    name: str
    params: tuple[Param, ...]
    decorators: tuple[str, ...]
    owner: str
    bases: tuple[str, ...]
    class_attributes: Callable[[], frozenset[str]]
    source: Source = field(repr=False)
    lower: Callable[[], tuple[Stmt, ...]] = field(repr=False)

    @property
    def below(self) -> tuple[Node, ...]:
        defaults = (param.default for param in self.params if param.default is not None)
        return (*defaults, *self.body)

    @cached_property
    def body(self) -> tuple[Stmt, ...]:
        return self.lower()

    @cached_property
    def calls(self) -> tuple[str, ...]:
        """The dotted callees in the body, nested functions included."""
        return tuple(dotted(n.func) for n in walk(self.body) if isinstance(n, Call))

    @cached_property
    def names_read(self) -> frozenset[str]:
        """The plain names that occur in the body, nested functions included."""
        return frozenset(n.id for n in walk(self.body) if isinstance(n, Name))

    @cached_property
    def yields(self) -> bool:
        return any(isinstance(n, Yield) for n in walk(self.body, into_functions=False))

    @cached_property
    def guarded(self) -> tuple[tuple[str, tuple[Stmt, ...]], ...]:
        """What its parameters guard by themselves (`if last: …`), each with the parameter."""
        names = {param.name for param in self.params}
        return tuple(
            (n.test.id, n.body)
            for n in walk(self.body)
            if isinstance(n, If) and isinstance(n.test, Name) and n.test.id in names
        )

    @property
    def assigned_attributes_of_class(self) -> frozenset[str]:
        """The attributes that the owner class sets, on `self` or in its body."""
        return self.class_attributes()


@frozen(eq=False)
class Class(Node):
    name: str
    bases: tuple[str, ...]
    decorators: tuple[str, ...]
    source: Source = field(repr=False)
    lower: Callable[[], tuple[Stmt, ...]] = field(repr=False)
    children = attrgetter("body")

    @cached_property
    def body(self) -> tuple[Stmt, ...]:
        return self.lower()

    @cached_property
    def methods(self) -> Mapping[str, Function]:
        found: dict[str, Function] = {}
        for statement in self.body:
            for inner in [statement, *(statement.body if isinstance(statement, If) else ())]:
                # A property's setter comes after its getter and must not hide it.
                if isinstance(inner, Function) and not any(
                    d.endswith(".setter") for d in inner.decorators
                ):
                    found[inner.name] = inner
        return found

    @cached_property
    def fields(self) -> list[str]:
        """The names that a dataclass or a named tuple is given, in their order."""
        body = self.at.body if isinstance(self.at, ast.ClassDef) else ()
        told = (s.target for s in body if isinstance(s, ast.AnnAssign))
        return [target.id for target in told if isinstance(target, ast.Name)]

    @cached_property
    def attributes(self) -> frozenset[str]:
        found: set[str] = set()
        for node in walk(self.body):
            if isinstance(node, Assign):
                for target in node.targets:
                    found |= target_names(target)
                    found |= {t.name for t in walk_expr(target) if isinstance(t, Attr)}
        return frozenset(found)


@frozen(eq=False, slots=True)
class Lambda(Opaque):
    """An expression whose value is a function."""

    function: Function

    @property
    def below(self) -> tuple[Node, ...]:
        return (self.function,)


Stmt: TypeAlias = (
    Assign | Augment | Do | If | For | While | With | Try | Return | Jump | Raise | Delete | Scope | Import
    | Function | Class
)  # fmt: skip


def walk(nodes: tuple[Stmt, ...] | tuple[Node, ...], into_functions: bool = True) -> Iterator[Node]:
    """All nodes of some statements, parents first. Without `into_functions`, nested bodies are left out."""
    stack: list[Node] = list(reversed(nodes))
    while stack:
        node = stack.pop()
        yield node
        if not into_functions and isinstance(node, Function | Class | Lambda):
            continue
        stack.extend(node.below[::-1])


def walk_expr(node: Node) -> Iterator[Node]:
    """All nodes of one expression, lambdas' bodies left out."""
    return walk((node,), into_functions=False)


def names_in(node: Node) -> frozenset[str]:
    """The names and attributes that an expression is made of, as written."""
    return frozenset(dotted(n) for n in walk_expr(node) if isinstance(n, Attr | Name))


def blocks(statement: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """The blocks of a compound statement that run where it stands: no bodies of functions and classes."""
    match statement:
        case If() | For() | While():
            return statement.body, statement.orelse
        case With(body=body):
            return (body,)
        case Try(body=body, handlers=handlers, orelse=orelse, final=final):
            return (body, *(handled for _, _, handled in handlers), orelse, final)
        case _:
            return ()
