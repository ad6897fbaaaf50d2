"""libcst's tree into a `Program`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence

import libcst as cst

from accumlint.reading import program as p

_BINARY: dict[type[cst.BaseBinaryOp], str] = {
    cst.Add: "+", cst.Subtract: "-", cst.Multiply: "*", cst.Divide: "/", cst.FloorDivide: "//",
    cst.Modulo: "%", cst.Power: "**", cst.MatrixMultiply: "@", cst.BitAnd: "&", cst.BitOr: "|",
    cst.BitXor: "^", cst.LeftShift: "<<", cst.RightShift: ">>",
}  # fmt: skip
_AUGMENTED: dict[type[cst.BaseAugOp], str] = {
    cst.AddAssign: "+", cst.SubtractAssign: "-", cst.MultiplyAssign: "*", cst.DivideAssign: "/",
    cst.FloorDivideAssign: "//", cst.ModuloAssign: "%", cst.PowerAssign: "**",
    cst.MatrixMultiplyAssign: "@", cst.BitAndAssign: "&", cst.BitOrAssign: "|",
    cst.BitXorAssign: "^", cst.LeftShiftAssign: "<<", cst.RightShiftAssign: ">>",
}  # fmt: skip
_COMPARED: dict[type[cst.BaseCompOp], str] = {
    cst.Equal: "==", cst.NotEqual: "!=", cst.LessThan: "<", cst.LessThanEqual: "<=",
    cst.GreaterThan: ">", cst.GreaterThanEqual: ">=", cst.Is: "is", cst.IsNot: "is not",
    cst.In: "in", cst.NotIn: "not in",
}  # fmt: skip
_UNARY: dict[type[cst.BaseUnaryOp], str] = {
    cst.Not: "not",
    cst.Minus: "-",
    cst.Plus: "+",
    cst.BitInvert: "~",
}


def lowered(module: cst.Module, source: p.Source) -> tuple[p.Stmt, ...]:
    """The statements of a module, or of a part of one, that stands in `source`."""
    return _Lowering(module, source).block(module.body)


class _Lowering:
    """Turns nodes into the program's; `owner` is the class whose body is being lowered."""

    def __init__(self, module: cst.Module, source: p.Source, owner: p.Class | None = None) -> None:
        self.module = module
        self.source = source
        self.owner = owner

    # Statements

    def block(
        self, statements: Sequence[cst.BaseStatement | cst.BaseSmallStatement]
    ) -> tuple[p.Stmt, ...]:
        found: list[p.Stmt] = []
        for statement in statements:
            if isinstance(statement, cst.SimpleStatementLine):
                for small in statement.body:
                    found.extend(self.small(small))
            elif isinstance(statement, cst.BaseSmallStatement):
                # On the line of its `if` or `for`, and perhaps not alone there.
                found.extend(self.small(statement))
            else:
                found.extend(self.statement(statement))
        return tuple(found)

    def suite(self, body: cst.BaseSuite) -> tuple[p.Stmt, ...]:
        return self.block(body.body)

    def small(self, node: cst.BaseSmallStatement) -> Iterable[p.Stmt]:
        match node:
            case cst.Expr(value=value):
                if not isinstance(value, cst.BaseString):
                    yield p.Do(node, self.expr(value))
            case cst.Assign(targets=targets, value=value):
                yield p.Assign(node, tuple(self.expr(t.target) for t in targets), self.expr(value))
            case cst.AnnAssign(target=target, value=value) if value is not None:
                yield p.Assign(node, (self.expr(target),), self.expr(value))
            case cst.AugAssign(target=target, operator=operator, value=value):
                op = _AUGMENTED[type(operator)]
                yield p.Augment(node, self.expr(target), op, self.expr(value))
            case cst.Return(value=value):
                yield p.Return(node, self.expr(value) if value is not None else None)
            case cst.Break():
                yield p.Jump(node, "break")
            case cst.Continue():
                yield p.Jump(node, "continue")
            case cst.Raise(exc=exc):
                yield p.Raise(node, p.dotted(self.expr(exc)) if exc is not None else "")
            case cst.Del(target=target):
                lowered_target = self.expr(target)
                items = (
                    lowered_target.items
                    if isinstance(lowered_target, p.Sequence)
                    else (lowered_target,)
                )
                yield p.Delete(node, items)
            case cst.Global(names=names):
                yield p.Scope(node, "global", tuple(n.name.value for n in names))
            case cst.Nonlocal(names=names):
                yield p.Scope(node, "nonlocal", tuple(n.name.value for n in names))
            case cst.Import(names=names):
                yield p.Import(node, tuple(_imported(alias) for alias in names))
            case cst.ImportFrom(names=names, module=module, relative=relative):
                origin = "." * len(relative) + (_path(module) if module is not None else "")
                if isinstance(names, cst.ImportStar):
                    # No name that a program can write, so that several of them stand side by side.
                    yield p.Import(node, ((f"*{origin}", origin),))
                    return
                yield p.Import(node, tuple(_imported_from(origin, alias) for alias in names))
            case _:
                return

    def statement(self, node: cst.BaseStatement | cst.BaseSmallStatement) -> Iterable[p.Stmt]:
        match node:
            case cst.If(test=test, body=body, orelse=orelse):
                yield p.If(node, self.expr(test), self.suite(body), self.orelse(orelse))
            case cst.For(target=target, iter=iterable, body=body, orelse=orelse):
                yield p.For(
                    node,
                    self.expr(target),
                    self.expr(iterable),
                    self.suite(body),
                    self.orelse(orelse),
                )
            case cst.While(test=test, body=body, orelse=orelse):
                yield p.While(node, self.expr(test), self.suite(body), self.orelse(orelse))
            case cst.With(items=items, body=body):
                entered = tuple(
                    (self.expr(i.item), self.expr(i.asname.name) if i.asname else None)
                    for i in items
                )
                yield p.With(node, entered, self.suite(body))
            case cst.Try() | cst.TryStar():
                yield self.tried(node)
            case cst.FunctionDef():
                yield self.function(node)
            case cst.ClassDef():
                yield self.class_(node)
            case cst.Match(subject=subject, cases=cases):
                yield from self.matched(node, self.expr(subject), cases)
            case _:
                return

    def orelse(self, node: cst.If | cst.Else | None) -> tuple[p.Stmt, ...]:
        if node is None:
            return ()
        return self.suite(node.body) if isinstance(node, cst.Else) else tuple(self.statement(node))

    def tried(self, node: cst.Try | cst.TryStar) -> p.Try:
        handlers = tuple(
            (
                p.dotted(self.expr(h.type)) if h.type is not None else "",
                h.name.name.value if h.name and isinstance(h.name.name, cst.Name) else "",
                self.suite(h.body),
            )
            for h in node.handlers
        )
        orelse = self.suite(node.orelse.body) if node.orelse else ()
        final = self.suite(node.finalbody.body) if node.finalbody else ()
        return p.Try(node, self.suite(node.body), handlers, orelse, final)

    def matched(
        self, node: cst.Match, subject: p.Expr, cases: Sequence[cst.MatchCase]
    ) -> Iterable[p.Stmt]:
        """`match` as a chain of comparisons; a pattern that is no value is an unknown test."""
        chain: tuple[p.Stmt, ...] = ()
        for case in reversed(cases):
            body = self.suite(case.body)
            match case.pattern:
                case cst.MatchValue(value=value):
                    test: p.Expr = p.Compare(case, subject, (("==", self.expr(value)),))
                case cst.MatchAs(pattern=None):
                    chain = body
                    continue
                case _:
                    test = p.Opaque(case)
            chain = (p.If(case, test, body, chain),)
        return chain

    def function(self, node: cst.FunctionDef) -> p.Function:
        return self.callable(
            node,
            node.name.value,
            node.params,
            tuple(p.dotted(self.expr(d.decorator)) for d in node.decorators),
            lambda: _Lowering(self.module, self.source).suite(node.body),
        )

    def callable(
        self,
        node: cst.CSTNode,
        name: str,
        params: cst.Parameters,
        decorators: tuple[str, ...],
        lower: Callable[[], tuple[p.Stmt, ...]],
    ) -> p.Function:
        owner = self.owner
        return p.Function(
            node,
            name,
            tuple(self.params(params)),
            decorators,
            owner.name if owner else "",
            owner.bases if owner else (),
            (lambda: owner.attributes) if owner else frozenset[str],
            self.source,
            lower,
        )

    def params(self, params: cst.Parameters) -> Iterable[p.Param]:
        for param in (*params.posonly_params, *params.params):
            yield self.param(param, "", False)
        if isinstance(params.star_arg, cst.Param):
            yield self.param(params.star_arg, "*", False)
        for param in params.kwonly_params:
            yield self.param(param, "", True)
        if params.star_kwarg is not None:
            yield self.param(params.star_kwarg, "**", False)

    def param(self, param: cst.Param, star: str, keyword_only: bool) -> p.Param:
        default = self.expr(param.default) if param.default is not None else None
        text = self.module.code_for_node(param.default) if param.default is not None else None
        return p.Param(param.name.value, default, star, keyword_only, text)

    def class_(self, node: cst.ClassDef) -> p.Class:
        bases = tuple(p.dotted(self.expr(b.value)) for b in node.bases)
        decorators = tuple(p.dotted(self.expr(d.decorator)) for d in node.decorators)
        found = p.Class(node, node.name.value, bases, decorators, self.source, lambda: ())
        found.lower = lambda: _Lowering(self.module, self.source, found).suite(node.body)
        return found

    # Expressions

    def expr(self, node: cst.BaseExpression | cst.BaseElement) -> p.Expr:
        match node:
            case cst.Name(value=value):
                return _CONSTANTS[value](node) if value in _CONSTANTS else p.Name(node, value)
            case cst.Attribute(value=value, attr=attr):
                return p.Attr(node, self.expr(value), attr.value)
            case cst.Call(func=func, args=args):
                return p.Call(node, self.expr(func), tuple(self.argument(a) for a in args))
            case cst.Integer(value=value) | cst.Float(value=value):
                return p.Const(node, _number(value))
            case cst.SimpleString() | cst.ConcatenatedString() | cst.FormattedString():
                return self.string(node)
            case cst.BinaryOperation(left=left, operator=operator, right=right):
                return p.Binary(node, _BINARY[type(operator)], self.expr(left), self.expr(right))
            case cst.UnaryOperation(operator=operator, expression=operand):
                return p.Unary(node, _UNARY[type(operator)], self.expr(operand))
            case cst.BooleanOperation(left=left, operator=operator, right=right):
                op = "and" if isinstance(operator, cst.And) else "or"
                return p.Bool(node, op, self.expr(left), self.expr(right))
            case cst.Comparison(left=left, comparisons=comparisons):
                rest = tuple(
                    (_COMPARED[type(c.operator)], self.expr(c.comparator)) for c in comparisons
                )
                return p.Compare(node, self.expr(left), rest)
            case cst.IfExp(test=test, body=body, orelse=orelse):
                return p.Choice(node, self.expr(test), self.expr(body), self.expr(orelse))
            case cst.Subscript(value=value, slice=elements):
                return p.Item(node, self.expr(value), self.index(node, elements))
            case cst.Tuple(elements=elements):
                return p.Sequence(node, "tuple", tuple(self.element(e) for e in elements))
            case cst.List(elements=elements):
                return p.Sequence(node, "list", tuple(self.element(e) for e in elements))
            case cst.Set(elements=elements):
                return p.Sequence(node, "set", tuple(self.element(e) for e in elements))
            case cst.Dict(elements=elements):
                return p.Table(node, tuple(self.entry(e) for e in elements))
            case cst.ListComp(elt=elt, for_in=for_in):
                return p.Comprehension(node, "list", self.expr(elt), self.clauses(for_in))
            case cst.SetComp(elt=elt, for_in=for_in):
                return p.Comprehension(node, "set", self.expr(elt), self.clauses(for_in))
            case cst.GeneratorExp(elt=elt, for_in=for_in):
                return p.Comprehension(node, "generator", self.expr(elt), self.clauses(for_in))
            case cst.DictComp(key=key, value=value, for_in=for_in):
                pair = p.Sequence(node, "tuple", (self.expr(key), self.expr(value)))
                return p.Comprehension(node, "dict", pair, self.clauses(for_in))
            case cst.Lambda(params=params, body=body):
                function = self.callable(
                    node, "<lambda>", params, (), lambda: (p.Return(body, self.expr(body)),)
                )
                return p.Lambda(node, function)
            case cst.Yield(value=value):
                if isinstance(value, cst.From):
                    return p.Yield(node, self.expr(value.item), True)
                return p.Yield(node, self.expr(value) if value is not None else None, False)
            case cst.Await(expression=expression):
                return self.expr(expression)
            case cst.NamedExpr(target=target, value=value):
                return p.Walrus(node, self.expr(target), self.expr(value))
            case cst.Element(value=value):
                return self.expr(value)
            case cst.StarredElement(value=value):
                return p.Star(node, self.expr(value))
            case cst.Ellipsis():
                # In an index it takes all of each dimension that the others leave.
                return p.Slice(node, None, None, None)
            case _:
                return p.Opaque(node)

    def argument(self, node: cst.Arg) -> p.Argument:
        keyword = node.keyword.value if node.keyword is not None else ""
        return p.Argument(self.expr(node.value), keyword, node.star)

    def element(self, node: cst.BaseElement) -> p.Expr:
        return self.expr(node)

    def entry(self, node: cst.BaseDictElement) -> tuple[p.Expr | None, p.Expr]:
        if isinstance(node, cst.DictElement):
            return self.expr(node.key), self.expr(node.value)
        return None, self.expr(node.value)

    def index(self, node: cst.CSTNode, elements: Sequence[cst.SubscriptElement]) -> p.Expr:
        found: list[p.Expr] = []
        for element in elements:
            match element.slice:
                case cst.Index(value=value):
                    found.append(self.expr(value))
                case cst.Slice() as part:
                    lower, upper, step = (
                        self.expr(bound) if bound is not None else None
                        for bound in (part.lower, part.upper, part.step)
                    )
                    found.append(p.Slice(part, lower, upper, step))
                case part:
                    found.append(p.Opaque(part))
        return found[0] if len(found) == 1 else p.Sequence(node, "tuple", tuple(found))

    def clauses(self, node: cst.CompFor) -> tuple[tuple[p.Expr, p.Expr, tuple[p.Expr, ...]], ...]:
        clause = (
            self.expr(node.target),
            self.expr(node.iter),
            tuple(self.expr(i.test) for i in node.ifs),
        )
        inner = self.clauses(node.inner_for_in) if node.inner_for_in is not None else ()
        return (clause, *inner)

    def string(
        self, node: cst.SimpleString | cst.ConcatenatedString | cst.FormattedString
    ) -> p.Expr:
        match node:
            case cst.SimpleString():
                value = node.evaluated_value
                return p.Const(node, value)
            case cst.FormattedString(parts=parts):
                read = (part for part in parts if isinstance(part, cst.FormattedStringExpression))
                return p.Text(node, tuple(self.expr(part.expression) for part in read))
            case cst.ConcatenatedString(left=left, right=right):
                sides = (self.expr(left), self.expr(right))
                match sides:
                    # The node's own `evaluated_value` would evaluate all that is below once more.
                    case p.Const(value=str() as one), p.Const(value=str() as other):
                        return p.Const(node, one + other)
                    case p.Const(value=bytes() as one), p.Const(value=bytes() as other):
                        return p.Const(node, one + other)
                    case _:
                        return p.Text(node, sides)


