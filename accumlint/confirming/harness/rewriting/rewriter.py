"""Rewrites a user's source so that it runs on fakes, with unchanged line numbers.

Statements that cannot reach a gradient are dropped. Values enter names through the runtime (`Binding`, known to the
rewritten code as `__accumlint__`), which replaces models, loaders and data by fakes. A statement outside the windows
that fails binds its names to stubs.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterable

from accumlint.confirming.harness.fakes.name_words import DATA
from accumlint.confirming.harness.fakes.usual_settings import LOSS_LIKE
from accumlint.confirming.harness.rewriting import syntax_shapes as shapes
from accumlint.confirming.harness.rewriting.ast_nodes import (
    assigned,
    failed,
    later,
    listed,
    loaded,
    placed,
    runtime,
    tried,
)
from accumlint.confirming.harness.rewriting.expressions import Expressions
from accumlint.confirming.harness.rewriting.slicing import (
    Guide,
    Pattern,
    Slice,
    drop_imports,
    flat,
    pattern,
    with_inner,
)
from accumlint.confirming.harness.rewriting.written_windows import Sized, size_of

_DECORATORS = {
    "staticmethod", "classmethod", "property", "contextmanager", "contextlib.contextmanager", "dataclass",
    "dataclasses.dataclass", "functools.wraps", "torch.enable_grad", "torch.no_grad", "cached_property",
}  # fmt: skip
# Decorators that call a function with arguments from the command line.
_INJECTING = re.compile(r"hydra|draccus|pyrallis|click|typer|fire|tyro|wrap$|command|(^|\.)main$")


def rewritten(text: str, filename: str, guide: Guide) -> ast.Module:
    """The rewritten module of a source.

    Raises:
        SyntaxError: where `text` is not valid Python.
    """
    tree = ast.parse(text, filename)
    left_open = shapes.open_losses(tree)
    slicer = Slice(tree, text, guide)
    tree.body = slicer.block(tree.body) or [ast.Pass()]
    for method in left_open:
        arguments = [loaded(argument.arg) for argument in method.args.args]
        loss = runtime("open_loss", method.name, *arguments)
        method.body = [placed(ast.Return(loss), method)]
    drop_imports(tree)
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    clippers: dict[tuple[int, int], ast.Call] = {}
    # Calls start where the called object does: the outermost comes first.
    for call in calls:
        if (place := slicer.place(call)) in guide.clippers:
            clippers.setdefault(place, call)
    size = size_of(tree)
    tree = _Rewriter(guide, slicer.eventful, set(clippers.values()), calls, tree.body).visit(tree)
    if size:
        tree = Sized(size).visit(tree)
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    # Nothing needs the docstring, which alone could precede a future import.
    tree.body.insert(0, future)
    return ast.fix_missing_locations(tree)


class _Rewriter(Expressions):
    """Routes assignments, loops and guards through the runtime."""

    def __init__(
        self,
        guide: Guide,
        eventful: set[ast.stmt],
        clippers: set[ast.Call],
        calls: list[ast.Call],
        body: list[ast.stmt],
    ) -> None:
        super().__init__(guide, clippers)
        self.classes = {s.name for s in body if isinstance(s, ast.ClassDef)}
        self.called = {n.func.id for n in calls if isinstance(n.func, ast.Name)}
        # Functions that are given the settings of a file, and nothing else.
        self.configured = {
            n.func.id
            for n in calls
            if isinstance(n.func, ast.Name)
            and not n.args
            and any(k.arg is None for k in n.keywords)
        }
        self.eventful = eventful
        self.temporary = 0
        self.loose = shapes.loose(body, ())
        # Whether the current function trains.
        self.trains = False

    def _is_of_a_class(self, annotation: ast.expr | None) -> bool:
        """Whether an annotation names a class of this file."""
        words = re.findall(r"\w+", ast.unparse(annotation)) if annotation else []
        return not self.classes.isdisjoint(words)

    # Statements

    def visit_FunctionDef(self, node: ast.FunctionDef) -> list[ast.stmt]:
        injected = any(_INJECTING.search(shapes.decorator(d)) for d in node.decorator_list)
        if injected or node.name in self.configured:
            shapes.fill_defaults(node)
        node.decorator_list = [
            d for d in node.decorator_list if shapes.decorator(d) in _DECORATORS or shapes.sets(d)
        ]
        node.returns = None
        everything = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for argument in (*everything, node.args.vararg, node.args.kwarg):
            if argument is not None and not self._is_of_a_class(argument.annotation):
                argument.annotation = None
        bindings = self.provided_bindings(node)
        outside = self.loose, self.trains
        self.trains = any(s in self.eventful for each in node.body for s in with_inner(each))
        self.loose = shapes.loose(
            node.body, [a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)]
        )
        self.generic_visit(node)
        self.loose, self.trains = outside
        node.body = [*bindings, *node.body]
        positional = [*node.args.posonlyargs, *node.args.args]
        last = positional[len(positional) - len(node.args.defaults) :]
        node.args.defaults = [
            self.by_default(a.arg, d) for a, d in zip(last, node.args.defaults, strict=True)
        ]
        node.args.kw_defaults = [
            d and self.by_default(a.arg, d)
            for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        ]
        # A transformer may return several statements.
        return [node, placed(ast.Expr(runtime("made", node.name, loaded(node.name))), node)]

    def provided_bindings(self, node: ast.FunctionDef) -> list[ast.stmt]:
        """Assignments of provided objects to names that a function binds, at its beginning."""
        if not self.guide.provided:
            return []
        bound = {name for statement in node.body for name in shapes.bound_inside(statement)}
        shared = {n for s in node.body if isinstance(s, ast.Global | ast.Nonlocal) for n in s.names}
        wanted = sorted(self.guide.provided & ((bound - shared) | self.fed(node)))
        return [placed(assigned(name, runtime("take", name)), node) for name in wanted]

    def fed(self, node: ast.FunctionDef) -> set[str]:
        """The parameters that the loops of a training function iterate over."""
        loops = (n for n in ast.walk(node) if isinstance(n, ast.For) and n in self.eventful)
        read = {n.id for loop in loops for n in ast.walk(loop.iter) if isinstance(n, ast.Name)}
        return read & {a.arg for a in (*node.args.args, *node.args.kwonlyargs)}

    def visit_Delete(self, node: ast.Delete) -> ast.AST:
        node.targets = [t for t in node.targets if ast.unparse(t) not in self.guide.provided]
        return self.careful(node, ()) if node.targets else placed(ast.Pass(), node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.decorator_list = [d for d in node.decorator_list if shapes.decorator(d) in _DECORATORS]
        self.generic_visit(node)
        # Methods need no registration.
        node.body = [s for s in node.body if not shapes.is_made(s)]
        node.decorator_list.insert(0, runtime("defined", at=node).func)
        return self.careful(node, (node.name,))

    def visit_Import(self, node: ast.Import) -> ast.AST:
        bound = tuple(a.asname or a.name.split(".")[0] for a in node.names)
        return self.careful(node, bound)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        return self.careful(node, tuple(a.asname or a.name for a in node.names if a.name != "*"))

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if all(ast.unparse(target).startswith("torch.") for target in node.targets):
            # Global switches of torch do not change gradients.
            return placed(ast.Pass(), node)
        bound = pattern(node.targets[0])
        whole = shapes.moved(node.value)
        value = self.visit(node.value)
        if whole is not None:
            value = runtime("moved", self.visit(whole), later(value), at=node)
        chained = len(node.targets) > 1
        if not chained and isinstance(bound, str) and self.is_alias(node.value, bound):
            node.value = value
        else:
            node.value = self.entering(bound, value, node.value)
        for target in node.targets:
            self.visit(target)
        return self.careful(node, bound)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return node
        bound = pattern(node.target)
        node.value = self.entering(bound, self.visit(node.value), node.value)
        return self.careful(node, bound)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        done = self.careful(node, ())
        if not isinstance(node.target, ast.Subscript) or not isinstance(node.op, ast.Add):
            return done
        # A total in a table may begin in a statement that is not run.
        begins: list[ast.stmt] = [
            ast.Expr(runtime("unbegun", failed())),
            ast.Assign([node.target], node.value),
        ]
        begun = placed(tried([node], begins), node)
        if isinstance(done, ast.Try):
            done.body = [begun]
            return done
        return begun

    def visit_Expr(self, node: ast.Expr) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        done = self.careful(node, ())
        if node.lineno not in self.guide.averages:
            return done
        return [placed(ast.Expr(runtime("averaged")), node), done]

    def visit_With(self, node: ast.With) -> ast.AST:
        quiet = self.quiet(node)
        casting = [item for item in node.items if shapes.is_autocast(item.context_expr)]
        self.generic_visit(node)
        for item in casting:
            # Autocast settings may be unknown, and do not affect the gradient.
            made = later(item.context_expr)
            item.context_expr = runtime("casting", made, at=item.context_expr)
        return self.careful_block(node) if quiet else node

    def visit_For(self, node: ast.For) -> ast.AST:
        quiet = self.quiet(node)
        text = ast.unparse(node.iter)
        bound = pattern(node.target)
        trains = node in self.eventful
        node.iter = runtime("iterate", self.visit(node.iter), text, bound, trains, at=node)
        self.temporary += 1
        item = f"__item_{self.temporary}"
        assign = ast.Assign([node.target], runtime("item", bound, loaded(item)))
        node.target = placed(ast.Name(item, ast.Store()), node)
        body = [s for inner in node.body for s in listed(self.visit(inner))]
        node.body = [placed(assign, node), *body]
        node.orelse = [s for inner in node.orelse for s in listed(self.visit(inner))]
        return self.careful_block(node) if quiet else node

    def visit_While(self, node: ast.While) -> ast.AST:
        quiet = self.quiet(node)
        known = [] if quiet else shapes.bounds(node.test)
        node.test = self.testing(node.test)
        self.generic_visit(node)
        if known:
            # The number of iterations is often an unknown setting.
            node.test = runtime("lasts", node.test, *known, at=node)
        # A loop that never fetches must end.
        if quiet:
            node.test = runtime("idle", node.test, node.lineno, at=node)
            return self.careful_block(node)
        node.test = runtime("turn", node.test, at=node)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        unpacks = isinstance(node.target, ast.Tuple | ast.List)
        bound = pattern(node.target)
        self.generic_visit(node)
        if unpacks:
            node.iter = runtime("items", bound, node.iter, at=node.iter)
        return node

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        quiet = self.quiet(node)
        text = ast.unparse(node.test)
        refusing = shapes.refused_side(node, quiet and self.trains)
        sometimes = shapes.bound_in_arms(node) if quiet else []
        if quiet:
            bound = {n for n in shapes.bound_inside(node) if not DATA.search(n.lower())}
            sometimes += sorted(self.loose & bound - {*sometimes})
        words = None if quiet else shapes.other_words(node)
        sometimes += [name for name in shapes.only_schedules(node) if name not in sometimes]
        if words:
            node.test = self.first_word(node.test, words)
        else:
            node.test = self.testing(node.test)
        self.generic_visit(node)
        if refusing is not None:
            node.test = runtime("allowed", later(node.test), refusing, at=node.test)
        made = [self.careful_block(node)] if quiet else [node]
        if self.guide.lenient and not quiet:
            made = self.careful_test(node, text)
        # Fakes for names that no branch has bound.
        otherwise = self.eithers(sometimes, lambda: ast.Constant(None))
        return [*made, *(placed(fake, node) for fake in otherwise)]

    def first_word(self, test: ast.expr, others: list[ast.expr]) -> ast.expr:
        """The first test of a chain of comparisons with words and no else: one of them must hold."""
        compared = copy.deepcopy(test.left if isinstance(test, ast.Compare) else test)
        copies = [copy.deepcopy(other) for other in others]
        rest = ast.BoolOp(ast.Or(), copies) if len(copies) > 1 else copies[0]
        lambdas = (later(compared), later(test), later(rest))
        return runtime("one_of", ast.unparse(compared), *lambdas, at=test)

    def visit_Return(self, node: ast.Return) -> ast.AST:
        is_plain = not any(LOSS_LIKE.search(name.lower()) for name in shapes.mentioned(node))
        self.generic_visit(node)
        may_fail = self.guide.lenient or (is_plain and node not in self.eventful)
        if not may_fail or node.value is None:
            return node
        fallback = ast.Return(runtime("missing", "returned", failed()))
        return placed(tried([node], [fallback]), node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        node.test = self.testing(node.test)
        self.generic_visit(node)
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return placed(ast.Pass(), node)

    def quiet(self, node: ast.stmt) -> bool:
        """True for a statement without gradient events and losses inside."""
        if any(inner in self.eventful for inner in with_inner(node)):
            return False
        return not any(LOSS_LIKE.search(name.lower()) for name in shapes.bound_inside(node))

    def eithers(self, names_: Iterable[str], failure: Callable[[], ast.expr]) -> list[ast.stmt]:
        """Fakes for names that may be unbound; `failure` is the exception that prevented their binding."""
        return [assigned(n, runtime("either", n, later(loaded(n)), failure())) for n in names_]

    def careful_block(self, node: ast.stmt) -> ast.stmt:
        """A block whose failure ends only the block; its names get fakes."""
        mends: list[ast.stmt] = [ast.Expr(runtime("missing", (), failed()))]
        mends += self.eithers(dict.fromkeys(shapes.bound_inside(node)), failed)
        return placed(tried([node], mends), node)

    def careful_test(self, node: ast.If, text: str) -> list[ast.stmt]:
        """A guard that is decided like an unknown flag where it raises."""
        self.temporary += 1
        name = f"__test_{self.temporary}"
        tested = assigned(name, ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), node.test)))
        mend = assigned(name, runtime("unknown", text, failed()))
        node.test = loaded(name)
        return [placed(tried([tested], [mend]), node), placed(node, node)]

    def careful(self, node: ast.stmt, bound: Pattern | tuple[str, ...]) -> ast.stmt:
        """A statement whose failure binds its names to stubs, unless it has gradient events."""
        eventful = node in self.eventful and (not self.guide.lenient or shapes.acts(node))
        eventful = eventful and not shapes.writes(node)
        if eventful and not (isinstance(node, ast.Assign) and self.makes(bound)):
            return node
        made = runtime("unmade" if eventful else "missing", bound, failed())
        target: ast.expr | None = None
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            # Evaluating a subscript again might raise again.
            target = None if isinstance(target, ast.Subscript) else target
        elif isinstance(node, ast.Import | ast.ImportFrom | ast.ClassDef):
            called = tuple(n for n in flat(bound) if n in self.called)
            made = runtime("absent", bound, failed(), called)
            if bound:
                target = ast.Tuple([ast.Name(n, ast.Store()) for n in flat(bound)], ast.Store())
        mend = ast.Assign([target], made) if target else ast.Expr(made)
        return placed(tried([node], [mend]), node)
