"""Predicates on syntax of a user's source, and rewrites of guards and backwards."""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from accumlint.confirming.harness.rewriting.ast_nodes import RUNTIME, runtime
from accumlint.confirming.harness.rewriting.slicing import SCOPES, Pattern, direct_nodes, with_inner
from accumlint.reading import names


def acts(node: ast.stmt) -> bool:
    """True for a statement that steps or clears, which must not be skipped."""
    match node:
        case ast.Expr(ast.Call(func=ast.Attribute(attr="zero_grad"))):
            return True
        case ast.Expr(ast.Call(func=ast.Attribute(attr="step"), args=[], keywords=[])):
            return True
        case _:
            return False


_GIVES_A_LOSS = re.compile(r"(^|_)(loss(es)?|objectives?)($|_of|_for|_func?tion)")


def open_losses(tree: ast.Module) -> set[ast.FunctionDef]:
    """Abstract methods that return a loss."""
    return {
        method
        for cls in ast.walk(tree)
        if isinstance(cls, ast.ClassDef)
        for method in cls.body
        if isinstance(method, ast.FunctionDef)
        and method.args.args
        and _GIVES_A_LOSS.search(method.name)
        and all(map(_is_empty, method.body))
    }


def _is_empty(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Expr(ast.Constant()) | ast.Return(None | ast.Constant()):
            return True
        case ast.Raise(exc=ast.Name(id=name) | ast.Call(func=ast.Name(id=name))):
            return name == "NotImplementedError"
        case _:
            return False


# Modules that only write output.
_WRITERS = {"yaml", "json", "pickle", "pprint", "csv", "logging", "logger", "log"}


def writes(node: ast.stmt) -> bool:
    """True for a statement that only writes output."""
    match node:
        case ast.Expr(ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name in _WRITERS
        case _:
            return False


def root(node: ast.Call) -> None:
    """Routes the root of a backward through the runtime, which may replace it."""
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr="backward") as method, args=[]):
            method.value = runtime("root", owner, at=node)
        case ast.Call(
            func=ast.Attribute(attr="backward" | "scale" | "manual_backward"), args=[root, *_]
        ):
            node.args[0] = runtime("root", root, at=node)
        case _:
            pass


def is_autocast(context: ast.expr) -> bool:
    match context:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name == "autocast"
        case _:
            return False


def bounds(test: ast.expr) -> list[ast.expr]:
    """The counter and the bound of a loop test that compares two plain names."""
    match test:
        case ast.Compare(left=left, ops=[ast.Lt() | ast.LtE()], comparators=[right]) if all(
            isinstance(part, ast.Name | ast.Attribute | ast.Constant)
            for side in (left, right)
            for part in ast.walk(side)
            if isinstance(part, ast.expr)
        ):
            return [copy.deepcopy(left), copy.deepcopy(right)]
        case _:
            return []


def refused_side(node: ast.If, trains: bool) -> bool | None:
    """The branch of a guard that only raises (or, in a function that `trains`, returns nothing); None for neither."""
    for side, body in ((True, node.body), (False, node.orelse)):
        match body:
            case [*_, ast.Raise()]:
                return side
            case [*_, ast.Return(None | ast.Constant(None))] if trains:
                return side
            case _:
                pass
    return None


def is_of_words(node: ast.Compare) -> bool:
    """True for a comparison with words: `x == "adam"`, `x in ("sgd", "adam")`."""
    match node.comparators:
        case [ast.Constant(value=str())]:
            return True
        case [ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items)]:
            return all(isinstance(i, ast.Constant) and isinstance(i.value, str) for i in items)
        case _:
            return False


