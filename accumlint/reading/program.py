"""A source file as a small program: statements, expressions, functions and classes, without syntax's details.

Built from Python's own tree by `lowering`, executed by `accumlint.tracing`. Bodies of functions and classes are lowered
when somebody asks for them. A node keeps the tree's node that it came from, which knows where it stands.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from functools import cached_property
from typing import TypeAlias, TypeVar, cast

from accumlint import source as text
from accumlint.frozen import frozen
from accumlint.place import Place
from accumlint.reading import names
from accumlint.reading.surroundings import Surroundings, surroundings


@frozen(eq=False)
class Source:
    """A file that is read. `path` is as given, `text` what it holds."""

    path: str
    text: str = field(repr=False)

    @cached_property
    def lines(self) -> list[str]:
        """The lines without their ends."""
        return text.lines(self.text)

    @cached_property
    def tree(self) -> ast.Module:
        """Python's own tree.

        Raises:
            UnreadableSource: on a syntax error.
        """
        try:
            return text.parsed(self.text)
        except text.TooDeep:
            raise
        except text.UnreadableSource:
            from accumlint.reading import concrete

            # The code may be for a newer Python than the one that runs here.
            older = concrete.older(self.text)
            if older is None:
                raise
            return text.parsed(older)

    @cached_property
    def _nodes(self) -> frozenset[ast.AST]:
        return frozenset(text.nodes(self.tree))

    def holds(self, node: Node) -> bool:
        """True for a node of this file."""
        return node.at in self._nodes

    def place(self, node: ast.AST) -> Place:
        """Where a node of this file's tree stands; all of it for a node without a place."""
        if not isinstance(node, ast.expr | ast.stmt | ast.pattern):
            return Place(1, 1, len(self.lines), len(self.lines[-1]) + 1)
        last = node.end_lineno or node.lineno
        return Place(
            node.lineno,
            self._column(node.lineno, node.col_offset),
            last,
            self._column(last, node.end_col_offset or node.col_offset),
        )

    def _column(self, line: int, offset: int) -> int:
        """The column of an offset that Python counts in bytes."""
        held = self.lines[line - 1]
        return offset + 1 if held.isascii() else len(held.encode()[:offset].decode()) + 1


@frozen
class Spot:
    """A place in one of the project's files."""

    source: Source
    place: Place


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
    def attributes(self) -> frozenset[str]:
        found: set[str] = set()
        for node in walk(self.body):
            if isinstance(node, Assign):
                for target in node.targets:
                    found |= target_names(target)
                    found |= {t.name for t in walk_expr(target) if isinstance(t, Attr)}
        return frozenset(found)


N = TypeVar("N", bound=Node)
Stmt: TypeAlias = (
    Assign | Augment | Do | If | For | While | With | Try | Return | Jump | Raise | Delete | Scope | Import
    | Function | Class
)  # fmt: skip


@frozen(eq=False)
class Program:
    """A source file, lowered.

    `others` are the project's files that were read along with it, as they are met.
    """

    source: Source
    body: tuple[Stmt, ...]
    others: list[Source] = field(default_factory=list[Source], repr=False)
    read_import: Callable[[Program, str], tuple[Stmt, ...]] = field(
        default=lambda _, __: (), repr=False
    )

    def imported(self, name: str) -> tuple[Stmt, ...]:
        """What another file of the project defines under an imported name, with all of its file that this leads to."""
        return self.read_import(self, name)

    @cached_property
    def data(self) -> tuple[Stmt, ...]:
        """What other files define of the datasets and collators that this one imports."""
        return tuple(s for name in self.imports if names.is_data(name) for s in self.imported(name))

    @property
    def path(self) -> str:
        """The file's path as it was given."""
        return self.source.path

    @property
    def lines(self) -> list[str]:
        """The source lines without their ends."""
        return self.source.lines

    @property
    def text(self) -> str:
        """What the file holds."""
        return self.source.text

    def place(self, node: Node) -> Place:
        """Where a node of this very file stands."""
        return self.source.place(node.at)

    def spot(self, node: Node) -> Spot:
        """Where a node stands, in this file or in one that was read along with it."""
        for source in (self.source, *self.others):
            if source.holds(node):
                return Spot(source, source.place(node.at))
        raise LookupError("a node of no file that was read")

    def code(self, node: Node) -> str:
        """The text of a node on one line as it stands in its file."""
        spot = self.spot(node)
        place = spot.place
        held = spot.source.lines[place.line - 1 : place.end_line]
        held[-1] = held[-1][: place.end_column - 1]
        held[0] = held[0][place.column - 1 :]
        return " ".join(line.strip() for line in held)

    def surroundings(self, node: Node) -> Surroundings:
        """The function or class and the statement that a node stands in."""
        return surroundings(self.source, node.at)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes of the file, parents first."""
        return tuple(walk(self.body))

    @cached_property
    def _by_kind(self) -> Mapping[type[Node], tuple[Node, ...]]:
        found: dict[type[Node], list[Node]] = {}
        for node in self.nodes:
            found.setdefault(type(node), []).append(node)
        return {kind: tuple(nodes) for kind, nodes in found.items()}

    def of(self, kind: type[N]) -> tuple[N, ...]:
        """The nodes of one kind, in the order of `nodes`."""
        return cast("tuple[N, ...]", self._by_kind.get(kind, ()))

    @cached_property
    def parents(self) -> Mapping[Node, Node]:
        """The node that each node stands directly below."""
        return {child: node for node in self.nodes for child in node.below}

    def above(self, node: Node) -> Iterator[Node]:
        """The nodes that hold a node, the nearest first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def function_around(self, node: Node) -> Function | None:
        """The innermost function in which a node stands; None at the top of the file."""
        return next((n for n in self.above(node) if isinstance(n, Function)), None)

    @cached_property
    def words(self) -> frozenset[str]:
        """Every name and attribute in the file."""
        return frozenset((*(n.id for n in self.of(Name)), *(n.name for n in self.of(Attr))))

    @cached_property
    def calls(self) -> Mapping[str, tuple[Call, ...]]:
        """All calls by the last name of what is called, in source order."""
        found: dict[str, tuple[Call, ...]] = {}
        for node in self.of(Call):
            name = dotted(node.func).rpartition(".")[2]
            found[name] = (*found.get(name, ()), node)
        return found

    @cached_property
    def assigned(self) -> Mapping[str, tuple[Expr, ...]]:
        """All that is ever assigned to a target, by the target's text."""
        found: dict[str, tuple[Expr, ...]] = {}
        for node in self.of(Assign):
            for target in map(render, node.targets):
                found[target] = (*found.get(target, ()), node.value)
        return found

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """All functions and methods, nested ones included, in source order."""
        return tuple(n for n in self.of(Function) if n.name != "<lambda>")

    @cached_property
    def classes(self) -> Mapping[str, Class]:
        return {n.name: n for n in self.of(Class)}

    @cached_property
    def definitions(self) -> Mapping[str, Function | Class]:
        """The functions and classes by name, the last of a name."""
        return {n.name: n for n in self.nodes if isinstance(n, Function | Class)}

    @cached_property
    def imports(self) -> Mapping[str, str]:
        """Every imported name of the file and the dotted path it stands for; `*path` for a module imported whole."""
        return {name: path for node in self.of(Import) for name, path in node.names}


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
