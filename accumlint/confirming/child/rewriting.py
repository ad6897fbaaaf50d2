"""Makes the user's source runnable with stand-ins, on its own line numbers.

What cannot reach a gradient is left out. Values enter names through the runtime (`Binding`, known to the rewritten code
as `__accumlint__`), which puts a stand-in in the place of a model, a loader or data. A statement outside the windows
that fails gives its names stand-ins instead of ending the run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from accumlint.confirming.child.settings import LOSS_LIKE
from accumlint.reading import frameworks, names

RUNTIME = "__accumlint__"
N = TypeVar("N", bound=ast.AST)
# The names of a tuple of targets: "x", "*rest" or a nested pattern; "" for what is no name.
Pattern: TypeAlias = "str | tuple[Pattern, ...]"
_DECORATORS = {
    "staticmethod", "classmethod", "property", "contextmanager", "contextlib.contextmanager", "dataclass",
    "dataclasses.dataclass", "functools.wraps", "torch.enable_grad", "cached_property",
}  # fmt: skip


@dataclass(frozen=True)
class Guide:
    """What the reading of a source knows: positions are (line, column) from 1.

    `kept` are the statements that can reach a gradient, `eventful` those in which something happens to it. `roles`
    are roles by the text of a name; `choices` are the flags decided on the path, by text; `maker` is the inner
    function that a run needs ("" for none); `training` are the statements of the module that train, to be left out
    where a function is called instead; at the lines `averages` a running average of the weights moves.
    """

    kept: frozenset[tuple[int, int]]
    eventful: frozenset[tuple[int, int]]
    roles: dict[str, str]
    choices: dict[str, str]
    leave_out: frozenset[tuple[int, int]] = field(default_factory=frozenset[tuple[int, int]])
    averages: frozenset[int] = frozenset()


def rewritten(text: str, filename: str, guide: Guide) -> ast.Module:
    """The runnable module of a source.

    Raises:
        SyntaxError: where `text` is no Python.
    """
    tree = ast.parse(text, filename)
    slicer = _Slice(tree, text, guide)
    tree.body = slicer.block(tree.body) or [ast.Pass()]
    _drop_imports(tree)
    tree = _Rewriter(guide, slicer.eventful).visit(tree)
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    # Only a docstring may stand before a future import; nobody needs it here.
    tree.body.insert(0, future)
    return ast.fix_missing_locations(tree)


def pattern(target: ast.expr) -> Pattern:
    """The names that an assignment's target binds."""
    match target:
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return tuple(pattern(item) for item in items)
        case ast.Starred(value=inner):
            return "*" + ast.unparse(inner)
        case _:
            return ast.unparse(target)


def _flat(names_: Pattern) -> Iterator[str]:
    if isinstance(names_, str):
        yield names_.lstrip("*")
    else:
        for part in names_:
            yield from _flat(part)


class _Slice:
    """Leaves out statements that are not kept, and keeps what gives a kept one its names."""

    def __init__(self, tree: ast.Module, text: str, guide: Guide) -> None:
        self.guide = guide
        self.lines = text.splitlines()
        self.eventful: set[ast.stmt] = set()
        self.kept: set[ast.stmt] = set()
        self._scope(tree.body)

    def place(self, node: ast.stmt) -> tuple[int, int]:
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
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self._scope(statement.body)
        # A kept statement's names come from somewhere: whatever gives them is kept too.
        while True:
            wanted = {
                name
                for s in own
                if s in self.kept
                for name in (_read(s) if not isinstance(s, _SCOPES) else _read_inside(s))
            }
            more = [
                s for s in own if s not in self.kept and _stores(s) and set(_written(s)) & wanted
            ]
            if not more:
                return
            self.kept.update(more)

    def block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        kept: list[ast.stmt] = []
        for statement in body:
            if self.place(statement) in self.guide.leave_out:
                continue
            if not any(s in self.kept for s in _with_inner(statement)):
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
            kept.append(statement)
        return kept


_ALWAYS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Global, ast.Nonlocal)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a scope in order, those of inner scopes left out."""
    for statement in body:
        yield statement
        if isinstance(statement, _SCOPES):
            continue
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, ast.stmt):
                yield from _statements([child])
            elif isinstance(child, ast.ExceptHandler | ast.match_case):
                yield from _statements(child.body)


def _with_inner(statement: ast.stmt) -> Iterator[ast.stmt]:
    return _statements([statement])


def _own(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement itself, without those of the statements inside."""
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from ast.walk(child)