def count(node: ast.Compare) -> None:
    """Routes the counter in a window's guard, as in `(step + 1) % accumulation_steps == 0`, through the runtime."""
    match node:
        case ast.Compare(left=ast.BinOp(left=count, op=ast.Mod(), right=steps), comparators=[end]):
            known = isinstance(steps, ast.Constant)
            if not known and not names.is_steps(ast.unparse(steps).rpartition(".")[2]):
                return
        case _:
            return
    at_zero = isinstance(end, ast.Constant) and end.value == 0
    match count:
        case ast.BinOp(
            left=ast.Name() | ast.Attribute(), op=ast.Add(), right=ast.Constant(value=1)
        ):
            count.left = runtime("reached", count.left, 1, at=node)
        case ast.Name() | ast.Attribute():
            # The pattern above matched a remainder on the left; pyright does not infer that.
            node.left.left = runtime("reached", count, 0 if at_zero else 1, at=node)  # pyright: ignore[reportAttributeAccessIssue]
        case _:
            pass


def bound_inside(node: ast.stmt) -> Iterator[str]:
    """The names that a block binds in its scope."""
    for statement in with_inner(node):
        if isinstance(statement, SCOPES):
            continue
        for inner in direct_nodes(statement):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                if not inner.id.startswith("__"):
                    yield inner.id


def loose(body: list[ast.stmt], kept: Collection[str]) -> set[str]:
    """The names of a scope, except `kept`, that only branches without an else bind, and that are read outside of these
    branches: unknown settings decide whether they are bound."""
    stored: dict[str, list[set[str]]] = {}
    read: dict[str, list[set[str]]] = {}
    bound = set(kept)
    for node, choices, open_ends in _with_choices(body, frozenset(), frozenset()):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                stored.setdefault(name, []).append(set(open_ends))
            case ast.Name(id=name):
                read.setdefault(name, []).append(set(choices))
            case ast.alias(name=name, asname=other):
                bound.add(other or name.partition(".")[0])
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                bound.add(name)
            case ast.Global(names=found) | ast.Nonlocal(names=found):
                bound.update(found)
            case ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case _:
                pass
    return {
        name
        for name, ends in stored.items()
        if name not in bound
        and all(ends)
        and any(all(end.isdisjoint(tests) for end in ends) for tests in read.get(name, ()))
    }


def _with_choices(
    body: Iterable[ast.AST], choices: frozenset[str], open_ends: frozenset[str]
) -> Iterator[tuple[ast.AST, frozenset[str], frozenset[str]]]:
    """The nodes of a scope, each with the tests of its branches, and of those of them without an else."""
    for node in body:
        yield node, choices, open_ends
        if isinstance(node, (*SCOPES, ast.Lambda)):
            continue
        if isinstance(node, ast.If):
            text = ast.unparse(node.test)
            ended = open_ends if node.orelse else open_ends | {text}
            yield from _with_choices([node.test], choices, open_ends)
            yield from _with_choices(node.body, choices | {text}, ended)
            yield from _with_choices(node.orelse, choices, open_ends)
        else:
            yield from _with_choices(ast.iter_child_nodes(node), choices, open_ends)


def other_words(node: ast.If) -> list[ast.expr] | None:
    """The further tests of a chain of comparisons with words and no else; None for other branches."""
    tests: list[ast.expr] = []
    rest: list[ast.stmt] = [node]
    while len(rest) == 1 and isinstance(one := rest[0], ast.If):
        tests.append(one.test)
        rest = one.orelse
    compared = {
        ast.unparse(t.left) if isinstance(t, ast.Compare) and is_of_words(t) else "" for t in tests
    }
    signs = (op for t in tests if isinstance(t, ast.Compare) for op in t.ops)
    same = len(compared) == 1 and all(compared)
    if rest or len(tests) < 2 or not same or not all(isinstance(s, ast.Eq | ast.In) for s in signs):
        return None
    return tests[1:]


def only_schedules(node: ast.If) -> list[str]:
    """Schedulers that a branch without an else creates: a loop that steps an unbound one would not run."""
    if node.orelse:
        return []
    return sorted({n for n in bound_inside(node) if names.role_of(n) == "scheduler"})


