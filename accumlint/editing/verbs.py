"""What a fix can do to a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from accumlint.reading.program import Node


@dataclass(frozen=True)
class Before:
    """The place right before the statement that holds a node."""

    node: Node


@dataclass(frozen=True)
class After:
    """The place right after the statement that holds a node."""

    node: Node


Where: TypeAlias = Before | After


@dataclass(frozen=True)
class Insert:
    """A new statement. Its names must be in reach where it comes to stand."""

    text: str
    where: Where


@dataclass(frozen=True)
class Move:
    """The statement that holds a node, with the comments right above it, taken elsewhere in the same function.

    A guard on a flag goes along with the only statement that it guards. `needs`: what the statement reads and is
    computed on the way goes along, too.
    """

    node: Node
    where: Where
    needs: bool = False


@dataclass(frozen=True)
class Guard:
    """The statement that holds a node, put under `if test:`."""

    node: Node
    test: str


@dataclass(frozen=True)
class Delete:
    """The statement that holds a node, taken away."""

    node: Node


@dataclass(frozen=True)
class Replace:
    """Another text in the place of an expression. The names in it must be in reach there."""

    node: Node
    text: str


@dataclass(frozen=True)
class Append:
    """Text right behind an expression, as in `loss.detach()`, which is put in parentheses where it needs them."""

    node: Node
    text: str


@dataclass(frozen=True)
class Import:
    """`from module import name` at the top of the file, unless the file has it."""

    module: str
    name: str


Verb: TypeAlias = Insert | Move | Guard | Delete | Replace | Append | Import
