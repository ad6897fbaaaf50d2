"""What the names of a file are used as, wherever that stands in it."""

from __future__ import annotations

from collections.abc import Iterable

from accumlint.reading import ir as p
from accumlint.reading import names
from accumlint.reading.roles import NO_ROLES, Roles
from accumlint.reading.targets import filling

# Collators of transformers that pad labels with -100; and one that only sets it where tokens are padding.
_PADDING_LABELS = {
    "DataCollatorForSeq2Seq", "DataCollatorForTokenClassification", "mask_tokens", "torch_mask_tokens",
}  # fmt: skip
_FILLING_LABELS = {"DataCollatorForLanguageModeling"}


def receivers(nodes: Iterable[p.Node], roles: Roles = NO_ROLES) -> tuple[bool, bool]:
    """Is there `accumulate`, and is -100 (the label that losses ignore) written anywhere, or by what collates?"""
    accumulates = ignores = pads = fills = False
    for node in nodes:
        if isinstance(node, p.Call):
            pads |= any(a.keyword == "padding" and p.render(a.value) != "False" for a in node.args)
            last = p.dotted(node.func).rpartition(".")[2]
            ignores |= last in _PADDING_LABELS
            fills |= last in _FILLING_LABELS
        elif isinstance(node, p.Unary) and isinstance(node.operand, p.Const):
            ignores |= node.op == "-" and node.operand.value == 100
        elif isinstance(node, p.Attr):
            # `CrossEntropyLoss().ignore_index` is read for what shall be left out.
            ignores |= node.name == "ignore_index" and isinstance(node.base, p.Call)
            gives = node.name == "accumulate"
            accumulates |= gives and roles.of(last_name(node.base)) == "accelerator"
    return accumulates, ignores or (fills and pads)


def clears(body: Iterable[p.Stmt]) -> bool:
    """True for statements that clear gradients themselves."""
    calls = (node for node in p.walk(tuple(body)) if isinstance(node, p.Call))
    return any(names.is_clearing(p.dotted(call.func).rpartition(".")[2]) for call in calls)


def bounds(nodes: Iterable[p.Node]) -> set[str]:
    """The last names in the ends of ranges."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, p.Call) and p.dotted(node.func) in ("range", "trange"):
            ends = [a.value for a in node.args if not a.keyword][:2][-1:]
            for part in (n for end in ends for n in p.walk_expr(end)):
                match part:
                    case p.Name() | p.Attr():
                        found.add(last_name(part))
                    case p.Item(index=p.Const(value=str(setting))):
                        found.add(setting)
                    case _:
                        pass
    return found


def marks(nodes: Iterable[p.Node], roles: Roles) -> bool:
    """True when something like `targets[mask == 0] = -1` is written, or rows are padded with -1 (`pad_id=-1`).

    The same where labels that are no -1 are counted: `(targets >= 0).sum()`.
    """
    for node in nodes:
        match node:
            case p.Call(
                func=p.Attr(
                    base=p.Compare(left=p.Name() | p.Attr() as left, rest=[(op, limit)]), name="sum"
                )
            ) if (op, p.render(limit)) in (("!=", "-1"), (">=", "0"), (">", "-1")):
                if roles.are_labels(last_name(left)):
                    return True
            case p.Assign(targets=[p.Item()], value=p.Unary(op="-", operand=p.Const(value=1))):
                return True
            case p.Binary(left=p.Call()) if filling(node.at) == "-1":
                return True
            case p.Call(func=func, args=args):
                fills = isinstance(func, p.Attr) and func.name.startswith("masked_fill")
                if any((fills or "pad" in a.keyword) and p.render(a.value) == "-1" for a in args):
                    return True
            case _:
                pass
    return False


def last_name(target: p.Expr) -> str:
    """The last name of a target: `n` of `self.n` and of `state["n"]`."""
    if isinstance(target, p.Item) and isinstance(target.index, p.Const):
        return str(target.index.value)
    return p.dotted(target).rpartition(".")[2]


def unwrapped(receiver: p.Expr) -> p.Expr:
    """`model` for `accelerator.unwrap_model(model)`."""
    if isinstance(receiver, p.Call) and p.dotted(receiver.func).endswith("unwrap_model"):
        return receiver.positional(0) or receiver
    return receiver
