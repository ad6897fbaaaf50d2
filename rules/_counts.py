"""What a scheduler's length counts: micro-batches or updates, as far as the code that builds it tells."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from accumlint.reading.ir import (
    Argument,
    Assign,
    Attr,
    Augment,
    Binary,
    Call,
    Const,
    Expr,
    Item,
    Lambda,
    Name,
    Node,
    called,
    dotted,
    names_in,
    render,
    text_of,
    walk_expr,
)
from accumlint.reading.names import is_steps
from accumlint.reading.program import Program

from ._definitions import stands_for

_LOADER = re.compile(r"loader|dl|iter|batches|data(?!set)")
_BATCHES = re.compile(r"num_batches|epoch_len")
_ROWS = re.compile(r"(per_device_|per_gpu_|micro_|train_|training_)*(batch_size|bs|bsz)")
_RANKS = re.compile(
    r"(world_size|num_processes|n_gpus?|num_gpus|num_devices|device_count|num_replicas)$"
)
_HARMLESS = {"len", "sum", "int", "round", "float", "max", "min", "ceil", "floor"}


class Unit(Enum):
    """What a factor of a number counts."""

    BATCHES = "the batches of a loader"
    DATA = "the length of anything else"
    ROWS = "the rows of a micro-batch"
    RANKS = "ranks"
    STEPS = "accumulation steps"
    OTHER = "anything"


class Count(NamedTuple):
    """What a number counts, by all that it and the names in it are made of.

    `named` are the units that occur, `times` those that multiply, `last` those that do so last, and `over` those that
    divide. `known` is False where a function works the number out, or a name in it gets another number later.
    """

    named: frozenset[Unit]
    times: frozenset[Unit]
    last: frozenset[Unit]
    over: frozenset[Unit]
    known: bool

    @property
    def divided(self) -> bool:
        """True where more divides than what leaves micro-batches: the ranks, and the rows of one."""
        return not self.over <= {Unit.ROWS, Unit.RANKS}

    @property
    def stretched(self) -> bool:
        """True when the accumulation steps multiply it: it is meant to be gone through in micro-batches."""
        return Unit.STEPS in self.times

    @property
    def may_be_microbatches(self) -> bool:
        """True for a number that is made of the length of the data, or of rows over those of a micro-batch."""
        whole = self.named & {Unit.BATCHES, Unit.DATA} or Unit.ROWS in self.over
        return self.stretched or bool(whole and not self.divided)

    @property
    def is_microbatches(self) -> bool:
        """True for the length of a loader, and for what the accumulation steps multiply, divided by nothing."""
        whole = Unit.BATCHES in self.named or (Unit.DATA in self.named and Unit.ROWS in self.over)
        one = self.stretched or (whole and Unit.STEPS not in self.named)
        # Whatever it counts before, it is multiplied last.
        return self.known and (Unit.STEPS in self.last or bool(one and not self.divided))


def counted(program: Program, *numbers: Expr) -> Count:
    """What some numbers count together."""
    return _Units(program).counted(numbers)


class _Units:
    """The units of a program's names."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.steps = {text.rpartition(".")[2] for text in program.roles.windows}
        calls = program.calls.get("DataLoader", ())
        rows = (c.keyword("batch_size") or c.positional(1) for c in calls)
        self.rows = {render(r) for r in rows if isinstance(r, Attr | Item | Name)}

    def counted(self, numbers: tuple[Expr, ...]) -> Count:
        parts = (p for number in numbers for p in stands_for(self.program, number, number=True))
        nodes = [node for part in parts for node in walk_expr(part)]
        binary = [n for n in nodes if isinstance(n, Binary)]
        over = (n.right for n in binary if n.op in ("/", "//"))
        return Count(
            frozenset(map(self.of, nodes)),
            self.multiplying(binary),
            self.multiplying(numbers),
            frozenset(unit for divisor in over for unit in self.factors(divisor)),
            not (_changes(self.program, nodes) or any(map(_works_out, nodes))),
        )

    def multiplying(self, nodes: Iterable[Node]) -> frozenset[Unit]:
        products = (n for n in nodes if isinstance(n, Binary) and n.op == "*")
        return frozenset(self.of(side) for n in products for side in (n.left, n.right))

    def of(self, node: Node) -> Unit:
        """What a number counts by its name, or by whose length it is."""
        if isinstance(node, Call) and called(node) == "len":
            return Unit.BATCHES if node.args and self.is_loader(node.args[0].value) else Unit.DATA
        name = setting(node)
        if name and (name in self.steps or "accum" in name.lower() or is_steps(name)):
            return Unit.STEPS
        if _RANKS.search((name or called(node)).lower()):
            return Unit.RANKS
        if _BATCHES.search(name):
            return Unit.DATA
        rows = _ROWS.fullmatch(name.lower()) or (name and text_of(node) in self.rows)
        return Unit.ROWS if rows else Unit.OTHER

    def is_loader(self, of: Expr) -> bool:
        name = dotted(of.base if isinstance(of, Item) else of).rpartition(".")[2]
        known = self.program.roles.inferred.get(name) == "loader"
        return known or bool(_LOADER.search(name.lower()))

    def factors(self, number: Expr, seen: frozenset[str] = frozenset()) -> set[Unit]:
        """The units of what is multiplied to make a divisor, which may have a name."""
        if isinstance(number, Binary) and number.op == "*":
            return self.factors(number.left, seen) | self.factors(number.right, seen)
        text, unit = render(number), self.of(number)
        made = self.program.assigned.get(text, ()) if text not in seen else ()
        if unit is Unit.OTHER and made:
            return {u for value in made for u in self.factors(value, seen | {text})}
        return {unit}


def setting(node: Node) -> str:
    """`steps` of `steps`, `config.steps`, `config["steps"]` and `config.get("steps")`."""
    match node:
        case Name(id=name) | Attr(name=name):
            return name
        case (
            Item(index=Const(value=str() as key))
            | Call(func=Attr(name="get"), args=(Argument(value=Const(value=str() as key)), *_))
        ):
            return key
        case _:
            return ""


def _works_out(node: Node) -> bool:
    """True for a call that may do anything with the numbers it gets, and gives no number of ranks."""
    harmless = called(node) in _HARMLESS or _RANKS.search(called(node))
    return isinstance(node, Lambda) or (isinstance(node, Call) and not harmless)


def _changes(program: Program, nodes: list[Node]) -> bool:
    """True when a name becomes a multiple of itself (`steps = steps * n`): whoever asked before got another number.

    A loader that is made of itself (prepared, skipped to where a run resumes) is none of these numbers.
    """
    lengths = (n for n in nodes if called(n) == "len")
    measured = {part for length in lengths for part in walk_expr(length)}
    # Who holds a number (`args`, read anew from itself) is none.
    measured |= {n.base for n in nodes if isinstance(n, Attr) and isinstance(n.base, Name)}
    named = {render(n) for n in nodes if isinstance(n, Attr | Name) and n not in measured}
    changed = {render(n.target) for n in program.of(Augment) if n.op in ("*", "/", "//")}
    for node in program.of(Assign):
        changed |= names_in(node.value).intersection(map(render, node.targets))
    return not named.isdisjoint(changed)
