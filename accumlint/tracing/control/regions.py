"""Regions: the function around a backward that no run came to, and the guards that have to open on the way to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import TypeAlias

from accumlint.common.frozen import frozen
from accumlint.reading import ir as p
from accumlint.reading.gradient_slice import Relevance, key
from accumlint.reading.program import Program
from accumlint.reading.statement_facts import callee_of
from accumlint.tracing.budget import Budget

Sides = Mapping[p.If, bool]


@frozen
class Region:
    """The outermost caller of a backward in its file, and the side of each guard around it and around the calls.

    `maker` is the function around a nested one.
    """

    function: p.Function | None
    maker: p.Function | None
    sides: Sides


def regions(
    program: Program, slice_: Relevance, sites: Sequence[p.Node], budget: Budget
) -> Iterator[Region]:
    """The regions around some backwards, those with the same start and no guard on which they differ in one.

    Those that the budget does not reach are left out.
    """
    if not sites:
        return
    found: list[Region] = []
    calls = _Calls(program, slice_)
    for site in sites:
        if budget.is_over():
            break
        new, visited = _region(calls, site)
        budget.spend(visited)
        if new is None:
            continue
        for i, old in enumerate(found):
            same = (old.function, old.maker) == (new.function, new.maker)
            if same and all(
                old.sides.get(guard, side) == side for guard, side in new.sides.items()
            ):
                found[i] = Region(old.function, old.maker, {**old.sides, **new.sides})
                break
        else:
            found.append(new)
    yield from found


# Guards with the side that is taken of each, the nearest first.
_Guards: TypeAlias = "tuple[p.If, bool, _Guards] | None"


@frozen
class _Call:
    """A call in its function (None: the module): its number in the file, and the guards around it.

    Among these are those before it that leave its block.
    """

    number: int
    function: p.Function | None
    guards: _Guards


class _Calls:
    """The calls of a program, and those that may mean a function."""

    def __init__(self, program: Program, slice_: Relevance) -> None:
        self.program = program
        self.stepping = slice_.stepping
        self.placed: dict[p.Node, _Call] = {}
        self.named: dict[str, list[p.Node]] = {}
        for function in (*program.functions, None):
            self._place(function.body if function else program.body, None, function)
        for node in program.of(p.Call):
            self.named.setdefault(callee_of(node.func), []).append(node)
        loops = (n for kind in (p.For, p.While) for n in program.of(kind))
        training = (n for loop in loops if loop in slice_.backwards for n in program.above(loop))
        self.looping = frozenset(n for n in training if isinstance(n, p.Function))

    def _place(
        self, block: tuple[p.Stmt, ...], guards: _Guards, function: p.Function | None
    ) -> None:
        for statement in block:
            match statement:
                case p.Function() | p.Class():
                    pass
                case p.If(body=body, orelse=orelse):
                    self._place(body, (statement, True, guards), function)
                    self._place(orelse, (statement, False, guards), function)
                    leaving = [_leaves(side) for side in (body, orelse)]
                    if leaving[0] != leaving[1]:
                        guards = (statement, leaving[1], guards)
                case p.For(body=body, orelse=orelse) | p.While(body=body, orelse=orelse):
                    self._place(body, guards, function)
                    self._place(orelse, guards, function)
                case p.With(body=body):
                    self._place(body, guards, function)
                case p.Try(body=body, orelse=orelse, final=final):
                    for part in (body, orelse, final, *(h for _, _, h in statement.handlers)):
                        self._place(part, guards, function)
                case _:
                    for node in p.walk((statement,), into_functions=False):
                        if isinstance(node, p.Call):
                            self.placed[node] = _Call(len(self.placed), function, guards)

    def first(self, wanted: Iterable[p.Node], seen: Set[p.Function]) -> _Call | None:
        """The first of some calls that stands in no function that was seen."""
        found = (self.placed[node] for node in wanted if node in self.placed)
        return min(
            (c for c in found if c.function not in seen), key=lambda c: c.number, default=None
        )


def _region(calls: _Calls, site: p.Node) -> tuple[Region | None, int]:
    """Where to start so that a run comes to `site`, None for what is no training: an autograd function's backward.

    With how much was looked at.
    """
    sides: dict[p.If, bool] = {}
    wanted: Sequence[p.Node] = [site]
    inside: p.Function | None = None
    seen: set[p.Function] = set()
    visited = 0
    while call := calls.first(wanted, seen):
        visited += len(wanted)
        guards = call.guards
        while guards is not None:
            guard, side, guards = guards
            sides[guard] = side
        inside = call.function
        if inside is None:
            break
        seen.add(inside)
        if _is_of_autograd(inside, calls.program):
            return None, visited
        # A caller knows the loop; a function that loops and steps by itself needs none.
        if inside in calls.looping and not calls.stepping.isdisjoint(inside.body):
            break
        wanted = calls.named.get(key(inside), ())
    visited += len(sides)
    if not sides and not inside:
        return None, visited
    outer = calls.program.above(inside) if inside else iter(())
    makers = (n for n in outer if isinstance(n, p.Function) and n.name != "<lambda>")
    return Region(inside, next(makers, None), sides), visited


def _leaves(block: tuple[p.Stmt, ...]) -> bool:
    return bool(block) and isinstance(block[-1], p.Jump | p.Return | p.Raise)


def _is_of_autograd(function: p.Function, program: Program) -> bool:
    """True for the `backward(ctx, …)` of an autograd function, which is no backward pass of a training."""
    owner = program.classes.get(function.owner) if function.owner else None
    bases = owner.bases if owner else ()
    return function.name == "backward" and any(b.endswith("Function") for b in bases)