def _constant(value: bool | None) -> Callable[[cst.CSTNode], p.Const]:
    return lambda node: p.Const(node, value)


_CONSTANTS: dict[str, Callable[[cst.CSTNode], p.Const]] = {
    "True": _constant(True),
    "False": _constant(False),
    "None": _constant(None),
}


def _number(text: str) -> int | float:
    # A literal such as 0777 of Python 2 is refused by libcst itself, so this cannot fail on what it parsed.
    value = ast.literal_eval(text)
    return value if isinstance(value, int | float) else 0


def _path(node: cst.BaseExpression) -> str:
    match node:
        case cst.Name(value=value):
            return value
        case cst.Attribute(value=value, attr=attr):
            return f"{_path(value)}.{attr.value}"
        case _:
            return ""


def _imported(alias: cst.ImportAlias) -> tuple[str, str]:
    path = _path(alias.name)
    if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
        return alias.asname.name.value, path
    top = path.split(".")[0]
    return top, top


def _imported_from(origin: str, alias: cst.ImportAlias) -> tuple[str, str]:
    name = _path(alias.name)
    bound = (
        alias.asname.name.value
        if alias.asname is not None and isinstance(alias.asname.name, cst.Name)
        else name
    )
    return bound, origin + name if origin.endswith(".") else f"{origin}.{name}"
