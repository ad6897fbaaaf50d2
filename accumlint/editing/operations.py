"""What a fix can do to a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from accumlint.common.frozen import frozen
from accumlint.reading.ir import Name, Node


@frozen
class Before:
    """The place right before the statement that holds a node."""

    node: Node


@frozen
class After:
    """The place right after the statement that holds a node."""

    node: Node


Where: TypeAlias = Before | After


@frozen
class Insert:
    """A new statement. Its names must be in reach where it comes to stand."""

    text: str
    where: Where


@frozen
class Move:
    """The statement that holds a node, with the comments right above it, taken elsewhere in the same function.

    A guard on a flag goes along with the only statement that it guards. `along` tells what else does: the statements on
    the way that compute what it reads ("needs"), those on the way that read what it computes ("users"), or all that
    follow it in its block ("rest").
    """

    node: Node
    where: Where
    along: Literal["", "needs", "users", "rest"] = ""


@frozen
class Sink:
    """The assignment that holds a node, taken to the start of the body of a loop that follows it."""

    node: Node
    loop: Node


@frozen
class Guard:
    """The statement that holds a node, put under `if test:`."""

    node: Node
    test: str


@frozen
class Enclose:
    """The statements of a block from the one that holds a node to the one that holds another, put under a header."""

    first: Node
    last: Node
    header: str


@frozen
class Rename:
    """A name that is bound and never read, such as `_`, given a name that can be read."""

    node: Name
    name: str


@frozen
class Delete:
    """The statement that holds a node, taken away. It may bind only what is `bound` anyway."""

    node: Node
    bound: bool = False


@frozen
class Replace:
    """Another text in the place of an expression. The names in it must be in reach there."""

    node: Node
    text: str


@frozen
class DropArgument:
    """A call without one of its keyword arguments."""

    call: Node
    keyword: str


@frozen
class Append:
    """Text right behind an expression, as in `loss.detach()`, which is put in parentheses where it needs them."""

    node: Node
    text: str


@frozen
class Import:
    """`from module import name` at the top of the file, unless the file has it."""

    module: str
    name: str


Verb: TypeAlias = (
    Insert
    | Move
    | Sink
    | Guard
    | Enclose
    | Rename
    | Delete
    | Replace
    | DropArgument
    | Append
    | Import
)


def nodes(verb: Verb) -> Iterator[Node]:
    """The nodes that a verb is about."""
    for value in vars(verb).values():
        if isinstance(value, Node):
            yield value
        elif isinstance(value, Before | After):
            yield value.node
