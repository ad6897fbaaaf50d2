"""Whether a file shows that labels are left out of the loss, so that their number differs between micro-batches."""

from __future__ import annotations

from accumlint.reading.ir import (
    Assign,
    Attr,
    Binary,
    Call,
    Compare,
    Const,
    Expr,
    Item,
    Name,
    Node,
    Sequence,
    Unary,
    While,
    dotted,
    render,
    walk,
)
from accumlint.reading.program import Program

_DEFAULT = "-100"
_FILLING = {"masked_fill", "masked_fill_", "fill_", "full", "full_like", "where", "pad", "ne", "eq"}


def leaves_labels_out(program: Program) -> bool:
    """True when the file or its data's pads, or writes or looks for the value that its losses ignore.

    An `ignore_index` alone tells nothing: many models name one and are trained on full rows.
    """
    nodes = [*program.nodes, *walk(program.data)]
    given = [
        argument.value
        for node in nodes
        if isinstance(node, Call)
        for argument in node.args
        if argument.keyword == "ignore_index"
    ]
    if any("pad" in render(value).lower() for value in given):
        return True
    ignored = {_DEFAULT, *(_text(value) for value in given)}
    return any(_tells(node, ignored) for node in nodes)


def _tells(node: Node, ignored: set[str]) -> bool:
    """True when a node pads, or handles one of the ignored values."""
    match node:
        case Call(func=func, args=args):
            last = dotted(func).rpartition(".")[2]
            if last in ("pad_sequence", "mask_tokens") or "collat" in last.lower():
                return True
            if any("pad" in a.keyword.lower() and _text(a.value) in ignored for a in args):
                return True
            named = {_text(a.value) for a in args if a.keyword != "ignore_index"} & ignored
            return any(last in _FILLING or not _is_number(text) for text in named)
        case While(test=test, body=body) if "len(" in render(test):
            return any(_pads_labels(n, ignored) for n in walk(body, into_functions=False))
        case Assign(targets=targets, value=value):
            return _text(value) in ignored and any(isinstance(t, Item) for t in targets)
        case Compare(left=left, rest=rest):
            sides = {_text(left), *(_text(side) for _, side in rest)} & ignored
            return any(text == _DEFAULT or not _is_number(text) for text in sides)
        case Binary(op="*", left=Sequence(items=items)):
            return any(_text(item) in ignored for item in items)
        case Attr(name="ignore_index", base=Call()):
            return True
        case _:
            return False


def _pads_labels(node: Node, ignored: set[str]) -> bool:
    """True for `label_ids.append(0)`, of a list that a loop makes as long as all others, where 0 is ignored."""
    match node:
        case Call(func=Attr(base=base, name="append"), args=[argument]):
            words = dotted(base).lower()
            labels = any(word in words for word in ("label", "target", "tag"))
            return labels and _text(argument.value) in ignored
        case _:
            return False


def _text(value: Expr) -> str:
    """A number's or a name's text, "" for anything else."""
    match value:
        case Name() | Attr() | Const() | Unary(operand=Const()):
            return render(value)
        case _:
            return ""


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdigit()
