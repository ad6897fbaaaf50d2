"""Which statements of a source are run: those that can reach a gradient, and those that give them their names."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import TypeAlias

from accumlint.common.frozen import frozen
from accumlint.reading import frameworks

# The names of a tuple of targets: "x", "*rest" or a nested pattern; "" for what is no name.
Pattern: TypeAlias = "str | tuple[Pattern, ...]"


@frozen
class Guide:
    """What the reading of a source knows: positions are (line, column) from 1.

    `kept` are the statements that can reach a gradient, `eventful` those in which something happens to it. `roles`
    are roles by the text of a name; `choices` are the flags decided on the path, by text; `leave_out` are statements of
    the module that train, where a function is called instead; at the lines `averages` a running average of the
    weights moves; `clippers` are calls that clip without being torch's. `lenient`: a statement that computes something
    may fail anywhere, and its names get fakes. `given` are names for which a set-up file has something.
    """

    kept: frozenset[tuple[int, int]]
    eventful: frozenset[tuple[int, int]]
    roles: dict[str, str]
    choices: dict[str, str]
    leave_out: frozenset[tuple[int, int]] = field(default_factory=frozenset[tuple[int, int]])
    averages: frozenset[int] = frozenset()
    clippers: frozenset[tuple[int, int]] = frozenset()
    lenient: bool = False
    given: frozenset[str] = frozenset()


def pattern(target: ast.expr) -> Pattern:
    """The names that an assignment's target binds."""
    match target:
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return tuple(pattern(item) for item in items)
        case ast.Starred(value=inner):
            return "*" + ast.unparse(inner)
        case _:
            return ast.unparse(target)


_OPPOSITES = (
    (" >= ", " < "), (" <= ", " > "), (" != ", " == "), (" not in ", " in "), (" is not ", " is "),
)  # fmt: skip


def negated(text: str) -> str:
    """The text of a comparison that is false where this one is true, "" for any other text."""
    for pair in _OPPOSITES:
        for sign, other in (pair, pair[::-1]):
            if text.count(sign) == 1:
                return text.replace(sign, other)
    return ""


def flat(names_: Pattern) -> Iterator[str]:
    if isinstance(names_, str):
        yield names_.lstrip("*")
    else:
        for part in names_:
            yield from flat(part)


class Slice:
    """Leaves out statements that are not kept, and keeps what gives a kept one its names."""

    def __init__(self, tree: ast.Module, text: str, guide: Guide) -> None:
        self.guide = guide
        self.lines = text.splitlines()
        self.eventful: set[ast.stmt] = set()
        self.kept: set[ast.stmt] = set()
        self._scope(tree.body)

    def place(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        line = self.lines[node.lineno - 1] if node.lineno <= len(self.lines) else ""
        before = line.encode()[: node.col_offset].decode(errors="replace")
        return node.lineno, len(before) + 1

    def _scope(self, body: Sequence[ast.stmt]) -> None:
        """Marks the statements of one function (or of the module) and, each for itself, of those inside."""
        own = list(_statements(body))
        for statement in own:
            place = self.place(statement)
            if place in self.guide.eventful:
                self.eventful.add(statement)
            if place in self.guide.kept or isinstance(statement, _ALWAYS):
                self.kept.add(statement)
            if isinstance(statement, ast.ClassDef):
                self.kept.update(_beginnings(statement))
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self._scope(statement.body)
            if isinstance(statement, ast.ClassDef) and _is_enumeration(statement):
                # Members are read by way of their class.
                self.kept.update(statement.body)
        # A kept statement's names come from somewhere: whatever gives them is kept too.
        known = -1
        while known < len(self.kept):
            known, wanted = len(self.kept), self._wanted(own)
            self.kept.update(s for s in own if _stores(s) and wanted & {*_written(s)})
        self._keep_gradients(own)
        self._leave_unread(own)

    def _wanted(self, own: Sequence[ast.stmt]) -> set[str]:
        """The names that kept statements of a scope read."""
        return {name for s in own if s in self.kept for name in _read(s)}

    def _leave_unread(self, own: Sequence[ast.stmt]) -> None:
        """What only a DataLoader would be made of is left out: it takes long, and fakes are made anyway."""
        while True:
            read = self._wanted(own)
            idle = [s for s in own if s in self.kept - self.eventful and not _is_read(s, read)]
            if not idle or read & {"locals", "vars", "globals"}:
                return
            self.kept.difference_update(idle)

    def _keep_gradients(self, own: Sequence[ast.stmt]) -> None:
        """What takes a gradient in hand may change it: so may all that is done to the names that then hold it."""
        names: set[str] = set()
        known = -1
        while known < len(names):
            known = len(names)
            for s in own:
                if not isinstance(s, SCOPES) and _holds_gradient(s, names):
                    self.kept.add(s)
                    names.update(_written(s))

    def block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        kept: list[ast.stmt] = []
        for statement in body:
            if self.place(statement) in self.guide.leave_out:
                continue
            if not any(s in self.kept for s in with_inner(statement)):
                continue
            for name in ("body", "orelse", "finalbody"):
                inner: list[ast.stmt] | None = getattr(statement, name, None)
                if inner is not None:
                    rest = self.block(inner)
                    setattr(statement, name, rest or ([ast.Pass()] if name == "body" else []))
            for handler in getattr(statement, "handlers", ()):
                handler.body = self.block(handler.body) or [ast.Pass()]
            for case in getattr(statement, "cases", ()):
                case.body = self.block(case.body) or [ast.Pass()]
            if isinstance(statement, ast.Try) and not (statement.handlers or statement.finalbody):
                statement.finalbody = [ast.Pass()]
            kept.append(statement)
        return kept


_ALWAYS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Global, ast.Nonlocal)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a scope in order, those of inner scopes left out."""
    for statement in body:
        yield statement
        if isinstance(statement, SCOPES):
            continue
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, ast.stmt):
                yield from _statements([child])
            elif isinstance(child, ast.ExceptHandler | ast.match_case):
                yield from _statements(child.body)


def _beginnings(cls: ast.ClassDef) -> Iterator[ast.stmt]:
    """Where an optimizer of the user's gives torch's its parameters, and all of a scheduler of the user's."""
    bases = {ast.unparse(base).rpartition(".")[2] for base in cls.bases}
    whole = frameworks.is_scheduler(bases)
    if not whole and not any(base.endswith("Optimizer") for base in bases):
        return
    for method in cls.body:
        for statement in _statements(method.body) if isinstance(method, ast.FunctionDef) else ():
            if whole or ast.unparse(statement).startswith("super().__init__("):
                yield statement


