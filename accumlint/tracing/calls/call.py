"""A call as what models it sees it: the name of what is called, and the values of its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from types import NotImplementedType
from typing import TypeAlias

from accumlint.reading import ir as p
from accumlint.tracing.values import Value

# What a function that models a call gives: the call's value, or NotImplemented for a call that it leaves to others.
Answer: TypeAlias = Value | NotImplementedType


@dataclass(eq=False, slots=True)
class Call:
    """A call by the dotted path of what is called, or by a method's name, with its arguments."""

    path: str
    args: list[Value]
    kwargs: dict[str, Value]
    node: p.Node

    @property
    def last(self) -> str:
        """The last name of the path."""
        return self.path.rpartition(".")[2]

    @property
    def first(self) -> Value:
        """The first argument by its place, None where there is none."""
        return self.args[0] if self.args else None

    @property
    def given(self) -> list[Value]:
        """All arguments, those by their place first."""
        return [*self.args, *self.kwargs.values()]

    @property
    def shown(self) -> str:
        """The call as it is written."""
        return p.render(self.node) if isinstance(self.node, p.Call) else self.path

    def argument(self, place: int, *keywords: str) -> Value:
        """The argument at a place, or else by the first of some keywords that is given; None for none."""
        if place < len(self.args):
            return self.args[place]
        return next((self.kwargs[k] for k in keywords if k in self.kwargs), None)
