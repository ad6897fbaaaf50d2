"""The expressions of the intermediate representation, and their text in one normal form."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import field
from operator import attrgetter
from typing import Any, ClassVar, TypeAlias

from accumlint.common.frozen import frozen


@frozen(eq=False, slots=True)
class Node:
    """Anything with a place in the source."""

    at: ast.AST
    # Where fields hold them as they are: one in each of several fields, or all of them in one.
    children: ClassVar[Callable[[Any], tuple[Node, ...]] | None] = None

    @property
    def below(self) -> tuple[Node, ...]:
        """The nodes directly below, function and class bodies included, in source order."""
        return self.children(self) if self.children else ()


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
    children = attrgetter("left", "right")


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
    children = attrgetter("left", "right")


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
    children = attrgetter("test", "body", "orelse")


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
    children = attrgetter("base", "index")


@frozen(eq=False, slots=True)
class Sequence(Node):
    """A tuple, list or set display; `kind` is "tuple", "list" or "set"."""

    kind: str
    items: tuple[Expr, ...]
    children = attrgetter("items")


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

    children = attrgetter("parts")


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
    children = attrgetter("target", "value")


@frozen(eq=False, slots=True)
class Opaque(Node):
    """An expression without a meaning here."""


Expr: TypeAlias = (
    Const | Name | Attr | Call | Binary | Unary | Bool | Compare | Choice | Slice | Item | Sequence | Star
    | Table | Comprehension | Text | Yield | Walrus | Opaque
)  # fmt: skip


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


def called(node: Node) -> str:
    """The last name of what is called, `step` of `self.scaler.step(optimizer)`; "" for anything but a call."""
    return dotted(node.func).rpartition(".")[2] if isinstance(node, Call) else ""


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


def text_of(node: Node) -> str:
    """The text of any node: an expression's own, dots for what is none."""
    return render(node) if isinstance(node, Expr) else "…"


def _wrapped(expr: Expr) -> str:
    text = render(expr)
    return f"({text})" if isinstance(expr, Binary | Bool | Compare | Choice) else text