def _is_enumeration(cls: ast.ClassDef) -> bool:
    return any(ast.unparse(base).endswith(("Enum", "Flag")) for base in cls.bases)


def with_inner(statement: ast.stmt) -> Iterator[ast.stmt]:
    return _statements([statement])


def own(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement itself, without those of the statements inside."""
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from ast.walk(child)


def _read(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement reads; a function or a class with all that is inside."""
    if isinstance(statement, SCOPES):
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                yield node.id
            elif isinstance(node, ast.Nonlocal):
                # Python wants them bound where the function is.
                yield from node.names
        return
    # Of a DataLoader, nothing is asked for what it is made of.
    fed = {
        inner
        for node in own(statement)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in frameworks.LOADERS
        for given in (*node.args, *(k.value for k in node.keywords))
        for inner in ast.walk(given)
    }
    for node in own(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node not in fed:
            yield node.id


def _holds_gradient(statement: ast.stmt, names: set[str]) -> bool:
    """Whether a statement reads a parameter's gradient, or a name that holds one."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr == "grad")
        or (isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load))
        for node in own(statement)
    )


# Methods by which a statement changes the thing it calls them on.
MUTATING = {
    "add_argument", "set_defaults", "append", "extend", "insert", "add", "update", "setdefault", "register_buffer",
}  # fmt: skip


def _is_read(statement: ast.stmt, read: set[str]) -> bool:
    """True unless a statement gives plain names what a call returns, and nothing reads those."""
    match statement:
        case ast.Assign(targets=[ast.Name(name)]):
            called = any(isinstance(node, ast.Call) for node in ast.walk(statement.value))
            return name in read or not called
        case _:
            return True


def _stores(statement: ast.stmt) -> bool:
    return _mutates(statement) is not None or isinstance(
        statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.For | ast.With
    )


def _mutates(statement: ast.stmt) -> str | None:
    """The name that a statement's method call changes, None for any other statement."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr))):
            return name if attr in MUTATING else None
        case _:
            return None


def _written(statement: ast.stmt) -> Iterator[str]:
    mutated = _mutates(statement)
    if mutated is not None:
        yield mutated
    for node in own(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
            # `config["x"] = …` changes what `config` is.
            base: ast.expr = node
            while isinstance(base, ast.Subscript | ast.Attribute):
                base = base.value
            if isinstance(base, ast.Name) and base.id != "self":
                yield base.id


def drop_imports(tree: ast.Module) -> None:
    """Imports that nothing kept reads are left out: they cost time and may do anything."""
    read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}

    class Drop(ast.NodeTransformer):
        def visit_Import(self, node: ast.Import) -> ast.AST | None:
            node.names = [a for a in node.names if (a.asname or a.name.split(".")[0]) in read]
            return node if node.names else None

        def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
            if node.module == "__future__":
                return None
            node.names = [a for a in node.names if a.name == "*" or (a.asname or a.name) in read]
            return node if node.names else None

    Drop().visit(tree)
    for node in ast.walk(tree):
        if vars(node).get("body") == []:
            vars(node)["body"] = [ast.Pass()]
