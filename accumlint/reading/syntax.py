"""A source file with Python's own syntax tree, and the places of the tree's nodes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import field
from functools import cached_property

from accumlint.common.frozen import frozen
from accumlint.common.place import Place
from accumlint.files import nesting
from accumlint.files import source as text


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
        except text.TooMuch:
            raise
        except text.UnreadableSource:
            from accumlint.reading import concrete_syntax

            # The code may be for a newer Python than the one that runs here.
            too_long = nesting.too_long(self.text, nesting.TOKENS_OF_LIBCST)
            older = None if too_long else concrete_syntax.older(self.text)
            if older is None:
                raise
            return text.parsed(older)

    @cached_property
    def identifiers(self) -> frozenset[str]:
        """Every name, attribute, keyword, parameter and imported path of the code, and texts of one word."""
        return frozenset(found for node in self._nodes for found in _identifiers(node))

    @cached_property
    def held_to_one(self) -> frozenset[str]:
        """The names that the code asserts to be 1 (`assert args.accumulation_steps == 1`), whatever it is asked for."""
        if "assert" not in self.text:
            return frozenset()
        # What is asserted under a condition holds on one side only.
        always = (node for node in self._nodes if not isinstance(node, ast.If))
        return frozenset(
            name for node in always for name in map(_held_to_one, ast.iter_child_nodes(node))
        )

    @cached_property
    def parted(self) -> frozenset[str]:
        """What the code takes a remainder of (`len(samples) % steps`), as written."""
        ratios = (n for n in self._nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod))
        return frozenset(
            ast.unparse(n.left) for n in ratios if not isinstance(n.left, ast.Constant)
        )

    @cached_property
    def _nodes(self) -> frozenset[ast.AST]:
        return frozenset(text.nodes(self.tree))

    def holds(self, node: ast.AST) -> bool:
        """True for a node of this file's tree."""
        return node in self._nodes

    def place(self, node: ast.AST) -> Place:
        """Where a node of this file's tree stands; all of it for a node without a place."""
        if not isinstance(node, ast.expr | ast.stmt | ast.pattern | ast.alias | ast.keyword):
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
        if line > len(self.lines):
            # A place of another file.
            return offset + 1
        held = self.lines[line - 1]
        return offset + 1 if held.isascii() else len(held.encode()[:offset].decode()) + 1


def _identifiers(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.keyword(arg=str(name)) | ast.ImportFrom(module=str(name)):
            yield name
        case ast.alias(name=name):
            yield name
        case ast.Constant(value=str(text)) if len(text.split()) == 1:
            # Prose is no name.
            yield text
        case _:
            pass


def _held_to_one(node: ast.AST) -> str:
    match node:
        case ast.Assert(
            test=ast.Compare(
                left=ast.Name(id=name) | ast.Attribute(attr=name),
                ops=[ast.Eq()],
                comparators=[ast.Constant(value=1)],
            )
        ):
            return name
        case _:
            return ""
