"""Where the statements of a file stand: the lines they take, the blocks they stand in."""

from __future__ import annotations

import ast
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from typing import TypeAlias, cast

import libcst as cst
from libcst.metadata import CodeRange

from accumlint.editing.excerpt import excerpt
from accumlint.files.source import line_starts
from accumlint.reading import concrete_syntax
from accumlint.reading.ir import Const, Node, Text, walk_expr
from accumlint.reading.program import Program

Statement: TypeAlias = cst.SimpleStatementLine | cst.BaseCompoundStatement
Block: TypeAlias = cst.IndentedBlock | cst.Module
_STATEMENTS = (cst.BaseSmallStatement, cst.BaseCompoundStatement)
_PLACED = (*_STATEMENTS, cst.BaseExpression)
_TEXTS = (cst.FormattedString, cst.ConcatenatedString)
_WHITE = (cst.BaseParenthesizableWhitespace, cst.TrailingWhitespace, cst.EmptyLine)
_SCOPES = (cst.FunctionDef, cst.ClassDef, cst.Lambda, cst.Module)


class Layout:
    """The statements of a program, as lines of its text, around the nodes that edits are about.

    Python's tree, from which programs are made, knows nothing of comments and brackets. libcst's does.
    """

    def __init__(self, program: Program, nodes: Iterable[Node]) -> None:
        self.program = program
        self.text = program.text
        self.nodes = tuple(nodes)

    @cached_property
    def module(self) -> cst.Module:
        """libcst's tree of the file, in which the bodies of functions without any of the nodes are left out.

        Raises:
            ParserSyntaxError: for a syntax that libcst does not know yet.
        """
        return cst.parse_module(self._excerpt)

    @property
    def size(self) -> int:
        """How many characters libcst has to read."""
        return len(self._excerpt)

    @cached_property
    def _excerpt(self) -> str:
        return excerpt(self.program.source, self.nodes)

    @cached_property
    def ranges(self) -> Mapping[cst.CSTNode, CodeRange]:
        return concrete_syntax.ranges(self.module)

    @cached_property
    def _starting(self) -> Mapping[tuple[int, int], list[cst.CSTNode]]:
        """The statements and expressions that start at a line and column."""
        found: dict[tuple[int, int], list[cst.CSTNode]] = defaultdict(list)
        for node, place in self.ranges.items():
            if _is(type(node), _PLACED):
                found[place.start.line, place.start.column].append(node)
        return found

    def node(self, node: Node) -> cst.CSTNode | None:
        """libcst's node for one of the program's, None where it has no such, or for one of another file."""
        if not self.program.source.holds(node.at):
            return None
        place = self.program.place(node)
        wanted = cst.BaseExpression if isinstance(node.at, ast.expr) else _STATEMENTS
        for found in self._starting[place.line, place.column - 1]:
            end = self.ranges[found].end
            ends = (end.line, end.column + 1) == (place.end_line, place.end_column)
            # No statement begins where another one does, and trees differ about where a block ends.
            if isinstance(found, wanted) and (ends or wanted is _STATEMENTS):
                return self._part(found, node) if isinstance(found, _TEXTS) else found
        return None

    def _part(self, text: cst.BaseExpression, node: Node) -> cst.CSTNode | None:
        """A part of an f-string, which before Python 3.12 stands where the text does; the text for that itself."""
        if isinstance(node, Text | Const):
            return text
        top = node
        while not isinstance(around := self.program.parents.get(top), Text):
            if around is None:
                return None
            top = around
        fields = list(_fields(text))
        number = around.parts.index(top)
        like = [n for n in walk_expr(top) if _same(n.at, node.at)]
        if number >= len(fields) or node not in like:
            return None
        parts = [n for n in _expressions(fields[number]) if _same(_parsed(self.code(n)), node.at)]
        return parts[like.index(node)] if len(parts) == len(like) else None

    @cached_property
    def parents(self) -> dict[cst.CSTNode, cst.CSTNode]:
        found: dict[cst.CSTNode, cst.CSTNode] = {}
        waiting: list[cst.CSTNode] = [self.module]
        while waiting:
            node = waiting.pop()
            for child in below(node):
                found[child] = node
                waiting.append(child)
        return found

    @cached_property
    def starts(self) -> list[int]:
        """The offset of each line's first character, and of the text's end."""
        return [*line_starts(self.text), len(self.text)]

    # Around a node

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The nodes that hold a node, the nearest first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def scope(self, node: cst.CSTNode) -> cst.CSTNode:
        """The function, lambda or class that a node stands in, or the module."""
        return next(n for n in self.above(node) if isinstance(n, _SCOPES))

    def statement(self, node: cst.CSTNode) -> Statement | None:
        """The innermost statement that holds a node, None when it shares its line with another one."""
        for outer in (node, *self.above(node)):
            if isinstance(outer, cst.SimpleStatementLine | cst.BaseCompoundStatement):
                alone = not isinstance(outer, cst.SimpleStatementLine) or len(outer.body) == 1
                return outer if alone and self.block(outer) is not None else None
            if isinstance(outer, cst.SimpleStatementSuite | cst.Lambda):
                return None
        return None

    def block(self, statement: cst.CSTNode) -> Block | None:
        """The block in which a statement has lines of its own; an `elif` has none."""
        parent = self.parents.get(statement)
        return parent if isinstance(parent, cst.IndentedBlock | cst.Module) else None

    def siblings(self, statement: cst.CSTNode) -> Sequence[cst.CSTNode]:
        block = self.block(statement)
        return block.body if block is not None else ()

    def owner(self, statement: Statement) -> Statement | None:
        """The compound statement whose block holds a statement, None at the top of a function or of the module."""
        for outer in self.above(statement):
            if isinstance(outer, _SCOPES):
                return None
            if isinstance(outer, cst.BaseCompoundStatement):
                return outer
        return None

    # As text

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """The offsets between which a node's own text stands, without parentheses around it."""
        place = self.ranges[node]
        start = self.starts[place.start.line - 1] + place.start.column
        return start, self.starts[place.end.line - 1] + place.end.column

    def parenthesised(self, node: cst.CSTNode) -> tuple[int, int] | None:
        """The offsets of an expression with the parentheses around it, None when these cannot be told."""
        start, end = self.span(node)
        for _ in getattr(node, "lpar", ()):
            before, after = self.text[:start].rstrip(), self.text[end:]
            if not before.endswith("(") or not after.lstrip().startswith(")"):
                return None
            start = len(before) - 1
            end += len(after) - len(after.lstrip()) + 1
        return start, end

    def code(self, node: cst.CSTNode) -> str:
        """The text of a node as the file has it."""
        start, end = self.span(node)
        return self.text[start:end]

    def indentation(self, statement: Statement) -> str:
        start, _ = self.span(statement)
        return self.text[self.line_of(start) : start]

    def lines(self, statement: Statement) -> tuple[int, int]:
        """The offsets of a statement's lines, with the comments right above it and those that end its block."""
        start, end = self.span(statement)
        indentation = self.indentation(statement)
        if isinstance(statement, cst.FunctionDef | cst.ClassDef) and statement.decorators:
            start, _ = self.span(statement.decorators[0])
        first, last = self._line(start), self._line(max(end - 1, start))
        while first and self._is_comment(first - 1, indentation):
            first -= 1
        return self.starts[first], self.starts[self._last(last, len(indentation)) + 1]

    def newline(self, offset: int) -> str:
        """How the line at an offset ends; the file's way where it does not end."""
        line = self._line(offset)
        held = self.text[self.starts[line] : self.starts[line + 1]]
        return next((e for e in ("\r\n", "\n", "\r") if held.endswith(e)), None) or (
            self.module.default_newline
        )

    def is_blank(self, offset: int) -> bool:
        """True when the line at an offset holds nothing; the end of the text is no line."""
        line = self._line(offset)
        return offset < len(self.text) and not (
            self.text[self.starts[line] : self.starts[line + 1]].strip()
        )

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, both from 1."""
        line = bisect_right(self.starts[:-1], offset) - 1
        return line + 1, offset - self.starts[line] + 1

    def line_of(self, offset: int) -> int:
        """The offset at which the line of an offset starts."""
        return self.starts[self._line(offset)]

    def line_end(self, offset: int) -> int:
        """The offset at which the line after the one of an offset starts."""
        return self.starts[self._line(offset) + 1]

    def _last(self, last: int, depth: int) -> int:
        """The last of the comment lines that belong to the end of a block ending on a line."""
        for line in range(last + 1, len(self.starts) - 1):
            held = self.text[self.starts[line] : self.starts[line + 1]]
            bare = held.strip()
            if bare and not (bare.startswith("#") and len(held) - len(held.lstrip()) > depth):
                break
            last = line if bare else last
        return last

    def _is_comment(self, line: int, indentation: str) -> bool:
        held = self.text[self.starts[line] : self.starts[line + 1]]
        return held.startswith(indentation + "#")

    def _line(self, offset: int) -> int:
        """The number, from 0, of the line that holds an offset."""
        return min(bisect_right(self.starts, offset) - 1, max(len(self.starts) - 2, 0))


def _fields(text: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """The expressions in an f-string, but for those of its formats."""
    match text:
        case cst.ConcatenatedString(left=left, right=right):
            yield from (*_fields(left), *_fields(right))
        case cst.FormattedString(parts=parts):
            yield from (p.expression for p in parts if isinstance(p, cst.FormattedStringExpression))
        case _:
            pass


def _expressions(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """An expression and those in it, in the order of the text."""
    if isinstance(node, cst.BaseExpression):
        yield node
    for child in below(node):
        yield from _expressions(child)


def _parsed(code: str) -> ast.AST | None:
    with suppress(SyntaxError):
        return ast.parse(code, mode="eval").body
    return None


def _same(one: ast.AST | None, other: ast.AST) -> bool:
    return one is not None and ast.dump(one) == ast.dump(other)


def below(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The nodes directly below but for white space; `children` visits everything as if to change it."""
    for name in node.__dataclass_fields__:
        held: object = getattr(node, name)
        for child in cast("Sequence[object]", held) if isinstance(held, list | tuple) else (held,):
            if _is(type(child), cst.CSTNode) and not _is(type(child), _WHITE):
                yield cast("cst.CSTNode", child)


@cache
def _is(kind: type, kinds: type | tuple[type, ...]) -> bool:
    """`issubclass`, which takes its time for libcst's abstract classes, asked once for each."""
    return issubclass(kind, kinds)
