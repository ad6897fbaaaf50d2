"""The rewriting of a window to token weights: sums go backward, and the gradients are divided by what was counted."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import After, Before, Delete, Insert, Replace, Verb
from accumlint.reading.ir import (
    Assign,
    Attr,
    Binary,
    Call,
    Expr,
    For,
    Node,
    While,
    dotted,
    walk_expr,
)
from accumlint.reading.program import Program
from accumlint.rule import Fix, unsafe
from accumlint.tracing.trace import Clear, Clip, Contribution, Trace, Window

from ._calls import receiver_of

_FLATTENING = ("view", "reshape", "flatten")
_KNOWN = {"ignore_index", "input", "target"}
_COUNT = "tokens"


def token_sums(trace: Trace, window: Window) -> Iterator[Fix]:
    """Sums the losses, counts their targets with every backward, and divides the gradients before the update.

    The count is reset wherever the gradients are cleared: it counts what is in `.grad`, partial windows included.
    Nothing is offered unless one function holds all of it.
    """
    program, first = trace.program, window.contributions[0]
    loss, backward = first.made, first.backward.node
    clears = list(dict.fromkeys(e.node for e in trace.main.of(Clear)))
    if not isinstance(loss, Call) or not clears or not _is_plain(window, loss):
        return
    targets = loss.positional(1) or loss.keyword("target")
    optimizer = receiver_of(window.step.node)
    division = _division(program, loss, backward)
    update = next((e.node for e in window.of(Clip)), window.step.node)
    places = (loss, backward, update, window.step.node, *clears)
    if targets is None or division is None or not optimizer or _COUNT in program.words:
        return
    if len({program.function_around(place) for place in places}) > 1:
        return
    ignored = loss.keyword("ignore_index")
    left_out = program.code(ignored) if ignored is not None else "-100"
    counted = f"({program.code(_unflattened(targets))} != {left_out}).sum()"
    summed = program.code(loss)[:-1].rstrip(", ") + ', reduction="sum")'
    verbs: list[Verb] = [
        Insert(f"{_COUNT} += {counted}", Before(backward)),
        Insert(_divided(first, optimizer), Before(update)),
        *(Insert(f"{_COUNT} = 0", After(clear)) for clear in clears),
    ]
    if division.left is loss:
        verbs.append(Replace(division, summed))
    else:
        verbs += [Replace(loss, summed), _undivided(program, division)]
    loops = [n for n in program.above(backward) if isinstance(n, For | While)]
    if loops and not any(_leads_to(program, clear, backward) for clear in clears):
        verbs.append(Insert(f"{_COUNT} = 0", Before(loops[-1])))
    yield unsafe("Sum the losses and divide the gradients by the tokens of the window", *verbs)


def _is_plain(window: Window, loss: Call) -> bool:
    """True where one functional cross-entropy per micro-batch makes the gradient, by plain or by DDP's backward."""
    first = window.contributions[0]
    same = all(
        c.made is loss and c.backward.node is first.backward.node and c.network == first.network
        for c in window.contributions
    )
    whole = len(window.contributions) == len(window.microbatches)
    keywords = {a.keyword for a in loss.args if a.keyword}
    simple = keywords <= _KNOWN and not any(a.star for a in loss.args)
    positional = sum(not a.keyword for a in loss.args)
    functional = dotted(loss.func).endswith("cross_entropy") and positional <= 2
    local = first.wrapper in ("", "ddp") and not first.over and not first.ranks
    unscaled = first.backward.via == "tensor" and not first.scaled and first.forward is not None
    return same and whole and simple and functional and local and unscaled


def _division(program: Program, loss: Call, backward: Node) -> Binary | None:
    """The only division of the loss on its way to the backward."""
    parent = next(program.above(loss), None)
    if isinstance(parent, Binary) and parent.op == "/" and parent.left is loss:
        return parent
    names = {dotted(t) for t in parent.targets} if isinstance(parent, Assign) else set[str]()
    found = [
        n
        for n in program.of(Binary)
        if n.op == "/" and dotted(n.left) in names and _goes_backward(program, n, backward, names)
    ]
    return found[0] if len(found) == 1 else None


def _goes_backward(program: Program, node: Binary, backward: Node, names: set[str]) -> bool:
    """True for what stands in the backward's own statement, or is bound to the loss's name again."""
    holder = next(program.above(node), None)
    if isinstance(holder, Assign):
        return {dotted(t) for t in holder.targets} == names
    return isinstance(backward, Call) and node in set(walk_expr(backward))


def _undivided(program: Program, division: Binary) -> Verb:
    """The loss without its division, which is all that `loss = loss / n` says."""
    rebinds = isinstance(next(program.above(division), None), Assign)
    return (
        Delete(division, bound=True) if rebinds else Replace(division, program.code(division.left))
    )


def _unflattened(targets: Expr) -> Expr:
    """What was flattened: its elements are the same."""
    if isinstance(targets, Call) and isinstance(targets.func, Attr):
        if targets.func.name in _FLATTENING:
            return targets.func.base
    return targets


def _divided(first: Contribution, optimizer: str) -> str:
    """The division of all gradients by the count, of all ranks where DDP has averaged them."""
    lines = [
        f"for group in {optimizer}.param_groups:",
        '    for parameter in group["params"]:',
        "        if parameter.grad is not None:",
    ]
    if first.wrapper != "ddp":
        return "\n".join([*lines, f"            parameter.grad /= {_COUNT}"])
    world = "torch.distributed.get_world_size()"
    reduced = f"torch.distributed.all_reduce({_COUNT})"
    return "\n".join([reduced, *lines, f"            parameter.grad *= {world} / {_COUNT}"])


def _leads_to(program: Program, clear: Node, backward: Node) -> bool:
    """True for a clearing that every path to the backward comes through first."""
    around = set(program.above(backward))
    held = list(program.above(clear))
    before = program.place(clear).line < program.place(backward).line
    return before and all(n in around for n in held[1:])
