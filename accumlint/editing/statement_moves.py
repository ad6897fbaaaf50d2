"""May a statement be taken elsewhere in its function?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from accumlint.common.frozen import frozen
from accumlint.editing.layout import Layout, Statement
from accumlint.editing.name_bindings import Names, bound_by, names_of, units


@frozen
class Passage:
    """Statements that can be taken elsewhere together: `moved` in the order of the text, `emptied` without them."""

    moved: tuple[Statement, ...]
    emptied: Statement | None = None


def passage(
    layout: Layout, statement: Statement, anchor: Statement, after: bool, along: str
) -> Passage | None:
    """What moves, None where something on the way, or a guard, makes the new place another one."""
    unit = _with_its_guard(layout, statement)
    if along == "users":
        unit = _beside(layout, unit, anchor)
    meeting = _meeting(layout, unit, anchor)
    if meeting is None:
        return None
    unit_top, anchor_top = meeting
    outwards, inwards = (
        list(_between(layout, unit, unit_top)),
        list(_between(layout, anchor, anchor_top)),
    )
    if not all(_may_be_left(layout, owner, below) for owner, below in outwards):
        return None
    if not all(_may_be_entered(layout, owner, below) for owner, below in inwards):
        return None
    taken = _taken(layout, unit, anchor_top, along)
    if not _commute(layout, taken, anchor, after, outwards, inwards):
        return None
    emptied = _emptied(layout, unit)
    if emptied is None and len(layout.siblings(unit)) == len(taken):
        return None
    return Passage(taken, emptied)


def _with_its_guard(layout: Layout, statement: Statement) -> Statement:
    """The statement, or the guard on a flag of which it is all there is."""
    owner = layout.owner(statement)
    if (
        isinstance(owner, cst.If)
        and owner.orelse is None
        and layout.block(owner) is not None
        and len(layout.siblings(statement)) == 1
        and not is_boundary(layout, owner)
    ):
        return _with_its_guard(layout, owner)
    return statement


def is_boundary(layout: Layout, guard: cst.If) -> bool:
    """True when a test asks for the place in the window: its answer changes while the loop around it runs."""
    if any(isinstance(n, cst.Modulo) for n in _all(guard.test)):
        return True
    tested = names_of([guard.test])
    if any(name.endswith(".is_gradient_accumulation_boundary") for name in tested.reads):
        return True
    if any(name.rpartition(".")[2] == "sync_gradients" for name in tested.reads):
        return True
    loop = next((o for o in _owners(layout, guard) if isinstance(o, cst.For | cst.While)), None)
    return loop is not None and bound_by(loop).disturbs(tested)


def _all(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _all(child)


def _owners(layout: Layout, statement: Statement) -> Iterator[Statement]:
    owner = layout.owner(statement)
    while owner is not None:
        yield owner
        owner = layout.owner(owner)


def _meeting(
    layout: Layout, statement: Statement, anchor: Statement
) -> tuple[Statement, Statement] | None:
    """The statements of the innermost common block that hold the one and the other."""
    tops = {layout.block(s): s for s in (statement, *_owners(layout, statement))}
    for top in (anchor, *_owners(layout, anchor)):
        block = layout.block(top)
        if block is not None and block in tops:
            met = tops[block], top
            # Two branches of one statement are no way from one to the other.
            return met if met[0] is not met[1] or anchor is top else None
    return None


def _between(
    layout: Layout, statement: Statement, top: Statement
) -> Iterator[tuple[Statement, Statement]]:
    """Each owner on the way up to `top`, with the statement of its block on that way."""
    below = statement
    while below is not top:
        owner = layout.owner(below)
        if owner is None:
            return
        yield owner, below
        below = owner


def _may_be_left(layout: Layout, owner: Statement, below: Statement) -> bool:
    match owner:
        case cst.For() | cst.While() | cst.With():
            return layout.block(below) is owner.body
        case cst.If():
            return layout.block(below) is owner.body and is_boundary(layout, owner)
        case _:
            return False


def _may_be_entered(layout: Layout, owner: Statement, below: Statement) -> bool:
    match owner:
        case cst.With():
            return True
        case cst.If():
            whole = owner.orelse is None and layout.block(owner) is not None
            return whole and is_boundary(layout, owner)
        case _:
            return False


def _beside(layout: Layout, unit: Statement, anchor: Statement) -> Statement:
    """The statement beside the anchor, or beside what holds it, that holds a unit in nothing but contexts."""
    blocks = {layout.block(owner) for owner in _owners(layout, anchor)}
    while layout.block(unit) not in blocks:
        owner = layout.owner(unit)
        if not isinstance(owner, cst.With):
            break
        unit = owner
    return unit


def _taken(layout: Layout, unit: Statement, anchor: Statement, along: str) -> tuple[Statement, ...]:
    """The unit with what goes along, in the order of the text."""
    siblings = [s for s in layout.siblings(unit) if isinstance(s, cst.BaseStatement)]
    own = siblings.index(unit)
    if along == "rest":
        return tuple(_whole(siblings[own:]))
    if along == "users" and anchor in siblings[own:]:
        return _chain(_whole(siblings[own : siblings.index(anchor)]))
    if along == "needs" and anchor in siblings[:own]:
        return _chain(_whole(siblings[siblings.index(anchor) : own + 1]), backwards=True)
    return (unit,)


def _chain(statements: Sequence[Statement], backwards: bool = False) -> tuple[Statement, ...]:
    """The first statement with those that read what it computes, and so on; backwards, what the last one reads."""
    first, *others = reversed(statements) if backwards else statements
    taken = [first]
    for other in others:
        names, held = names_of([other]), names_of(taken)
        giving, asking = (names, held) if backwards else (held, names)
        if Names(writes=giving.writes).disturbs(Names(reads=asking.reads)):
            taken.append(other)
    return tuple(reversed(taken)) if backwards else tuple(taken)


def _whole(statements: Sequence[cst.CSTNode]) -> list[Statement]:
    return [
        s for s in statements if isinstance(s, cst.SimpleStatementLine | cst.BaseCompoundStatement)
    ]


def _commute(
    layout: Layout,
    taken: Sequence[Statement],
    anchor: Statement,
    after: bool,
    outwards: list[tuple[Statement, Statement]],
    inwards: list[tuple[Statement, Statement]],
) -> bool:
    """True when the names on the way do not tell where the statements stand."""
    moved = names_of(taken)
    inside = _below(*taken)
    place = layout.span(anchor)[1 if after else 0]
    own = layout.span(taken[-1 if layout.span(taken[0])[0] > place else 0])[0]
    low, high = min(own, place), max(own, place)
    repeating = _below(*(o for o, _ in outwards if isinstance(o, cst.For | cst.While)))
    entered = layout.block(anchor) if inwards else None
    guarded = _below(entered) if entered is not None else _below()
    scope = layout.scope(anchor)
    for node, parts in units(scope.body if isinstance(scope, cst.FunctionDef) else scope):
        if node in inside:
            continue
        names = names_of(parts)
        passed = low <= layout.span(node)[0] < high
        if (passed or node in repeating) and not moved.commutes_with(names):
            return False
        # What is computed under a guard from now on must not be asked for outside of it.
        if entered is not None and Names(writes=moved.writes).disturbs(Names(reads=names.reads)):
            if node not in guarded:
                return False
    return True


def _below(*nodes: cst.CSTNode) -> frozenset[cst.CSTNode]:
    return frozenset(n for node in nodes for n, _ in units(node))


def _emptied(layout: Layout, unit: Statement) -> Statement | None:
    """The `if` that nothing is left of once its only statement is gone."""
    owner = layout.owner(unit)
    alone = len(layout.siblings(unit)) == 1
    if (
        alone
        and isinstance(owner, cst.If)
        and owner.orelse is None
        and layout.block(owner) is not None
        and not any(_may_do_something(n) for n in _all(owner.test))
    ):
        return owner
    return None


def _may_do_something(node: cst.CSTNode) -> bool:
    """True for a part of a test that may do more than tell, so that the test must stay."""
    match node:
        case cst.NamedExpr():
            return True
        case cst.Call(func=cst.Attribute(attr=attr)):
            return attr.value != "is_gradient_accumulation_boundary"
        case cst.Call():
            return True
        case _:
            return False
