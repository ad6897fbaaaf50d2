"""Guards as they are written: what their tests ask for, and what stands in their branches."""

from __future__ import annotations

import re
from collections.abc import Iterator

from accumlint.reading import frameworks, names
from accumlint.reading import ir as p
from accumlint.reading.gradient_slice import Relevance
from accumlint.tracing.values import Unknown

# `isnan(loss)`, `found_inf`, `grad_norm > limit`, but not `args.info` or `normalize`.
_OF_NUMBERS = re.compile(r"(nan|inf|norm|overflow)s?(?![a-z])|finite|skip|loss")


def bound_names(block: tuple[p.Stmt, ...]) -> set[str]:
    """The plain names that the statements of a block assign, those inside other statements left out."""
    targets = [target for s in block if isinstance(s, p.Assign) for target in s.targets]
    parts = (x for t in targets for x in (t.items if isinstance(t, p.Sequence) else (t,)))
    return {part.id for part in parts if isinstance(part, p.Name)}


def emptied(test: p.Expr) -> str:
    """The name that a test holds to be empty: `not rows`, `len(rows) == 0`."""
    match test:
        case p.Unary(op="not", operand=p.Name(id=name)):
            return name
        case p.Compare(
            left=p.Call(func=p.Name(id="len"), args=(p.Argument(value=p.Name(id=name)),)),
            rest=[("==" | "<=", p.Const(value=0)) | ("<", p.Const(value=1))],
        ):
            return name
        case _:
            return ""


def other_literals(guard: p.Node) -> Iterator[str]:
    """The literals with which the `elif`s behind a comparison go on, which are not asked for where it holds."""
    if not (isinstance(guard, p.If) and isinstance(guard.test, p.Compare)):
        return
    asked = p.render(guard.test.left)
    following = guard.orelse
    while len(following) == 1:
        match following[0]:
            case p.If(
                test=p.Compare(left=left, rest=(("==", p.Const(value=str() as literal)),)),
                orelse=following,
            ) if p.render(left) == asked:
                yield literal
            case _:
                return


def giving_guards(body: tuple[p.Stmt, ...]) -> Iterator[p.If]:
    """The guards at the end of a function that each return a value, with nothing behind them but a `raise`."""
    for statement in reversed(body):
        if isinstance(statement, p.Raise):
            continue
        guards = [statement] if isinstance(statement, p.If) else []
        for guard in guards:
            guards += [s for s in guard.orelse if isinstance(s, p.If)]
            ends = guard.orelse[-1:]
            if not _returns(guard.body) or not all(isinstance(s, p.If | p.Raise) for s in ends):
                return
        if not guards:
            return
        yield from guards


def _returns(block: tuple[p.Stmt, ...]) -> bool:
    match block:
        case (*_, p.Return(value=value)):
            return value is not None and not isinstance(value, p.Const)
        case _:
            return False


def divides_by_steps(guard: p.If) -> bool:
    """True for a guard over a division by what reads like the accumulation steps."""
    for node in p.walk(guard.body, into_functions=False):
        match node:
            case p.Augment(op="/", value=by) | p.Binary(op="/", right=by):
                if names.is_steps(p.dotted(by).rpartition(".")[2]):
                    return True
            case _:
                pass
    return False


def makes_a_known_loss(block: tuple[p.Stmt, ...]) -> bool:
    """True where one of torch's losses is built and kept under a name."""
    return any(
        isinstance(s, p.Assign)
        and isinstance(s.value, p.Call)
        and p.dotted(s.value.func).rpartition(".")[2] in frameworks.CRITERIA
        for s in block
    )


def jump_of(block: tuple[p.Stmt, ...]) -> p.Jump | p.Return | None:
    """The jump that ends a block, if any."""
    return next((s for s in block if isinstance(s, p.Jump | p.Return)), None)


def carries_events(node: p.If, relevance: Relevance) -> bool:
    return any(s in relevance.eventful for s in (*node.body, *node.orelse))


def is_about_data(value: Unknown, node: p.If) -> bool:
    """True when a test is about a micro-batch or asks whether a tensor is a number: others are not tried both ways."""
    return (
        value.loss or _OF_NUMBERS.search(p.render(node.test)) is not None or leaves_out(value, node)
    )


def leaves_out(value: Unknown, node: p.Node) -> bool:
    """True for `if batch is None: continue`: the data of a micro-batch decides that the loop goes on with the next."""
    if not isinstance(node, p.If) or not value.batches:
        return False
    jump = jump_of(node.body)
    return isinstance(jump, p.Jump) and jump.kind == "continue"


def sets_a_flag(node: p.If) -> bool:
    """True for a guard behind which a name or an attribute becomes True or False."""
    return any(
        isinstance(s, p.Assign) and isinstance(s.value, p.Const) and isinstance(s.value.value, bool)
        for s in node.body
    )
