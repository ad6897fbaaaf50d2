"""Routes literal window sizes, as in `(step + 1) % 4`, through the runtime, which reduces them to 1 in some passes."""

from __future__ import annotations

import ast

from accumlint.confirming.harness.rewriting.ast_nodes import placed, runtime

_MOST = 16


def size_of(tree: ast.AST) -> int:
    """The literal size of a source's windows; 0 for none, or an ambiguous one.

    It is a modulus (`% 4`), divides losses (`/ 4`) and bounds windows (`min(4, left)`). No other literal is that
    number, its inverse or its square.
    """
    nodes = list(ast.walk(tree))
    found = {number.value for node in nodes if (number := _right(node, ast.Mod))}
    size = found.pop() if len(found) == 1 else 0
    if type(size) is not int or not 2 <= size <= _MOST:
        return 0
    places = (n for node in nodes for n in (_right(node, ast.Mod, ast.Div), _least(node)))
    known = {id(n) for n in places if _is(n, size)}
    others = (n.value for n in nodes if isinstance(n, ast.Constant) and id(n) not in known)
    return 0 if any(n in (size, 1 / size, size**2) for n in others) else size


def _right(node: ast.AST | None, *operators: type[ast.operator]) -> ast.Constant | None:
    """The literal to the right of one of some operators."""
    match node:
        case ast.BinOp(op=op, right=ast.Constant() as number) if isinstance(op, operators):
            return number
        case ast.AugAssign(op=op, value=ast.Constant() as number) if isinstance(op, operators):
            return number
        case _:
            return None


def _least(node: ast.AST) -> ast.Constant | None:
    """The literal in a `min` call."""
    match node:
        case ast.Call(func=ast.Name("min"), args=[ast.Constant() as number, _]):
            return number
        case _:
            return None


class Sized(ast.NodeTransformer):
    """Routes the window size through the runtime."""

    def __init__(self, size: int) -> None:
        self.size = size

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Mod | ast.Div):
            node.right = self._sent(node.right)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        node.value = self._sent(node.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if number := _least(node):
            node.args[0] = self._sent(number)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        # The last micro-batch of a window, as in `step % 4 == 3`.
        last = node.comparators[0]
        if _is(_right(node.left, ast.Mod), self.size) and _is(last, self.size - 1):
            size = placed(ast.Constant(self.size), last)
            less = ast.BinOp(self._sent(size), ast.Sub(), ast.Constant(1))
            node.comparators[0] = placed(less, last)
        return self.generic_visit(node)

    def _sent(self, number: ast.expr) -> ast.expr:
        return runtime("written", number, at=number) if _is(number, self.size) else number


def _is(node: ast.expr | None, value: int) -> bool:
    return isinstance(node, ast.Constant) and node.value == value
