"""What a scheduler's length counts: micro-batches or updates, as far as the code that builds it tells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from accumlint.reading.frameworks import SCHEDULERS
from accumlint.reading.ir import (
    Argument,
    Assign,
    Attr,
    Augment,
    Binary,
    Call,
    Compare,
    Comprehension,
    Const,
    Expr,
    For,
    If,
    Item,
    Lambda,
    Name,
    Node,
    Sequence,
    While,
    dotted,
    render,
    walk,
    walk_expr,
)
from accumlint.reading.names import is_steps
from accumlint.reading.program import Program
from accumlint.tracing.trace import TrainingObject, Window

from ._boundaries import ends, loop_leading_to, raised, remainders
from ._definitions import stands_for

_LOADERS = ("loader", "dl", "iter", "batches", "data")
_LENGTH = re.compile(r"(max|total|num|train).*(step|iter|update)|^t_total$")
_ROWS = re.compile(r"(per_device_|per_gpu_|micro_|train_|training_)*(batch_size|bs|bsz)")
_COUNTS_DATA = re.compile(r"\blen\(|num_batches|epoch_len")
_RANKS = re.compile(
    r"[\w.\[\]']*(world_size|num_processes|n_gpus?|num_gpus|num_devices|device_count|num_replicas)(\(\))?$"
)
_BY_RANKS = re.compile(f" //? {_RANKS.pattern[:-1]}")


def horizon(program: Program, scheduler: TrainingObject) -> str:
    """The arguments that build a scheduler and what their names stand for; "" when not seen.

    How many ranks share the data is left out, and how many rows make a micro-batch: what is left over counts those.
    """
    given = lengths(program, scheduler)
    parts = [part for argument in given for part in stands_for(program, argument, number=True)]
    # A helper that gets all the settings takes the length that was put among them.
    settings = {render(argument) for argument in given if isinstance(argument, Name)}
    for node in program.of(Assign):
        for target in node.targets:
            holder, _, name = render(target).rpartition(".")
            if holder in settings and _LENGTH.search(name):
                parts += stands_for(program, node.value, number=True)
    parts += _settings_of(program, given)
    # `sum(len(loader) for loader in loaders)` is not written out.
    summed = [n for part in parts for n in walk_expr(part) if isinstance(n, Comprehension)]
    parts += (n for whole in summed for n in walk_expr(whole) if isinstance(n, Call))
    length = _BY_RANKS.sub("", ", ".join(render(part) for part in parts))
    for rows in _rows_of_loaders(program):
        length = re.sub(rf" //? {re.escape(rows)}(?![\w.\[(])", "", length)
    return length


def _settings_of(program: Program, given: tuple[Expr, ...]) -> Iterator[Expr]:
    """What is put elsewhere under the names of the settings that build a scheduler (`config["decay_steps"]`)."""
    names = {name for g in given for n in walk_expr(g) if (name := _setting(n))}
    for node in program.of(Assign):
        if any(_setting(target) in names for target in node.targets):
            if _COUNTS_DATA.search(render(node.value)):
                yield node.value


def _setting(node: Node) -> str:
    """`decay_steps` of `config.decay_steps`, `config["decay_steps"]` and `config.get("decay_steps")`."""
    match node:
        case Attr(name=name):
            return name
        case (
            Item(index=Const(value=str() as key))
            | Call(func=Attr(name="get"), args=(Argument(value=Const(value=str() as key)), *_))
        ):
            return key
        case _:
            return ""


def _rows_of_loaders(program: Program) -> set[str]:
    """What loaders are given as their `batch_size`: rows divided by it are micro-batches."""
    calls = program.calls.get("DataLoader", ())
    rows = {r for c in calls if (r := c.keyword("batch_size") or c.positional(1)) is not None}
    helpers = (c for name in program.calls if "loader" in name.lower() for c in program.calls[name])
    rows |= {a.value for c in helpers for a in c.args if _ROWS.fullmatch(_setting(a.value))}
    return {render(r) for r in rows if isinstance(r, Attr | Item | Name)}


def divides_by_rows(program: Program, scheduler: TrainingObject) -> bool:
    """True for `images // (batch_size * world_size) * epochs`: rows by those of a micro-batch, and by nothing else."""
    nodes = list(_nodes(program, arguments(scheduler)))
    divisors = [quotient.right for quotient in _quotients(nodes)]
    rows = _rows_of_loaders(program)
    return (
        bool(divisors)
        and not _names_steps(program, nodes)
        and not _is_redefined(program, nodes)
        and all(_are_rows(program, divisor, rows) for divisor in divisors)
    )


def _are_rows(program: Program, number: Expr, rows: set[str]) -> bool:
    """True for the rows of a micro-batch, on one rank or on all."""
    match number:
        case Binary(op="*", left=left, right=right):
            sides = (left, right)
            return any(_are_rows(program, side, rows) for side in sides) and all(
                _are_rows(program, side, rows) or _RANKS.search(render(side)) for side in sides
            )
        case Attr() | Item() | Name() if render(number) in rows:
            return True
        case Attr() | Name():
            made = program.assigned.get(render(number), ())
            return bool(made) and all(_are_rows(program, value, rows) for value in made)
        case _:
            return False


def _nodes(program: Program, numbers: Iterable[Expr]) -> Iterator[Node]:
    """All that some numbers are made of."""
    for number in numbers:
        for part in stands_for(program, number, number=True):
            yield from walk_expr(part)


def counts_data(length: str) -> bool:
    """True for a length that is made of that of the data."""
    return _COUNTS_DATA.search(length) is not None


def counts_data_elsewhere(program: Program, scheduler: TrainingObject) -> bool:
    """True for a scheduler that was not seen being made, where one of its name is made as long as the data."""
    if arguments(scheduler):
        return False
    for targets, made in _made_of_its_name(program, scheduler):
        given = tuple(a.value for a in made.args)
        parts = [x for value in given for x in stands_for(program, value, number=True)]
        parts += _settings_of(program, given)
        length = _BY_RANKS.sub("", ", ".join(map(render, parts)))
        if targets == 1 and counts_data(length) and "/" not in length:
            return True
    return False


def _made_of_its_name(program: Program, scheduler: TrainingObject) -> Iterator[tuple[int, Call]]:
    """The calls that make something of a scheduler's name, each with the number of its targets."""
    name = scheduler.text.rpartition(".")[2]
    for node in program.of(Assign):
        if isinstance(node.value, Call):
            if any(render(target).rpartition(".")[2] == name for target in node.targets):
                yield len(node.targets), node.value


