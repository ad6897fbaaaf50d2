"""Regions: the function around a backward that no run came to, and the guards that have to open on the way to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from accumlint.common.frozen import frozen
from accumlint.reading import ir as p
from accumlint.reading.gradient_slice import Relevance, called, key
from accumlint.reading.program import Program

Sides = Mapping[p.If, bool]


@frozen
class Region:
    """The outermost caller of a backward in its file, and the side of each guard around it and around the calls.

    `maker` is the function around a nested one.
    """

    function: p.Function | None
    maker: p.Function | None
    sides: Sides


def regions(program: Program, slice_: Relevance, sites: Iterable[p.Node]) -> Iterator[Region]:
    """The regions around some backwards, those with the same start and no guard on which they differ in one."""
    found: list[Region] = []
    for new in (_region(program, slice_, site) for site in sites):
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


def _region(program: Program, slice_: Relevance, site: p.Node) -> Region | None:
    """Where to start so that a run comes to `site`; None for what is no training: an autograd function's backward."""
    functions = program.functions
    nested = {n: f for f in functions for n in p.walk(f.body) if isinstance(n, p.Function)}
    sides: dict[p.If, bool] = {}
    wanted: frozenset[p.Node] = frozenset({site})
    inside: p.Function | None = None
    seen: set[p.Function] = set()
    while True:
        function, opened = _holder(program, wanted, seen)
        if opened is None:
            break
        sides.update(opened)
        inside = function
        if function is None:
            break
        seen.add(function)
        if _is_of_autograd(function, program):
            return None
        # A caller knows the loop; a function that loops and steps by itself needs none.
        if _loops(function, slice_) and not slice_.stepping.isdisjoint(function.body):
            break
        wanted = _calls_of(program, function)
    return (
        Region(inside, nested.get(inside) if inside else None, sides) if sides or inside else None
    )


def _holder(
    program: Program, wanted: frozenset[p.Node], seen: set[p.Function]
) -> tuple[p.Function | None, dict[p.If, bool] | None]:
    """The first function that holds one of some calls (None for the module itself), and the guards on the way to it."""
    for function in (*program.functions, None):
        if function in seen or not wanted:
            continue
        body = function.body if function else program.body
        for opened in _paths(body, wanted):
            return function, opened
    return None, None


def _paths(block: tuple[p.Stmt, ...], wanted: frozenset[p.Node]) -> Iterator[dict[p.If, bool]]:
    """The sides of the guards around each of some nodes in a block, and of those before it that leave the block."""
    passed: dict[p.If, bool] = {}
    for statement in block:
        for opened in _within(statement, wanted):
            yield {**passed, **opened}
        if isinstance(statement, p.If):
            leaving = [_leaves(side) for side in (statement.body, statement.orelse)]
            if leaving[0] != leaving[1]:
                passed[statement] = leaving[1]


def _within(statement: p.Stmt, wanted: frozenset[p.Node]) -> Iterator[dict[p.If, bool]]:
    match statement:
        case p.Function() | p.Class():
            return
        case p.If(body=body, orelse=orelse):
            for taken, side in ((True, body), (False, orelse)):
                for opened in _paths(side, wanted):
                    yield {statement: taken, **opened}
        case p.For(body=body, orelse=orelse) | p.While(body=body, orelse=orelse):
            yield from _paths(body, wanted)
            yield from _paths(orelse, wanted)
        case p.With(body=body):
            yield from _paths(body, wanted)
        case p.Try(body=body, orelse=orelse, final=final):
            for part in (body, orelse, final, *(h for _, _, h in statement.handlers)):
                yield from _paths(part, wanted)
        case _:
            if any(n in wanted for n in p.walk((statement,), into_functions=False)):
                yield {}


def _leaves(block: tuple[p.Stmt, ...]) -> bool:
    return bool(block) and isinstance(block[-1], p.Jump | p.Return | p.Raise)


def _calls_of(program: Program, function: p.Function) -> frozenset[p.Node]:
    return frozenset(n for n in program.of(p.Call) if called(n.func) == key(function))


def _loops(function: p.Function, slice_: Relevance) -> bool:
    return any(
        isinstance(n, p.For | p.While) and n in slice_.backwards for n in p.walk(function.body)
    )


def _is_of_autograd(function: p.Function, program: Program) -> bool:
    """True for the `backward(ctx, …)` of an autograd function, which is no backward pass of a training."""
    owner = program.classes.get(function.owner) if function.owner else None
    bases = owner.bases if owner else ()
    return function.name == "backward" and any(b.endswith("Function") for b in bases)
