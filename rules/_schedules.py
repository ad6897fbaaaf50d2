"""What a scheduler is made with, and whether the loop counts micro-batches up to it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from accumlint.reading.frameworks import SCHEDULERS
from accumlint.reading.ir import (
    Assign,
    Attr,
    Binary,
    Call,
    Compare,
    Expr,
    For,
    If,
    Name,
    Sequence,
    While,
    called,
    names_in,
    render,
    walk,
    walk_expr,
)
from accumlint.reading.program import Program
from accumlint.tracing.trace import TrainingObject, Window

from ._boundaries import ends, loop_leading_to, raised, remainders
from ._counts import counted, setting
from ._definitions import stands_for

_LENGTH = re.compile(r"(max|total|num|train).*(step|iter|update)|^t_total$")


def arguments(scheduler: TrainingObject) -> tuple[Expr, ...]:
    """The arguments that build a scheduler, without the optimizer."""
    made = scheduler.node.value if isinstance(scheduler.node, Assign) else scheduler.node
    return _numbers(made) if isinstance(made, Call) else ()


def _numbers(made: Call) -> tuple[Expr, ...]:
    first = made.positional(0)
    return tuple(a.value for a in made.args if a.value is not first and a.keyword != "optimizer")


def every_argument(program: Program, scheduler: TrainingObject) -> Iterator[Expr]:
    """The arguments that build a scheduler, and those of the schedulers that it is put together from."""
    for argument in arguments(scheduler):
        yield argument
        for item in argument.items if isinstance(argument, Sequence) else ():
            for part in (item, *program.assigned.get(render(item), ())[-1:]):
                if isinstance(part, Call) and called(part) in SCHEDULERS:
                    yield from _numbers(part)


def lengths(program: Program, scheduler: TrainingObject) -> tuple[Expr, ...]:
    """The arguments that build a scheduler, and what a function among them reads: it works out the factor with that."""
    given = arguments(scheduler)
    named = {argument.id for argument in given if isinstance(argument, Name)}
    read = {
        render(node): node
        for function in program.functions
        if function.name in named
        for node in walk(function.body)
        if isinstance(node, Attr | Name)
    }
    parts = (p for node in read.values() for p in stands_for(program, node, number=True))
    # `int(.1 * steps)` counts what `steps` counts.
    return (*given, *(n for p in parts for n in walk_expr(p) if isinstance(n, Attr | Name)))


def with_settings(program: Program, given: tuple[Expr, ...]) -> Iterator[Expr]:
    """Some numbers, with what is put elsewhere under the names of the settings that they are."""
    yield from given
    names = {setting(n) for g in given for n in walk_expr(g) if not isinstance(n, Name)} - {""}
    # A helper that gets all the settings takes the length that was put among them.
    holders = {render(g) for g in given if isinstance(g, Name)}
    for node in program.of(Assign):
        for target in node.targets:
            holder, _, name = render(target).rpartition(".")
            among = holder in holders and _LENGTH.search(name)
            if among or (setting(target) in names and not isinstance(target, Name)):
                yield node.value


def fits_microbatches(program: Program, scheduler: TrainingObject, window: Window) -> bool:
    """True for a scheduler whose length may count micro-batches, as the one of another of its name may."""
    name = scheduler.text.rpartition(".")[2]
    values = (
        v
        for target, made in program.assigned.items()
        if target.rpartition(".")[2] == name
        for v in made
    )
    named = tuple(a.value for v in values if isinstance(v, Call) for a in v.args)
    given = lengths(program, scheduler) or named
    return counted(program, *with_settings(program, given)).may_be_microbatches or any(
        bounds_microbatches(program, number, window) for number in (*given, *named)
    )


def counts_before_prepare(program: Program, argument: Expr) -> bool:
    """True for the length of a loader that Accelerate divides among its processes afterwards.

    A prepared scheduler then moves as often as if there were one process.
    """
    parts = stands_for(program, argument, number=True)
    calls = (n for part in parts for n in walk_expr(part) if isinstance(n, Call) and n.args)
    return any(
        program.place(length).line < program.place(prepare).line
        and program.function_around(prepare) is program.function_around(length)
        and render(length.args[0].value) in [render(a.value) for a in prepare.args]
        for length in calls
        if called(length) == "len"
        for prepare in program.calls.get("prepare", ())
    )


def bounds_microbatches(program: Program, argument: Expr, window: Window) -> bool:
    """True for a number to which the loop counts its micro-batches, and for so many epochs of it."""
    if isinstance(argument, Binary) and argument.op == "*":
        sides = (argument.left, argument.right)
        return any(bounds_microbatches(program, side, window) for side in sides)
    if not isinstance(argument, Attr | Name):
        return False
    parts = stands_for(program, argument, number=True)
    given = {render(part) for part in parts if isinstance(part, Attr | Name)}
    if not counted(program, argument).known:
        return False
    # A class may keep the number by a name of its own.
    bounds = (p for b in _limits(program, window) for p in stands_for(program, b, number=True))
    return any(render(part) in given for part in bounds)


def _limits(program: Program, window: Window) -> Iterator[Expr]:
    """The numbers to which the loops count micro-batches."""
    guards = [n for n in program.above(window.step.node) if isinstance(n, If)]
    tests = (test for guard in guards for test in stands_for(program, guard.test))
    counts = (remainder.left for test in tests for remainder in remainders(test))
    counters = {name for count in counts for name in names_in(count)}
    for loop in program.above(guards[0]) if guards else ():
        if isinstance(loop, For | While):
            yield from ends(program, loop, counters)
    for backward in window.backwards[-1:]:
        if (loop := loop_leading_to(program, backward.node)) is not None:
            yield from ends(program, loop, raised(loop))


def multiplies_the_end(program: Program, argument: Expr) -> bool:
    """True for `max_steps * accumulation_steps`, where the loop ends when its count of updates is `max_steps`."""
    if not isinstance(argument, Binary) or not counted(program, argument).stretched:
        return False
    bounds = {render(side) for node in program.of(Compare) for _, side in node.rest}
    return render(argument.left) in bounds or render(argument.right) in bounds
