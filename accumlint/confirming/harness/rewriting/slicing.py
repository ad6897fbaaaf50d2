"""Slices a source to the statements that can reach a gradient, and those that define their names."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import TypeAlias

from accumlint.common.frozen import frozen
from accumlint.reading import frameworks

# The names of a target: "x", "*rest" or a nested pattern; "" for no name.
Pattern: TypeAlias = "str | tuple[Pattern, ...]"


@frozen
class Guide:
    """Facts from the static analysis of a source; positions are (line, column) from 1.

    `kept` are the statements that can reach a gradient, `eventful` those with gradient events. `roles` are roles by the
    text of a name; `choices` are the flags decided on the path, by text; `leave_out` are training statements of the
    module, where a function is the entry instead; at the lines `averages` a running average of the weights moves;
    `clippers` are calls that clip without being torch's. `lenient`: statements that compute something may fail
    anywhere, and their names get fakes. `provided` are names for which a set-up file has an object.
    """

    kept: frozenset[tuple[int, int]]
    eventful: frozenset[tuple[int, int]]
    roles: dict[str, str]
    choices: dict[str, str]
    leave_out: frozenset[tuple[int, int]] = field(default_factory=frozenset[tuple[int, int]])
    averages: frozenset[int] = frozenset()
    clippers: frozenset[tuple[int, int]] = frozenset()
    lenient: bool = False
    provided: frozenset[str] = frozenset()


def pattern(target: ast.expr) -> Pattern:
    """The names that an assignment target binds."""
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
    """The text of the opposite comparison, "" for any other text."""
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
    """Drops statements that are not kept, and keeps those that define the names of kept ones."""

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
        """Marks the kept statements of a scope and, separately, of its inner scopes."""
        statements = list(_statements(body))
        for statement in statements:
            place = self.place(statement)
            if place in self.guide.eventful:
                self.eventful.add(statement)
            if place in self.guide.kept or isinstance(statement, _ALWAYS):
                self.kept.add(statement)
            if isinstance(statement, ast.ClassDef):
                self.kept.update(_beginnings(statement))
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self._scope(statement.body)
            if isinstance(statement, ast.ClassDef) and any(
                ast.unparse(base).endswith(("Enum", "Flag")) for base in statement.bases
            ):
                # Members of an enumeration are read through their class.
                self.kept.update(statement.body)
        # Keep the definitions of all names that kept statements read.
        known = -1
        while known < len(self.kept):
            known, wanted = len(self.kept), self._wanted(statements)
            self.kept.update(s for s in statements if _stores(s) and wanted & {*_written(s)})
        self._keep_gradients(statements)
        self._leave_unread(statements)

    def _wanted(self, statements: Sequence[ast.stmt]) -> set[str]:
        """The names that the kept statements of a scope read."""
        return {name for s in statements if s in self.kept for name in _read(s)}

    def _leave_unread(self, statements: Sequence[ast.stmt]) -> None:
        """Drops calls whose results only a DataLoader would use: they are slow, and loaders are faked."""
        while True:
            read = self._wanted(statements)
            idle = [
                s for s in statements if s in self.kept - self.eventful and not _is_read(s, read)
            ]
            if not idle or read & {"locals", "vars", "globals"}:
                return
            self.kept.difference_update(idle)

    def _keep_gradients(self, statements: Sequence[ast.stmt]) -> None:
        """Keeps all statements on names that hold a gradient, since they may change it."""
        names: set[str] = set()
        known = -1
        while known < len(names):
            known = len(names)
            for s in statements:
                if not isinstance(s, SCOPES) and _reads_gradient(s, names):
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
    """The statements of a scope in order, without inner scopes."""
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
    """The super().__init__ calls of project-defined optimizers, and all of a project-defined scheduler."""
    bases = {ast.unparse(base).rpartition(".")[2] for base in cls.bases}
    whole = frameworks.is_scheduler(bases)
    if not whole and not any(base.endswith("Optimizer") for base in bases):
        return
    for method in cls.body:
        for statement in _statements(method.body) if isinstance(method, ast.FunctionDef) else ():
            if whole or ast.unparse(statement).startswith("super().__init__("):
                yield statement


def with_inner(statement: ast.stmt) -> Iterator[ast.stmt]:
    return _statements([statement])


def direct_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expression nodes of a statement, without those of inner statements."""
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from ast.walk(child)


def _read(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement reads; for a scope, including everything inside."""
    if isinstance(statement, SCOPES):
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                yield node.id
            elif isinstance(node, ast.Nonlocal):
                # Python requires a binding in an outer function.
                yield from node.names
        return
    # Arguments of a DataLoader are not needed.
    fed = {
        inner
        for node in direct_nodes(statement)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in frameworks.LOADERS
        for argument in (*node.args, *(k.value for k in node.keywords))
        for inner in ast.walk(argument)
    }
    for node in direct_nodes(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node not in fed:
            yield node.id


def _reads_gradient(statement: ast.stmt, names: set[str]) -> bool:
    """Whether a statement reads a parameter's gradient, or a name bound to one."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr == "grad")
        or (isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load))
        for node in direct_nodes(statement)
    )


# Methods that mutate their object.
MUTATING = {
    "add_argument", "set_defaults", "append", "extend", "insert", "add", "update", "setdefault", "register_buffer",
}  # fmt: skip


def _is_read(statement: ast.stmt, read: set[str]) -> bool:
    """False for the assignment of a call to a plain name that nothing reads."""
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
    """The name whose object a method call mutates, None for other statements."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr))):
            return name if attr in MUTATING else None
        case _:
            return None


def _written(statement: ast.stmt) -> Iterator[str]:
    mutated = _mutates(statement)
    if mutated is not None:
        yield mutated
    for node in direct_nodes(statement):
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
    """Drops imports that no kept statement uses: they cost time and may have effects."""
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