def arguments(scheduler: TrainingObject) -> tuple[Expr, ...]:
    """The arguments that build a scheduler, without the optimizer."""
    made = scheduler.node.value if isinstance(scheduler.node, Assign) else scheduler.node
    if not isinstance(made, Call):
        return ()
    first = made.positional(0)
    return tuple(a.value for a in made.args if a.value is not first and a.keyword != "optimizer")


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
    # `int(.1 * steps)` counts what `steps` counts.
    nodes = _nodes(program, read.values())
    return (*given, *(n for n in nodes if isinstance(n, Attr | Name)))


def every_argument(program: Program, scheduler: TrainingObject) -> Iterator[Expr]:
    """The arguments that build a scheduler, and those of the schedulers that it is put together from."""
    made = {
        render(target): node.value
        for node in program.of(Assign)
        if isinstance(node.value, Call)
        for target in node.targets
    }
    for argument in arguments(scheduler):
        yield argument
        for item in argument.items if isinstance(argument, Sequence) else ():
            part = made.get(render(item), item)
            if isinstance(part, Call) and dotted(part.func).rpartition(".")[2] in SCHEDULERS:
                yield from (a.value for a in part.args if a.value is not part.positional(0))


def is_stretched(program: Program, scheduler: TrainingObject) -> bool:
    """True when a length is multiplied by the accumulation steps: it is meant to be gone through in micro-batches."""
    nodes = _nodes(program, arguments(scheduler))
    return any(_by_steps(program, node) for node in nodes)


