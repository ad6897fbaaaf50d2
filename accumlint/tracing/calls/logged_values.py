"""What a call that prints or logs shows: the numbers in its arguments, in texts and tables too."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.reading import ir as p

# What changes nothing of what it is given.
_PURE = frozenset(
    {"item", "detach", "cpu", "mean", "float", "numpy", "tolist", "len", "max", "min", "int", "abs"}
)


def numbers_shown(node: p.Call) -> Iterator[p.Expr]:
    """The numbers in the arguments of a call: those in texts and tables, too."""
    waiting: list[p.Expr] = [argument.value for argument in node.args]
    while waiting:
        match waiting.pop():
            case p.Text(parts=parts):
                waiting.extend(parts)
            case p.Table(items=items):
                waiting.extend(value for _, value in items)
            case p.Sequence(items=items):
                waiting.extend(items)
            case p.Call(func=p.Attr(base=p.Const(value=str()), name="format"), args=args):
                waiting.extend(argument.value for argument in args)
            case p.Binary(op="%", left=p.Const(value=str()), right=right):
                waiting.append(right)
            case p.Binary(op="+", left=left, right=right) if _is_text(left) or _is_text(right):
                waiting += left, right
            case p.Call(func=p.Name(id="str" | "round"), args=[number, *_]):
                waiting.append(number.value)
            case expression:
                yield expression


def _is_text(expression: p.Expr) -> bool:
    """True for what is a text wherever it stands: the parts of a longer one that `+` puts together."""
    match expression:
        case p.Text() | p.Const(value=str()) | p.Call(func=p.Name(id="str")):
            return True
        case p.Call(func=p.Attr(base=p.Const(value=str()), name="format")):
            return True
        case p.Binary(op="%", left=left):
            return _is_text(left)
        case p.Binary(op="+", left=left, right=right):
            return _is_text(left) or _is_text(right)
        case _:
            return False


def is_plain(expression: p.Expr) -> bool:
    """True for a number that is only looked at: nothing is called that may do anything."""
    calls = (n.func for n in p.walk_expr(expression) if isinstance(n, p.Call))
    return all(p.dotted(f).rpartition(".")[2] in _PURE for f in calls)
