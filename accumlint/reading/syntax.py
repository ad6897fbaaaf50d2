"""A source file with Python's own syntax tree, and the places of the tree's nodes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cached_property

from accumlint.common.frozen import frozen
from accumlint.common.place import Place
from accumlint.files import nesting
from accumlint.files import source as text

# So many names with dots between them stand before a method, `self.trainer.optimizer`; more are cut at their front.
_LONGEST_RECEIVER = 4


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
    def asserted_one(self) -> frozenset[str]:
        """The names that the code asserts to be 1 (`assert args.accumulation_steps == 1`), whatever it is asked for."""
        if "assert" not in self.text:
            return frozenset()
        # What is asserted under a condition holds on one side only.
        always = (node for node in self._nodes if not isinstance(node, ast.If))
        return frozenset(
            name for node in always for name in map(_asserted_one, ast.iter_child_nodes(node))
        )

    @cached_property
    def parted(self) -> frozenset[str]:
        """What the code takes a remainder of (`len(samples) % steps`), as written."""
        ratios = (n for n in self._nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod))
        return frozenset(
            ast.unparse(n.left) for n in ratios if not isinstance(n.left, ast.Constant)
        )

    @cached_property
    def members(self) -> Mapping[str, frozenset[str]]:
        """The attributes that are written of each name, and of what ends in a few names with dots between them."""
        found: dict[str, set[str]] = {}
        for node in self._nodes:
            if isinstance(node, ast.Attribute):
                for base in _endings(node.value):
                    found.setdefault(base, set()).add(node.attr)
        return {base: frozenset(names) for base, names in found.items()}

    @cached_property
    def heirs(self) -> Mapping[str, frozenset[str]]:
        """The classes whose bases speak of each name."""
        found: dict[str, set[str]] = {}
        for node in self._nodes:
            if isinstance(node, ast.ClassDef):
                for inner in (n for base in node.bases for n in text.nodes(base)):
                    if isinstance(inner, ast.Name | ast.Attribute):
                        name = inner.id if isinstance(inner, ast.Name) else inner.attr
                        found.setdefault(name, set()).add(node.name)
        return {name: frozenset(classes) for name, classes in found.items()}

    @cached_property
    def made(self) -> Mapping[str, frozenset[str]]:
        """The names that are bound to what a call of each name gives: variables, attributes, parameters."""
        found: dict[str, set[str]] = {}
        for node in self._nodes:
            for target, value in _bindings(node):
                for each in _elements(value):
                    if made := _called(each):
                        found.setdefault(made, set()).update(_endings(target)[-1:])
        return {name: frozenset(bound) for name, bound in found.items()}

    @cached_property
    def called_at_once(self) -> Mapping[str, frozenset[str]]:
        """The methods that are called at once of what a call of each name gives, or of what a method of that gives."""
        found: dict[str, set[str]] = {}
        for node in self._nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                given = node.func.value
                for _ in range(_LONGEST_RECEIVER):
                    if not isinstance(given, ast.Call):
                        break
                    found.setdefault(_called(given), set()).add(node.func.attr)
                    given = given.func.value if isinstance(given.func, ast.Attribute) else None
        return {name: frozenset(methods) for name, methods in found.items()}

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


def _called(value: ast.AST | None) -> str:
    """The last name of what a call calls; "" for all else."""
    match value.func if isinstance(value, ast.Call) else None:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _endings(node: ast.AST) -> list[str]:
    """`c`, `b.c` and `a.b.c` for `a.b.c`: as many names as are written as a receiver."""
    found: list[str] = []
    while len(found) < _LONGEST_RECEIVER:
        match node:
            case ast.Attribute(attr=name, value=below):
                found.append(f"{name}.{found[-1]}" if found else name)
                node = below
            case ast.Name(id=name):
                return [*found, f"{name}.{found[-1]}" if found else name]
            case (
                ast.Subscript(value=below)
                | ast.Call(func=ast.Attribute(value=below, attr="get"), args=[_])
            ):
                # What is done with one of several is done with them.
                node = below
            case _:
                break
    return found


def _elements(value: ast.expr | None) -> Iterator[ast.expr | None]:
    """A value, and what it holds where it is written as a table or a list."""
    match value:
        case ast.Dict(values=values):
            yield from values
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            yield from elements
        case ast.DictComp(value=element) | ast.ListComp(elt=element):
            yield element
        case _:
            yield value


def _bindings(node: ast.AST) -> Iterator[tuple[ast.AST, ast.expr | None]]:
    """What a node binds, each with the value."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield target, value
        case ast.AnnAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
            yield target, value
        case ast.keyword(arg=str(name), value=value):
            yield ast.Name(name), value
        case _:
            pass


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


def _asserted_one(node: ast.AST) -> str:
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