def bound_in_arms(node: ast.If) -> list[str]:
    """The names that several but not all branches bind: unknown settings decide which branch runs."""
    arms: list[list[ast.stmt]] = [node.body]
    rest = node.orelse
    while len(rest) == 1 and isinstance(rest[0], ast.If):
        arms.append(rest[0].body)
        rest = rest[0].orelse
    arms.append(rest)
    bound = [{name for statement in arm for name in bound_inside(statement)} for arm in arms]
    often = Counter(name for found in bound for name in found)
    return sorted(name for name, times in often.items() if 1 < times < len(arms))


def mentioned(node: ast.expr | ast.stmt) -> Iterator[str]:
    """The dotted names that an expression reads."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name | ast.Attribute) and isinstance(inner.ctx, ast.Load):
            yield ast.unparse(inner)


# Tensor methods that change the device or layout and keep the values.
_PLACING = {"to", "cuda", "cpu", "npu", "xpu", "mps", "pin_memory", "contiguous", "clone"}


def moved(value: ast.expr) -> ast.expr | None:
    """The micro-batch whose parts all move to a device, as in `tuple(t.to(device) for t in batch)`; None for others."""
    match value:
        case ast.Call(func=ast.Name(id="tuple" | "list"), args=[made], keywords=[]):
            value = made
        case _:
            pass
    match value:
        case ast.GeneratorExp(part, [each]) | ast.ListComp(part, [each]):
            if each.ifs or not isinstance(each.target, ast.Name):
                return None
            name, whole = each.target.id, each.iter
        case ast.DictComp(
            key=ast.Name(key),
            value=part,
            generators=[
                ast.comprehension(
                    ast.Tuple([ast.Name(first), ast.Name(name)]),
                    ast.Call(func=ast.Attribute(value=whole, attr="items")),
                    [],
                )
            ],
        ) if key == first:
            pass
        case _:
            return None
    for branch in [part.body, part.orelse] if isinstance(part, ast.IfExp) else [part]:
        match branch:
            case ast.Call(func=ast.Attribute(value=ast.Name(item), attr=method)):
                if item == name and method in _PLACING:
                    return copy.deepcopy(whole)
            case _:
                pass
    return None


def is_quotient(bound: Pattern, value: ast.expr) -> bool:
    """True for accumulation steps that are the result of a division."""
    if not isinstance(bound, str) or not names.is_steps(bound.rpartition(".")[2]):
        return False
    return any(isinstance(node, ast.Div | ast.FloorDiv) for node in ast.walk(value))


def is_share_of_data(value: ast.expr) -> bool:
    """True for a quotient of the data's length, as in `len(dataset) // batch_size`."""
    match value:
        case ast.BinOp(ast.Call(func=ast.Name(id="len")), ast.FloorDiv()):
            return True
        case _:
            return False


def is_start(first: ast.expr) -> bool:
    """True for the start of a range that is a setting or comes from a checkpoint."""
    named = isinstance(first, ast.Name) and names.is_start(first.id)
    return named or isinstance(first, ast.Attribute)


def is_made(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(ast.Call(func=ast.Attribute(value=ast.Name(id=owner)))):
            return owner == RUNTIME
        case _:
            return False


def decorator(node: ast.expr) -> str:
    return ast.unparse(node.func if isinstance(node, ast.Call) else node)


def fill_defaults(function: ast.FunctionDef) -> None:
    """Adds a default for every parameter, since a library would pass all of them."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    missing = positional[: len(positional) - len(arguments.defaults)]
    made = [runtime("known", a.arg, at=function) for a in missing]
    arguments.defaults = [*made, *arguments.defaults]
    arguments.kw_defaults = [
        default or runtime("known", a.arg, at=function)
        for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]


def sets(node: ast.expr) -> bool:
    """`@x.setter`."""
    return isinstance(node, ast.Attribute) and node.attr in ("setter", "getter")


def normal(text: str) -> str:
    """A canonical spelling of an expression."""
    try:
        return ast.unparse(ast.parse(text, mode="eval"))
    except (SyntaxError, ValueError):
        return text
