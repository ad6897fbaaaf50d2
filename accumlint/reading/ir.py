"""What a program is made of: statements, expressions, functions and classes, without syntax's details.

A part keeps the node of Python's own tree that it came from, which knows where it stands. Bodies of functions and
classes are lowered when somebody asks for them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from functools import cached_property
from typing import TypeAlias

from accumlint.common.frozen import frozen
from accumlint.reading.syntax import Source


@frozen(eq=False, slots=True)
class Node:
    """Anything with a place in the source."""

    at: ast.AST

    @property
    def below(self) -> tuple[Node, ...]:
        """The nodes directly below, function and class bodies included, in source order."""
        return ()


# Expressions


@frozen(eq=False, slots=True)
class Const(Node):
    value: int | float | str | bytes | bool | complex | None


@frozen(eq=False, slots=True)
class Name(Node):
    id: str


@frozen(eq=False, slots=True)
class Attr(Node):
    """`base.name`; `path` is its text once somebody has asked for it."""

    base: Expr
    name: str
    path: str = field(default="", init=False, repr=False)

    @property
    def below(self) -> tuple[Node, ...]:
        return (self.base,)


@frozen(eq=False, slots=True)
class Argument:
    """One argument of a call: `star` is "", "*" or "**"."""

    value: Expr
    keyword: str
    star: str


@frozen(eq=False, slots=True)
class Call(Node):
    func: Expr
    args: tuple[Argument, ...]

    @property
    def below(self) -> tuple[Node, ...]:
        return (self.func, *(argument.value for argument in self.args))

    def positional(self, index: int) -> Expr | None:
        """The argument at a position, None where a starred one comes before it."""
        plain = 0
        for argument in self.args:
            if argument.star == "*":
                return None
            if argument.star or argument.keyword:
                continue
            if plain == index:
                return argument.value
            plain += 1
        return None

    def keyword(self, name: str) -> Expr | None:
        for argument in self.args:
            if argument.keyword == name:
                return argument.value
        return None


@frozen(eq=False, slots=True)
class Binary(Node):
    op: str
    left: Expr
    right: Expr

    @property
    def below(self) -> tuple[Node, ...]:
        return (self.left, self.right)


@frozen(eq=False, slots=True)
class Unary(Node):
    op: str
    operand: Expr

    @property
    def below(self) -> tuple[Node, ...]:
        return (self.operand,)


@frozen(eq=False, slots=True)
class Bool(Node):
    """`and` / `or`."""

    op: str
    left: Expr
    right: Expr

    @property
    def below(self) -> tuple[Node, ...]:
        return (self.left, self.right)


@frozen(eq=False, slots=True)
class Compare(Node):
    left: Expr
    rest: tuple[tuple[str, Expr], ...]

    @property
    def below(self) -> tuple[Node, ...]:
        return (self.left, *(right for _, right in self.rest))


@frozen(eq=False, slots=True)
class Choice(Node):
    """`body if test else orelse`."""

    test: Expr
    body: Expr
    orelse: Expr

    @property
    def below(self) -> tuple[Node, ...]:
        return (self.test, self.body, self.orelse)


@frozen(eq=False, slots=True)
class Slice(Node):
    lower: Expr | None
    upper: Expr | None
    step: Expr | None

    @property
    def below(self) -> tuple[Node, ...]:
        return tuple(part for part in (self.lower, self.upper, self.step) if part is not None)


@frozen(eq=False, slots=True)
class Item(Node):
    """`base[index]`."""

    base: Expr
    index: Expr

    @property
    def below(self) -> tuple[Node, ...]:
        return (self.base, self.index)


@frozen(eq=False, slots=True)
class Sequence(Node):
    """A tuple, list or set display; `kind` is "tuple", "list" or "set"."""

    kind: str
    items: tuple[Expr, ...]

    @property
    def below(self) -> tuple[Node, ...]:
        return self.items


@frozen(eq=False, slots=True)
class Star(Node):
    value: Expr

    @property
    def below(self) -> tuple[Node, ...]:
        return (self.value,)


@frozen(eq=False, slots=True)
class Table(Node):
    """A dict display; a None key stands for `**value`."""

    items: tuple[tuple[Expr | None, Expr], ...]

    @property
    def below(self) -> tuple[Node, ...]:
        return tuple(part for item in self.items for part in item if part is not None)


@frozen(eq=False, slots=True)
class Comprehension(Node):
    """`kind` is "list", "set", "generator" or "dict" (then `element` is a pair)."""

    kind: str
    element: Expr
    clauses: tuple[tuple[Expr, Expr, tuple[Expr, ...]], ...]

    @property
    def below(self) -> tuple[Node, ...]:
        below = (
            part for target, iterable, tests in self.clauses for part in (target, iterable, *tests)
        )
        return (*below, self.element)


@frozen(eq=False, slots=True)
class Text(Node):
    """An f-string; only the parts that are read matter."""

    parts: tuple[Expr, ...]

    @property
    def words(self) -> str:
        """What it says around the parts that are read."""
        values = self.at.values if isinstance(self.at, ast.JoinedStr) else []
        said = (value.value for value in values if isinstance(value, ast.Constant))
        return " ".join(text for text in said if isinstance(text, str))

    @property
    def below(self) -> tuple[Node, ...]:
        return self.parts


@frozen(eq=False, slots=True)
class Yield(Node):
    value: Expr | None
    delegates: bool

    @property
    def below(self) -> tuple[Node, ...]:
        return () if self.value is None else (self.value,)


@frozen(eq=False, slots=True)
class Walrus(Node):
    target: Expr
    value: Expr

    @property
    def below(self) -> tuple[Node, ...]:
        return (self.target, self.value)


@frozen(eq=False, slots=True)
class Lambda(Node):
    function: Function

    @property
    def below(self) -> tuple[Node, ...]:
        return (self.function,)


@frozen(eq=False, slots=True)
class Opaque(Node):
    """An expression without a meaning here."""


Expr: TypeAlias = (
    Const | Name | Attr | Call | Binary | Unary | Bool | Compare | Choice | Slice | Item | Sequence | Star
    | Table | Comprehension | Text | Yield | Walrus | Lambda | Opaque
)  # fmt: skip


# Statements


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

    @property
    def below(self) -> tuple[Node, ...]:
        return (self.target, self.value)


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

    @property
    def below(self) -> tuple[Node, ...]:
        return self.targets


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

    @property
    def below(self) -> tuple[Node, ...]:
        return self.body

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


Stmt: TypeAlias = (
    Assign | Augment | Do | If | For | While | With | Try | Return | Jump | Raise | Delete | Scope | Import
    | Function | Class
)  # fmt: skip


# Walking


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


def target_names(target: Expr) -> set[str]:
    """The plain names that an assignment to `target` binds."""
    match target:
        case Name(id=name):
            return {name}
        case Sequence(items=items):
            return set[str]().union(*(target_names(i) for i in items))
        case Star(value=value):
            return target_names(value)
        case _:
            return set()


def dotted(expr: Expr) -> str:
    """A name path as written (`self.scaler.step`); parts that are no name are shown short (`f().x`, `a[0]`)."""
    match expr:
        case Name(id=name):
            return name
        case Attr():
            if not expr.path:
                object.__setattr__(expr, "path", f"{dotted(expr.base)}.{expr.name}")
            return expr.path
        case Call(func=func):
            return f"{dotted(func)}()"
        case Item(base=base, index=index):
            return f"{dotted(base)}[{render(index)}]"
        case _:
            return render(expr)


def render(expr: Expr) -> str:
    """An expression's text in one normal form, so that equal expressions have equal texts."""
    match expr:
        case Const(value=value):
            return repr(value)
        case Name() | Attr() | Item():
            return dotted(expr)
        case Call(func=func, args=args):
            shown = ", ".join(
                f"{a.keyword}={render(a.value)}" if a.keyword else a.star + render(a.value)
                for a in args
            )
            return f"{dotted(func)}({shown})"
        case Binary(op=op, left=left, right=right) | Bool(op=op, left=left, right=right):
            return f"{_wrapped(left)} {op} {_wrapped(right)}"
        case Unary(op=op, operand=operand):
            return f"{op} {_wrapped(operand)}" if op == "not" else f"{op}{_wrapped(operand)}"
        case Compare(left=left, rest=rest):
            return " ".join([_wrapped(left), *(f"{op} {_wrapped(right)}" for op, right in rest)])
        case Choice(test=test, body=body, orelse=orelse):
            return f"{render(body)} if {render(test)} else {render(orelse)}"
        case Sequence(kind=kind, items=items):
            inner = ", ".join(render(i) for i in items)
            return f"[{inner}]" if kind == "list" else f"({inner})"
        case Slice(lower=lower, upper=upper):
            return f"{render(lower) if lower else ''}:{render(upper) if upper else ''}"
        case Star(value=value):
            return "*" + render(value)
        case Walrus(value=value):
            return render(value)
        case _:
            return "…"


def shown(node: Node) -> str:
    """The text of any node: an expression's own, dots for what is none."""
    return render(node) if isinstance(node, Expr) else "…"


def _wrapped(expr: Expr) -> str:
    text = render(expr)
    return f"({text})" if isinstance(expr, Binary | Bool | Compare | Choice) else text