def _read(statement: ast.stmt) -> Iterator[str]:
    for node in _own(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id


def _read_inside(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id


# Methods by which a statement changes the thing it calls them on.
_MUTATING = {
    "add_argument",
    "set_defaults",
    "append",
    "extend",
    "insert",
    "add",
    "update",
    "setdefault",
    "register_buffer",
}


def _stores(statement: ast.stmt) -> bool:
    return _mutates(statement) is not None or isinstance(
        statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.For | ast.With
    )


def _mutates(statement: ast.stmt) -> str | None:
    """The name that a statement's method call changes, None for any other statement."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr))):
            return name if attr in _MUTATING else None
        case _:
            return None


def _written(statement: ast.stmt) -> Iterator[str]:
    mutated = _mutates(statement)
    if mutated is not None:
        yield mutated
    for node in _own(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
            # `config["x"] = …` changes what `config` is.
            base: ast.expr = node
            while isinstance(base, ast.Subscript | ast.Attribute):
                base = base.value
            if isinstance(base, ast.Name) and base.id != "self":
                yield base.id


def _drop_imports(tree: ast.Module) -> None:
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


class _Rewriter(ast.NodeTransformer):
    """Sends what enters names, loops and flags through the runtime."""

    def __init__(self, guide: Guide, eventful: set[ast.stmt]) -> None:
        self.guide = guide
        self.eventful = eventful
        self.choices = {
            _normal(text): (text, choice) for text, choice in guide.choices.items() if choice != "…"
        }
        self.temporary = 0

    # Statements

    def visit_FunctionDef(self, node: ast.FunctionDef) -> list[ast.stmt]:
        node.decorator_list = [
            d for d in node.decorator_list if _decorator(d) in _DECORATORS or _sets(d)
        ]
        node.returns = None
        everything = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for argument in (*everything, node.args.vararg, node.args.kwarg):
            if argument is not None:
                argument.annotation = None
        self.generic_visit(node)
        made = _runtime("made", [ast.Constant(node.name), ast.Name(node.name, ast.Load())])
        # A transformer may give several statements for one.
        return [node, _at(ast.Expr(made), node)]

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.decorator_list = [d for d in node.decorator_list if _decorator(d) in _DECORATORS]
        self.generic_visit(node)
        # The functions of a class are reached through it.
        node.body = [s for s in node.body if not _is_made(s)]
        return node

    def visit_Import(self, node: ast.Import) -> ast.AST:
        bound = tuple(a.asname or a.name.split(".")[0] for a in node.names)
        return self.careful(node, bound)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        return self.careful(node, tuple(a.asname or a.name for a in node.names if a.name != "*"))

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if all(ast.unparse(target).startswith("torch.") for target in node.targets):
            # Switches of torch's own, which are nobody's gradient.
            return _at(ast.Pass(), node)
        eventful = node in self.eventful
        bound = pattern(node.targets[0])
        value = self.visit(node.value)
        chained = len(node.targets) > 1
        if not chained and isinstance(bound, str) and _is_alias(node.value, bound):
            node.value = value
        else:
            node.value = self.entering(bound, value, node.value)
        for target in node.targets:
            self.visit(target)
        return node if eventful else self.careful(node, bound)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return node
        bound = pattern(node.target)
        eventful = node in self.eventful
        node.value = self.entering(bound, self.visit(node.value), node.value)
        return node if eventful else self.careful(node, bound)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        eventful = node in self.eventful
        self.generic_visit(node)
        return node if eventful else self.careful(node, ())

    def visit_Expr(self, node: ast.Expr) -> ast.AST | list[ast.stmt]:
        eventful = node in self.eventful
        self.generic_visit(node)
        done = node if eventful else self.careful(node, ())
        if node.lineno not in self.guide.averages:
            return done
        return [_at(ast.Expr(_runtime("averaged", [])), node), done]

    def visit_With(self, node: ast.With) -> ast.AST:
        quiet = self.quiet(node)
        self.generic_visit(node)
        return self.careful_block(node) if quiet else node

    def visit_For(self, node: ast.For) -> ast.AST:
        quiet = self.quiet(node)
        text = ast.unparse(node.iter)
        bound = pattern(node.target)
        iterable = _runtime("iterate", [self.visit(node.iter), ast.Constant(text)])
        self.temporary += 1
        item = f"__item_{self.temporary}"
        spec = ast.Constant(bound) if isinstance(bound, str) else _constant(bound)
        entering = _runtime("item", [spec, ast.Name(item, ast.Load())])
        assign = _at(ast.Assign([node.target], entering), node)
        node.target = _at(ast.Name(item, ast.Store()), node)
        node.iter = _at(iterable, node)
        body: list[ast.stmt] = []
        for statement in node.body:
            body.extend(_listed(self.visit(statement)))
        node.body = [assign, *body]
        node.orelse = [s for inner in node.orelse for s in _listed(self.visit(inner))]
        return self.careful_block(node) if quiet else node

    def visit_While(self, node: ast.While) -> ast.AST:
        quiet = self.quiet(node)
        node.test = self.testing(node.test)
        self.generic_visit(node)
        # A loop that never fetches must not go on for ever.
        node.test = _at(_runtime("turn", [node.test]), node)
        return self.careful_block(node) if quiet else node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        taken_apart = isinstance(node.target, ast.Tuple | ast.List)
        bound = pattern(node.target)
        self.generic_visit(node)
        if taken_apart:
            node.iter = _at(_runtime("items", [_constant(bound), node.iter]), node.iter)
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        quiet = self.quiet(node)
        node.test = self.testing(node.test)
        self.generic_visit(node)
        return self.careful_block(node) if quiet else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        node.test = self.testing(node.test)
        self.generic_visit(node)
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return _at(ast.Pass(), node)

    # Expressions

    def testing(self, test: ast.expr) -> ast.expr:
        """A guard in which a bare name may be a flag that was decided."""
        match test:
            case ast.Name() if _normal(test.id) in self.choices:
                return self.chosen(test)
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                test.operand = self.testing(inner)
            case ast.BoolOp(values=values):
                test.values = [self.testing(v) for v in values]
            case _:
                pass
        return test

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return self.decided(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        return self.decided(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        return self.decided(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        text = ast.unparse(node.func)
        if text.rpartition(".")[2] in frameworks.LOADERS:
            return _at(_runtime("loader", [ast.Constant(text)]), node)
        if text.endswith("Plugin"):
            # How a framework that is not here would be set up.
            return _at(ast.Constant(None), node)
        if text.rpartition(".")[2] in frameworks.WRAPPERS and node.args:
            # What is wrapped may be built right here.
            first = node.args[0]
            node.args[0] = self.entering("model", first, first)
        if text.rpartition(".")[2] == "Accelerator":
            node.args.insert(0, node.func)
            node.func = _runtime("accelerator", []).func
            _at(node, node)
        for keyword in node.keywords:
            if keyword.arg and names.is_steps(keyword.arg):
                keyword.value = self.entering(keyword.arg, keyword.value, keyword.value)
        return self.decided(node)

    def decided(self, node: ast.expr) -> ast.AST:
        context = getattr(node, "ctx", ast.Load())
        if isinstance(context, ast.Load) and self.choices:
            if _normal(ast.unparse(node)) in self.choices:
                return self.chosen(node)
        return self.generic_visit(node)

    def chosen(self, node: ast.expr) -> ast.expr:
        text, choice = self.choices[_normal(ast.unparse(node))]
        if choice in ("true", "false"):
            return _at(
                _runtime("chosen", [ast.Constant(text), ast.Constant(choice == "true")]), node
            )
        try:
            literal = ast.literal_eval(choice)
        except (ValueError, SyntaxError):
            literal = choice
        return _at(ast.Constant(literal), node)

    # Names

    def entering(self, bound: Pattern, value: ast.expr, original: ast.expr | None) -> ast.expr:
        """The value as it enters names: through the runtime, which may put a stand-in there."""
        # A generator and a coroutine only work where they stand.
        if original is not None and any(
            isinstance(n, ast.Yield | ast.YieldFrom | ast.Await | ast.NamedExpr)
            for n in ast.walk(original)
        ):
            return value
        if original is not None and isinstance(bound, str) and bound in _mentions(original):
            if names.is_steps(bound.rpartition(".")[2]):
                # A counter, whatever it is called.
                return value
        spec = ast.Constant(bound) if isinstance(bound, str) else _constant(bound)
        mentions = (
            _constant(tuple(sorted(set(_mentions(original)))))
            if original is not None
            else _constant(())
        )
        later = ast.Lambda(ast.arguments([], [], None, [], [], None, []), value)
        if original is None or not self.builds(bound, original):
            return _at(_runtime("entering", [spec, value]), value)
        return _at(_runtime("built", [spec, mentions, later]), value)

    def builds(self, bound: Pattern, value: ast.expr) -> bool:
        """True for a call that may build a thing with a role: it is put off until it is known to be needed."""
        call = value
        while isinstance(call, ast.Call | ast.Attribute | ast.Subscript) and not isinstance(
            call, ast.Call
        ):
            call = call.value
        if isinstance(call, ast.Call) and (
            ast.unparse(call.func).rpartition(".")[2] in frameworks.WRAPPERS
        ):
            return False
        roles = {
            self.guide.roles.get(n) or names.role_of(n.rpartition(".")[2]) for n in _flat(bound)
        }
        return isinstance(call, ast.Call) and bool(roles & {"model", "loader", "engine"})

    def quiet(self, node: ast.stmt) -> bool:
        """True where nothing happens to a gradient in any statement inside, and no loss is computed."""
        if any(inner in self.eventful for inner in _with_inner(node)):
            return False
        return not any(LOSS_LIKE.search(name.lower()) for name in _bound_inside(node))

    def careful_block(self, node: ast.stmt) -> ast.AST:
        """A block whose failure ends the block alone; names that it would have bound get stand-ins."""
        failed = ast.Name("__failed", ast.Load())
        mends: list[ast.stmt] = [ast.Expr(_runtime("missing", [_constant(()), failed]))]
        for name in dict.fromkeys(_bound_inside(node)):
            now = ast.Lambda(ast.arguments([], [], None, [], [], None, []), _loaded(name))
            either = _runtime("either", [ast.Constant(name), now, failed])
            mends.append(ast.Assign([ast.Name(name, ast.Store())], either))
        handler = ast.ExceptHandler(ast.Name("Exception", ast.Load()), "__failed", mends)
        tried = ast.Try([node], [handler], [], [])
        for part in (*mends, handler, tried):
            _at(part, node)
        return tried

    def careful(self, node: ast.stmt, bound: Pattern | tuple[str, ...]) -> ast.stmt:
        """A statement whose failure gives its names stand-ins."""
        spec = _constant(bound)
        failed = ast.Name("__failed", ast.Load())
        made = _runtime("missing", [spec, failed])
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            targets = [target]
        elif isinstance(node, ast.Import | ast.ImportFrom) and bound:
            targets = [ast.Tuple([ast.Name(n, ast.Store()) for n in _flat(bound)], ast.Store())]
        if targets:
            mend: ast.stmt = ast.Assign(targets, made)
        else:
            mend = ast.Expr(made)
        handler = ast.ExceptHandler(ast.Name("Exception", ast.Load()), "__failed", [mend])
        tried = ast.Try([node], [handler], [], [])
        for part in (mend, handler, tried, made):
            _at(part, node)
        return tried


def _loaded(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _bound_inside(node: ast.stmt) -> Iterator[str]:
    """The user's names that a block binds, in its own scope."""
    for statement in _with_inner(node):
        if isinstance(statement, _SCOPES):
            continue
        for inner in _own(statement):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                if not inner.id.startswith("__"):
                    yield inner.id


def _constant(value: object) -> ast.expr:
    # Strings and tuples of them, nested; what is in a tuple that is met as an object, no annotation says.
    if isinstance(value, tuple):
        return ast.Tuple([_constant(v) for v in value], ast.Load())  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    return ast.Constant(value)  # pyright: ignore[reportArgumentType]


def _mentions(node: ast.expr) -> Iterator[str]:
    """The dotted names that an expression reads."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name | ast.Attribute) and isinstance(inner.ctx, ast.Load):
            yield ast.unparse(inner)


def _is_alias(value: ast.expr, bound: str) -> bool:
    return isinstance(value, ast.Constant) and not names.is_steps(bound.rpartition(".")[2])


def _runtime(name: str, args: list[ast.expr]) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name(RUNTIME, ast.Load()), name, ast.Load()), args, [])


def _at(node: N, place: ast.AST) -> N:
    """A made node, put where the user's stands."""
    for inner in ast.walk(node):
        if not hasattr(inner, "lineno") and isinstance(
            inner, ast.expr | ast.stmt | ast.excepthandler
        ):
            ast.copy_location(inner, place)
    return node


def _listed(result: object) -> list[ast.stmt]:
    if isinstance(result, list):
        # A transformer gives statements only.
        return result  # pyright: ignore[reportUnknownVariableType]
    return [result] if isinstance(result, ast.stmt) else []


def _is_made(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Attribute)
        and isinstance(statement.value.func.value, ast.Name)
        and statement.value.func.value.id == RUNTIME
    )


def _decorator(node: ast.expr) -> str:
    return ast.unparse(node.func if isinstance(node, ast.Call) else node)


def _sets(node: ast.expr) -> bool:
    """`@x.setter`."""
    return isinstance(node, ast.Attribute) and node.attr in ("setter", "getter")


def _normal(text: str) -> str:
    """One spelling for texts that mean the same expression."""
    try:
        return ast.unparse(ast.parse(text, mode="eval"))
    except (SyntaxError, ValueError):
        return text
