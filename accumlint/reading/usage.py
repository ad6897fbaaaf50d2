"""What the names of a file are used as, wherever that stands in it."""

from __future__ import annotations

from collections.abc import Iterable

from accumlint.reading import names
from accumlint.reading import parts as p

# Collators of transformers that pad labels with -100; and one that only sets it where tokens are padding.
_PADDING_LABELS = {
    "DataCollatorForSeq2Seq", "DataCollatorForTokenClassification", "mask_tokens", "torch_mask_tokens",
}  # fmt: skip
_FILLING_LABELS = {"DataCollatorForLanguageModeling"}


def receivers(
    nodes: Iterable[p.Node],
) -> tuple[frozenset[str], frozenset[str], bool, bool]:
    """The last names of receivers used like a module, like an optimizer; is there `accumulate`, and is -100 (the label
    that losses ignore) written anywhere, or by what collates?"""
    models: set[str] = set()
    cleared: set[str] = set()
    stepped: set[str] = set()
    accumulates = ignores = pads = fills = False
    for node in nodes:
        if isinstance(node, p.Call):
            pads |= any(a.keyword == "padding" and p.render(a.value) != "False" for a in node.args)
            last = p.dotted(node.func).rpartition(".")[2]
            ignores |= last in _PADDING_LABELS
            fills |= last in _FILLING_LABELS
            if isinstance(node.func, p.Attr) and last in ("parameters", "named_parameters"):
                # Settings may hold something called so, and give it without a call.
                models.add(p.dotted(node.func.base).rpartition(".")[2])
        if isinstance(node, p.Unary) and isinstance(node.operand, p.Const):
            ignores |= node.op == "-" and node.operand.value == 100
        if not isinstance(node, p.Attr):
            continue
        # `CrossEntropyLoss().ignore_index` is asked for what shall be left out.
        ignores |= node.name == "ignore_index" and isinstance(node.base, p.Call)
        receiver = p.dotted(node.base).rpartition(".")[2]
        accumulates |= node.name == "accumulate" and "accelerator" in receiver.lower()
        if node.name in ("no_sync", "require_backward_grad_sync"):
            models.add(receiver)
        elif names.is_clearing(node.name) or node.name == "param_groups":
            cleared.add(receiver)
            if isinstance(node.base, p.Attr):
                # What holds an optimizer that is cleared, and steps itself, steps it.
                holder = p.dotted(node.base.base).rpartition(".")[2]
                cleared |= {holder} if "optim" in holder.lower() else set[str]()
        elif node.name == "step":
            stepped.add(receiver)
    ignores |= fills and pads
    return frozenset(models), frozenset(cleared & stepped), accumulates, ignores


def clears(body: Iterable[p.Stmt]) -> bool:
    """True for statements that clear gradients themselves."""
    calls = (node for node in p.walk(tuple(body)) if isinstance(node, p.Call))
    return any(names.is_clearing(p.dotted(call.func).rpartition(".")[2]) for call in calls)


def window_names(
    nodes: Iterable[p.Node], stepping: set[p.Node], backwards: set[p.Node]
) -> set[str]:
    """The window's size by other names.

    It is what others are told as the steps (`Accelerator(gradient_accumulation_steps=k)`), and what stands to the right
    of `%` in a test which guards a step but no backward.
    """
    found: set[str] = set()
    summed = {p.dotted(n.target): n for n in nodes if isinstance(n, p.Augment) and n.op == "+"}
    for node in nodes:
        if isinstance(node, p.Call):
            told = (a.value for a in node.args if a.keyword and names.is_steps(a.keyword))
            found |= {p.dotted(v) for v in told if isinstance(v, p.Name | p.Attr)} - summed.keys()
        if not isinstance(node, p.If) or node not in stepping:
            continue
        inside = [s for s in node.body if s in stepping]
        if not inside:
            continue
        if any(s in backwards for s in node.body) and not _applies_a_sum(node, summed):
            continue
        for part in p.walk_expr(node.test):
            if (
                isinstance(part, p.Binary)
                and part.op == "%"
                and isinstance(part.right, p.Name | p.Attr)
            ):
                found.add(p.dotted(part.right))
        match node.test:
            case p.Compare(
                left=p.Name() | p.Attr() as count,
                rest=[(("==" | ">="), (p.Name() | p.Attr()) as limit)],
            ) if not names.is_epoch(p.dotted(count).rpartition(".")[2]):
                found.add(p.dotted(limit))
            case p.Compare(
                left=p.Binary() as since, rest=[(("==" | ">="), (p.Name() | p.Attr()) as limit)]
            ) if _is_difference(since):
                found.add(p.dotted(limit))
            case _:
                pass
    return _uncapped(nodes, found)


def _applies_a_sum(guard: p.If, summed: dict[str, p.Augment]) -> bool:
    """True where the loss that goes backward under a guard was added up before it."""
    held = list(p.walk(guard.body))
    for call in (
        n for n in held if isinstance(n, p.Call) and p.dotted(n.func).endswith(".backward")
    ):
        names_in = (p.dotted(n) for n in p.walk_expr(call) if isinstance(n, p.Name | p.Attr))
        if any(name in summed and summed[name] not in held for name in names_in):
            return True
    return False


def _uncapped(nodes: Iterable[p.Node], windows: set[str]) -> set[str]:
    """With the full size for one that is the smaller of that and of what remains: `min(size, total - start)`."""
    for node in nodes:
        match node:
            case p.Assign(targets=[target], value=p.Call(func=p.Name(id="min"), args=args)):
                if p.dotted(target) in windows:
                    full = [p.dotted(a.value) for a in args if isinstance(a.value, p.Name | p.Attr)]
                    windows = {*full, *windows} - {p.dotted(target)}
            case _:
                pass
    return windows


def _is_difference(counted: p.Expr) -> bool:
    """True for `i - start` and `i - start + 1`: what was counted since a window began."""
    if isinstance(counted, p.Binary) and counted.op == "+" and isinstance(counted.right, p.Const):
        counted = counted.left
    match counted:
        case p.Binary(op="-", left=p.Name() | p.Attr(), right=p.Name() | p.Attr()):
            return True
        case _:
            return False


def bounds(nodes: Iterable[p.Node]) -> set[str]:
    """The last names in the ends of ranges."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, p.Call) and p.dotted(node.func) in ("range", "trange"):
            ends = [a.value for a in node.args if not a.keyword][:2][-1:]
            found |= {
                last_name(n)
                for end in ends
                for n in p.walk_expr(end)
                if isinstance(n, p.Name | p.Attr)
            }
    return found


def marks(nodes: Iterable[p.Node]) -> bool:
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
                if names.are_labels(p.dotted(left)):
                    return True
            case p.Assign(targets=[p.Item()], value=p.Unary(op="-", operand=p.Const(value=1))):
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
