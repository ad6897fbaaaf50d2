"""Rewrites expressions of a user's source: calls, flags and settings go through the runtime."""

from __future__ import annotations

import ast
import copy

from accumlint.confirming.harness.fakes.stub import UNKNOWN
from accumlint.confirming.harness.fakes.usual_settings import setting
from accumlint.confirming.harness.rewriting import syntax_shapes as shapes
from accumlint.confirming.harness.rewriting.ast_nodes import later, placed, runtime
from accumlint.confirming.harness.rewriting.slicing import Guide, Pattern, flat, negated
from accumlint.reading import frameworks, names

# Numeric arguments of optimizers.
_RATES = {"lr", "weight_decay", "momentum", "eps"}


class Expressions(ast.NodeTransformer):
    """Rewrites expressions; `clippers` are calls that clip and are no torch functions."""

    def __init__(self, guide: Guide, clippers: set[ast.Call]) -> None:
        self.guide = guide
        self.clippers = clippers
        self.choices = {
            shapes.normal(text): choice for text, choice in guide.choices.items() if choice != "…"
        }
        for text, choice in guide.choices.items():
            other = negated(text)
            if other and choice in ("true", "false"):
                self.choices.setdefault(
                    shapes.normal(other), "false" if choice == "true" else "true"
                )

    def testing(self, test: ast.expr) -> ast.expr:
        """A test in which a bare name may be a decided flag."""
        match test:
            case ast.Name() if shapes.normal(test.id) in self.choices:
                return self.chosen(test)
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                test.operand = self.testing(inner)
            case ast.BoolOp(values=values):
                test.values = [self.testing(v) for v in values]
            case _:
                pass
        return test

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if node.attr == "__dict__" and isinstance(node.ctx, ast.Load):
            return runtime("settings", self.visit(node.value), at=node)
        return self.decided(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        decided = self.decided(node)
        match decided:
            case ast.Subscript(
                ast.Name() | ast.Dict() as table, ast.Name() | ast.Attribute() as key, ast.Load()
            ):
                return runtime("entry", table, key, at=node)
            case ast.Subscript(
                ast.Name() | ast.Attribute() as table, ast.Constant(str()) as key, ast.Load()
            ) if names.is_configuration(f"{ast.unparse(table)}."):
                text = f"{ast.unparse(table)}.{key.value}"
                return runtime("option", table, key, text, at=node)
            case _:
                return decided

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if shapes.normal(ast.unparse(node)) in self.choices:
            return self.decided(node)
        text = ast.unparse(node.left)
        shapes.count(node)
        self.generic_visit(node)
        if shapes.is_of_words(node):
            node.left = runtime("word", node.left, text, at=node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        text = ast.unparse(node.func)
        last = text.rpartition(".")[2]
        if node in self.clippers:
            self.clippers.remove(node)
            return runtime("clipping", text, later(self.visit(node)), at=node)
        if last in frameworks.LOADERS:
            return runtime("loader", text, at=node)
        if text == "range" and len(node.args) > 1 and shapes.is_start(node.args[0]):
            first, end = copy.deepcopy(node.args[:2])
            node.args[0] = runtime("start", self.visit(first), self.visit(end), at=node)
        if text == "vars" and len(node.args) == 1:
            return runtime("settings", self.visit(node.args[0]), at=node)
        if text.endswith("Plugin"):
            # The configuration of an absent framework.
            return placed(ast.Constant(None), node)
        if last in frameworks.WRAPPERS and node.args:
            # The wrapped model may be built in place.
            first = node.args[0]
            node.args[0] = self.entering("model", first, first)
        named = tuple(k.arg for k in node.keywords if k.arg)
        for keyword in node.keywords:
            if keyword.arg is None:
                keyword.value = runtime("without", keyword.value, named, at=node)
        if self.guide.lenient:
            shapes.root(node)
        if last == "Accelerator":
            node.args.insert(0, node.func)
            node.func = runtime("accelerator", at=node).func
        for keyword in node.keywords:
            if keyword.arg and (names.is_steps(keyword.arg) or keyword.arg in _RATES):
                keyword.value = self.entering(keyword.arg, keyword.value, keyword.value)
        return self.decided(node)

    def decided(self, node: ast.expr) -> ast.AST:
        context = getattr(node, "ctx", ast.Load())
        if isinstance(context, ast.Load) and self.choices:
            if shapes.normal(ast.unparse(node)) in self.choices:
                return self.chosen(node)
        return self.generic_visit(node)

    def chosen(self, node: ast.expr) -> ast.expr:
        choice = self.choices[shapes.normal(ast.unparse(node))]
        if choice in ("true", "false"):
            return placed(ast.Constant(choice == "true"), node)
        try:
            literal = ast.literal_eval(choice)
        except (ValueError, SyntaxError):
            literal = choice
        return placed(ast.Constant(literal), node)

    # Names

    def by_default(self, name: str, value: ast.expr) -> ast.expr:
        """The default of a parameter: a literal number of accumulation steps goes through the runtime."""
        is_number = isinstance(value, ast.Constant) and type(value.value) is int
        return self.entering(name, value, None) if is_number and self.is_steps(name) else value

    def is_steps(self, name: str) -> bool:
        """Whether a name means accumulation steps, by itself or by the guard of a step."""
        return names.is_steps(name.rpartition(".")[2]) or self.guide.roles.get(name) == "steps"

    def is_alias(self, value: ast.expr, bound: str) -> bool:
        return isinstance(value, ast.Constant) and not self.is_steps(bound)

    def entering(self, bound: Pattern, value: ast.expr, original: ast.expr | None) -> ast.expr:
        """The value that enters names, through the runtime, which may replace it by a fake."""
        # Generators and coroutines only work in place.
        if original is not None and any(
            isinstance(n, ast.Yield | ast.YieldFrom | ast.Await | ast.NamedExpr)
            for n in ast.walk(original)
        ):
            return value
        if original is not None and isinstance(bound, str) and bound in shapes.mentioned(original):
            if names.is_steps(bound.rpartition(".")[2]):
                # A counter, whatever its name.
                return value
        if original is None or not self.builds(bound, original):
            return runtime(_entry(bound, original), bound, value, at=value)
        mentions = tuple(sorted(set(shapes.mentioned(original))))
        return runtime("built", bound, mentions, later(value), at=value)

    def builds(self, bound: Pattern, value: ast.expr) -> bool:
        """True for a call that may build an object with a role: it is deferred until it is needed."""
        call = value
        while isinstance(call, ast.Attribute | ast.Subscript):
            call = call.value
        if not isinstance(call, ast.Call):
            return False
        if ast.unparse(call.func).rpartition(".")[2] in frameworks.WRAPPERS:
            return False
        return any(self.role_of(n) in ("model", "loader", "engine") for n in flat(bound))

    def makes(self, bound: Pattern) -> bool:
        """True where a statement only binds names of objects with roles, or of numbers."""
        made = [n for n in flat(bound) if n != "_"]
        return bool(made) and all(
            self.role_of(n) or setting(n.rpartition(".")[2].lower()) is not UNKNOWN for n in made
        )

    def role_of(self, name: str) -> str:
        """The role of a name on the path of the finding, or by itself; "" for none."""
        return self.guide.roles.get(name) or names.role_of(name.rpartition(".")[2])


def _entry(bound: Pattern, original: ast.expr | None) -> str:
    """The runtime function through which a value of this expression enters names."""
    if original is None:
        return "entering"
    if shapes.is_quotient(bound, original):
        return "quotient"
    return "share" if shapes.is_share_of_data(original) else "entering"