def counts_microbatches(program: Program, argument: Expr) -> bool:
    """True for a number made of a loader's length, or multiplied by the accumulation steps, and divided by nothing."""
    nodes = list(_nodes(program, [argument]))
    if _is_redefined(program, nodes):
        return False
    if _by_steps(program, argument):
        # Whatever it counts before, it is multiplied last.
        return True
    # `batch_size // accumulation_steps` rows make a micro-batch: `batch_size` rows make a window.
    quotients = _quotients(program.of(Binary))
    windows = {render(q.left) for q in quotients if _names_steps(program, [q.right])}
    divided = any(
        render(q.right) in windows
        or _names_steps(program, walk_expr(q.right))
        or not (_by_rows(q) or _are_ranks(program, q.right))
        for q in _quotients(nodes)
    )
    if divided or any(isinstance(n, Lambda) or _works_out(n) for n in nodes):
        return False
    counted = any(_by_rows(n) or _length_of(program, n) is not None for n in nodes)
    multiplied = any(_by_steps(program, n) for n in nodes)
    return multiplied or (counted and not _names_steps(program, nodes))


def counts_before_prepare(program: Program, argument: Expr) -> bool:
    """True for the length of a loader that Accelerate divides among its processes afterwards.

    A prepared scheduler then moves as often as if there were one process.
    """
    prepares = program.calls.get("prepare", ())
    for node in _nodes(program, [argument]):
        if (of := _length_of(program, node)) is not None:
            loader, line = render(of), program.place(node).line
            if any(
                line < program.place(prepare).line
                and program.function_around(prepare) is program.function_around(node)
                and loader in (render(a.value) for a in prepare.args)
                for prepare in prepares
            ):
                return True
    return False


def bounds_microbatches(program: Program, argument: Expr, window: Window) -> bool:
    """True for the number to which the loop counts whose remainder by the accumulation steps guards the step.

    And for its product with another one: so many epochs of it.
    """
    if isinstance(argument, Binary) and argument.op == "*":
        sides = (argument.left, argument.right)
        return any(bounds_microbatches(program, side, window) for side in sides)
    guards = [n for n in program.above(window.step.node) if isinstance(n, If)]
    if not guards or not isinstance(argument, Attr | Name):
        return False
    counters = {
        render(part)
        for guard in guards
        for test in stands_for(program, guard.test)
        for remainder in remainders(test)
        for part in walk_expr(remainder.left)
        if isinstance(part, Attr | Name)
    }
    parts = stands_for(program, argument, number=True)
    if _is_redefined(program, [node for part in parts for node in walk_expr(part)]):
        return False
    given = {render(part) for part in parts if isinstance(part, Attr | Name)}
    loops = [n for n in program.above(guards[0]) if isinstance(n, For | While)]
    return any(
        render(part) in given
        for loop in loops
        for bound in ends(program, loop, counters)
        # A class may keep the number by a name of its own.
        for part in (bound, *stands_for(program, bound, number=True))
    )


def bounds_rounds(program: Program, scheduler: TrainingObject, window: Window) -> bool:
    """True where the loop that leads to the backward counts its rounds up to what a scheduler of that name is given."""
    loop = loop_leading_to(program, window.backwards[-1].node) if window.backwards else None
    if loop is None:
        return False
    bounds = {render(end) for end in ends(program, loop, raised(loop))}
    made = _made_of_its_name(program, scheduler)
    return any(render(argument.value) in bounds for _, call in made for argument in call.args)


