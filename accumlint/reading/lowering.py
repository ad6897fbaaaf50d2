"""Python's own syntax tree into a `Program`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from accumlint.reading import ir as p
from accumlint.reading.outline import imported
from accumlint.reading.syntax import Source

_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.MatMult: "@", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
}  # fmt: skip
_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Is: "is",
    ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
_UNARY: dict[type[ast.unaryop], str] = {
    ast.Not: "not", ast.USub: "-", ast.UAdd: "+", ast.Invert: "~",
}  # fmt: skip
_DISPLAYED: dict[type[ast.expr], str] = {
    ast.Tuple: "tuple", ast.List: "list", ast.Set: "set",
    ast.ListComp: "list", ast.SetComp: "set", ast.GeneratorExp: "generator",
}  # fmt: skip
if sys.version_info >= (3, 11):
    _Try: TypeAlias = ast.Try | ast.TryStar
else:
    _Try: TypeAlias = ast.Try
_NO_NODES: frozenset[ast.AST] = frozenset()


def lowered(
    statements: Sequence[ast.stmt], source: Source, left_out: frozenset[ast.AST] = _NO_NODES
) -> tuple[p.Stmt, ...]:
    """The statements of a module, or some of them, that stand in `source`, without the functions to be `left_out`."""
    return _Lowering(source, left_out).block(statements)


class _Lowering:
    """Turns nodes into the program's; `owner` is the class whose body is being lowered."""

    def __init__(
        self, source: Source, left_out: frozenset[ast.AST], owner: p.Class | None = None
    ) -> None:
        self.source = source
        self.left_out = left_out
        self.owner = owner

    # Statements

    def block(self, statements: Sequence[ast.stmt]) -> tuple[p.Stmt, ...]:
        return tuple(found for statement in statements for found in self.statement(statement))

    def statement(self, node: ast.stmt) -> Iterable[p.Stmt]:
        match node:
            case ast.Expr(value=value):
                # A text by itself is a remark.
                if not _is_text(value):
                    yield p.Do(node, self.expr(value))
            case ast.Assign(targets=targets, value=value):
                yield p.Assign(node, self.exprs(targets), self.expr(value))
            case ast.AnnAssign(target=target, annotation=told, value=value) if value is not None:
                yield p.Assign(node, (self.expr(target),), self.expr(value), _annotated(told))
            case ast.AugAssign(target=target, op=op, value=value):
                yield p.Augment(node, self.expr(target), _OPERATORS[type(op)], self.expr(value))
            case ast.Return(value=value):
                yield p.Return(node, self.expr(value) if value is not None else None)
            case ast.Break():
                yield p.Jump(node, "break")
            case ast.Continue():
                yield p.Jump(node, "continue")
            case ast.Raise(exc=exc):
                yield p.Raise(node, p.dotted(self.expr(exc)) if exc is not None else "")
            case ast.Delete(targets=targets):
                yield p.Delete(node, self.exprs(targets))
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                kind = "global" if isinstance(node, ast.Global) else "nonlocal"
                yield p.Scope(node, kind, tuple(names))
            case ast.Import() | ast.ImportFrom():
                # For a star no name that a program can write, so that several of them stand side by side.
                names = tuple((bound or f"*{path}", path) for bound, path in imported(node))
                yield p.Import(node, names)
            case ast.If(test=test, body=body, orelse=orelse):
                yield p.If(node, self.expr(test), self.block(body), self.block(orelse))
            case ast.For() | ast.AsyncFor():
                target, iterable = self.expr(node.target), self.expr(node.iter)
                yield p.For(node, target, iterable, self.block(node.body), self.block(node.orelse))
            case ast.While(test=test, body=body, orelse=orelse):
                yield p.While(node, self.expr(test), self.block(body), self.block(orelse))
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                entered = tuple(
                    (self.expr(i.context_expr), self.maybe(i.optional_vars)) for i in items
                )
                yield p.With(node, entered, self.block(body))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if node not in self.left_out:
                    yield self.function(node)
            case ast.ClassDef():
                yield self.class_(node)
            case ast.Match(subject=subject, cases=cases):
                yield from self.matched(self.expr(subject), cases)
            case ast.Try():
                yield self.tried(node)
            case _:
                # Python 3.10 has no `except*`.
                if sys.version_info >= (3, 11) and isinstance(node, ast.TryStar):
                    yield self.tried(node)

    def tried(self, node: _Try) -> p.Try:
        handlers = tuple(
            (
                p.dotted(self.expr(h.type)) if h.type is not None else "",
                h.name or "",
                self.block(h.body),
            )
            for h in node.handlers
        )
        body, orelse, final = map(self.block, (node.body, node.orelse, node.finalbody))
        return p.Try(node, body, handlers, orelse, final)

    def matched(self, subject: p.Expr, cases: Sequence[ast.match_case]) -> Iterable[p.Stmt]:
        """`match` as a chain of comparisons; a pattern that is no value is an unknown test."""
        chain: tuple[p.Stmt, ...] = ()
        for case in reversed(cases):
            # A case has no place of its own, its pattern has.
            at = case.pattern
            test: p.Expr | None
            match at:
                case ast.MatchValue(value=value):
                    test = p.Compare(at, subject, (("==", self.expr(value)),))
                case ast.MatchAs(pattern=None):
                    test = None
                case _:
                    test = p.Opaque(at)
            guard = self.maybe(case.guard)
            if test is not None and guard is not None:
                test = p.Bool(at, "and", test, guard)
            test = test or guard
            body = self.block(case.body)
            chain = body if test is None else (p.If(at, test, body, chain),)
        return chain

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> p.Function:
        decorators = self.dotted(node.decorator_list)
        inside = _Lowering(self.source, self.left_out)
        return self.callable(
            node, node.name, node.args, decorators, lambda: inside.block(node.body)
        )

    def callable(
        self,
        node: ast.AST,
        name: str,
        arguments: ast.arguments,
        decorators: tuple[str, ...],
        lower: Callable[[], tuple[p.Stmt, ...]],
    ) -> p.Function:
        owner = self.owner
        return p.Function(
            node,
            name,
            tuple(self.params(arguments)),
            decorators,
            owner.name if owner else "",
            owner.bases if owner else (),
            (lambda: owner.attributes) if owner else frozenset[str],
            self.source,
            lower,
        )

    def params(self, found: ast.arguments) -> Iterable[p.Param]:
        plain = [*found.posonlyargs, *found.args]
        defaults = [*[None] * (len(plain) - len(found.defaults)), *found.defaults]
        for param, default in zip(plain, defaults, strict=True):
            yield p.Param(param.arg, self.maybe(default), "", False, _annotated(param.annotation))
        if found.vararg is not None:
            yield p.Param(found.vararg.arg, None, "*", False)
        for param, default in zip(found.kwonlyargs, found.kw_defaults, strict=True):
            yield p.Param(param.arg, self.maybe(default), "", True, _annotated(param.annotation))
        if found.kwarg is not None:
            yield p.Param(found.kwarg.arg, None, "**", False)

    def class_(self, node: ast.ClassDef) -> p.Class:
        bases, decorators = self.dotted(node.bases), self.dotted(node.decorator_list)

        def lower() -> tuple[p.Stmt, ...]:
            return _Lowering(self.source, self.left_out, found).block(node.body)

        found = p.Class(node, node.name, bases, decorators, self.source, lower)
        return found

    # Expressions

    def exprs(self, nodes: Iterable[ast.expr]) -> tuple[p.Expr, ...]:
        return tuple(map(self.expr, nodes))

    def maybe(self, node: ast.expr | None) -> p.Expr | None:
        return self.expr(node) if node is not None else None

    def dotted(self, nodes: Iterable[ast.expr]) -> tuple[str, ...]:
        return tuple(map(p.dotted, self.exprs(nodes)))

    def expr(self, node: ast.expr) -> p.Expr:
        match node:
            case ast.Name(id=name):
                return p.Name(node, name)
            case ast.Attribute(value=value, attr=attr):
                return p.Attr(node, self.expr(value), attr)
            case ast.Call(func=func, args=args, keywords=keywords):
                given = (*map(self.argument, args), *map(self.keyword, keywords))
                return p.Call(node, self.expr(func), given)
            case ast.Constant(value=int() as number) if number.bit_length() > 64:
                return p.Opaque(node)
            case ast.Constant(value=value):
                # In an index, `...` takes all of each dimension that the others leave.
                return p.Slice(node, None, None, None) if value is ... else p.Const(node, value)
            case ast.BinOp(left=left, op=op, right=right):
                return p.Binary(node, _OPERATORS[type(op)], self.expr(left), self.expr(right))
            case ast.UnaryOp(op=op, operand=operand):
                return p.Unary(node, _UNARY[type(op)], self.expr(operand))
            case ast.BoolOp(op=op, values=values):
                word = "and" if isinstance(op, ast.And) else "or"
                first, *others = self.exprs(values)
                for other in others:
                    first = p.Bool(node, word, first, other)
                return first
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                words = (_COMPARED[type(op)] for op in ops)
                rest = tuple(zip(words, self.exprs(comparators), strict=True))
                return p.Compare(node, self.expr(left), rest)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return p.Choice(node, self.expr(test), self.expr(body), self.expr(orelse))
            case ast.Subscript(value=value, slice=index):
                return p.Item(node, self.expr(value), self.expr(index))
            case ast.Slice(lower=lower, upper=upper, step=step):
                return p.Slice(node, *map(self.maybe, (lower, upper, step)))
            case ast.Lambda(args=params, body=body):
                function = self.callable(
                    node, "<lambda>", params, (), lambda: (p.Return(body, self.expr(body)),)
                )
                return p.Lambda(node, function)
            case ast.Yield(value=value) | ast.YieldFrom(value=value):
                return p.Yield(node, self.maybe(value), isinstance(node, ast.YieldFrom))
            case ast.Await(value=value):
                return self.expr(value)
            case ast.NamedExpr(target=target, value=value):
                return p.Walrus(node, self.expr(target), self.expr(value))
            case ast.Starred(value=value):
                return p.Star(node, self.expr(value))
            case _:
                return self.display(node)

    def display(self, node: ast.expr) -> p.Expr:
        """What is written out with its elements."""
        match node:
            case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
                return p.Sequence(node, _DISPLAYED[type(node)], self.exprs(items))
            case ast.Dict(keys=keys, values=values):
                pairs = zip(map(self.maybe, keys), self.exprs(values), strict=True)
                return p.Table(node, tuple(pairs))
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                clauses = self.clauses(node.generators)
                return p.Comprehension(node, _DISPLAYED[type(node)], self.expr(node.elt), clauses)
            case ast.DictComp(key=key, value=value, generators=clauses):
                pair = p.Sequence(node, "tuple", self.exprs((key, value)))
                return p.Comprehension(node, "dict", pair, self.clauses(clauses))
            case ast.JoinedStr(values=values):
                read = [part.value for part in values if isinstance(part, ast.FormattedValue)]
                return p.Text(node, self.exprs(_placed(part, node) for part in read))
            case _:
                return p.Opaque(node)

    def argument(self, node: ast.expr) -> p.Argument:
        if isinstance(node, ast.Starred):
            return p.Argument(self.expr(node.value), "", "*")
        return p.Argument(self.expr(node), "", "")

    def keyword(self, node: ast.keyword) -> p.Argument:
        return p.Argument(self.expr(node.value), node.arg or "", "" if node.arg else "**")

    def clauses(
        self, clauses: Iterable[ast.comprehension]
    ) -> tuple[tuple[p.Expr, p.Expr, tuple[p.Expr, ...]], ...]:
        return tuple((self.expr(c.target), self.expr(c.iter), self.exprs(c.ifs)) for c in clauses)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _placed(part: ast.expr, text: ast.JoinedStr) -> ast.expr:
    """A part of an f-string: before Python 3.12 it does not know where it stands, so it stands where the text does."""
    if sys.version_info < (3, 12):
        for node in ast.walk(part):
            if isinstance(node, ast.expr | ast.keyword | ast.arg):
                ast.copy_location(node, text)
    return part


def _annotated(node: ast.expr | None) -> str:
    """The dotted name in an annotation, which may be a text or optional; "" where there is none."""
    match node:
        case ast.Constant(value=str(text)):
            return text if all(map(str.isidentifier, text.split("."))) else ""
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            base = _annotated(value)
            return f"{base}.{attr}" if base else ""
        case ast.Subscript(
            value=ast.Name(id="Optional") | ast.Attribute(attr="Optional"), slice=inner
        ):
            return _annotated(inner)
        case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Constant(value=None)):
            return _annotated(left)
        case _:
            return ""