def multiplies_the_end(program: Program, argument: Expr) -> bool:
    """True for `max_steps * accumulation_steps`, where the loop ends when its count of updates is `max_steps`."""
    if not (isinstance(argument, Binary) and _by_steps(program, argument)):
        return False
    bounds = {
        render(side)
        for node in program.of(Compare)
        for op, side in node.rest
        if op in (">=", ">", "==", "<") and isinstance(side, Attr | Name)
    }
    return render(argument.left) in bounds or render(argument.right) in bounds


def _quotients(nodes: Iterable[Node]) -> list[Binary]:
    return [n for n in nodes if isinstance(n, Binary) and n.op in ("/", "//")]


def _by_rows(node: Node) -> bool:
    """True for `len(dataset) / batch_size`: the micro-batches of an epoch."""
    match node:
        case Binary(op="/" | "//", left=Call(func=func), right=right) if dotted(func) == "len":
            return _ROWS.fullmatch(dotted(right).rpartition(".")[2].lower()) is not None
        case _:
            return False


def _are_ranks(program: Program, number: Expr) -> bool:
    parts = (number, *stands_for(program, number, number=True))
    return any(_RANKS.search(render(part)) for part in parts)


def _is_redefined(program: Program, nodes: list[Node]) -> bool:
    """True when a name becomes a multiple of itself (`steps = steps * n`): whoever asked before got another number.

    A loader that is made of itself (prepared, skipped to where a run resumes) is none of these numbers.
    """
    lengths = (n for n in nodes if _length_of(program, n) is not None)
    measured = {part for length in lengths for part in walk_expr(length)}
    # Who holds a number (`args`, read anew from itself) is none.
    measured |= {n.base for n in nodes if isinstance(n, Attr) and isinstance(n.base, Name)}
    named = {render(n) for n in nodes if isinstance(n, Attr | Name) and n not in measured}
    if any(n.op in "*/" and render(n.target) in named for n in program.of(Augment)):
        return True
    for node in program.of(Assign):
        bound = named.intersection(map(render, node.targets))
        read = (n for n in walk_expr(node.value) if isinstance(n, Attr | Name))
        if bound and any(render(n) in bound for n in read):
            return True
    return False


def _names_steps(program: Program, nodes: Iterable[Node]) -> bool:
    """True where one of the nodes is the accumulation steps by its name."""
    named = (n for n in nodes if isinstance(n, Attr | Name))
    return any(_is_steps(program, n.name if isinstance(n, Attr) else n.id) for n in named)


def _is_steps(program: Program, name: str) -> bool:
    known = {text.rpartition(".")[2] for text in program.roles.windows}
    return name in known or "accum" in name.lower() or is_steps(name)


def _by_steps(program: Program, node: Node) -> bool:
    """True for a product with the accumulation steps."""
    if not isinstance(node, Binary) or node.op != "*":
        return False
    sides = (node.left, node.right)
    written = (side.id if isinstance(side, Name) else _setting(side) for side in sides)
    return any(name and _is_steps(program, name) for name in written)


def _length_of(program: Program, node: Node) -> Expr | None:
    """The loader of `len(loader)`; None for anything else."""
    match node:
        case Call(
            func=Name(id="len"),
            args=[Argument(value=Attr() | Name() | Item(base=Attr() | Name()) as of, star=""), *_],
        ):
            named = of.base if isinstance(of, Item) else of
            name = dotted(named).rpartition(".")[2]
        case _:
            return None
    low = name.lower()
    is_loader = program.roles.inferred.get(name) == "loader" or any(
        part in low for part in _LOADERS
    )
    return of if is_loader and "dataset" not in low else None


def _works_out(node: Node) -> bool:
    """True for a call that may do anything with the numbers it gets, and gives no number of ranks."""
    harmless = {"len", "sum", "int", "round", "float", "max", "min", "ceil", "floor"}
    if not isinstance(node, Call) or dotted(node.func).rpartition(".")[2] in harmless:
        return False
    return not _RANKS.search(render(node))
