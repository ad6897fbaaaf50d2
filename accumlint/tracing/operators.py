"""Python's operators as far as their values tell: arithmetic, comparisons, and the text of those that stay open."""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction
from typing import TypeAlias

from accumlint.reading import ir as p
from accumlint.reading import names
from accumlint.tracing.calls.numeric import is_handy, power
from accumlint.tracing.gradients.tensors import derived
from accumlint.tracing.values import MOST, Batch, Counted, Number, Object, Unknown, Value

ORDERED: dict[str, Callable[[Number, Number], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}
# Whether a comparison of a loop's number with the number of its rounds holds in the last of them.
AT_THE_END = {"==": True, ">=": True, "!=": False, "<": False}
_Choice: TypeAlias = Callable[[str], str | None]
_POSITIVE = {"!=": "==", ">=": "<", "<=": ">"}


def on_numbers(op: str, left: Number, right: Number) -> Value:
    """`left op right` as Python has it, division exactly; unknown where that is no handy number."""
    if op == "/" and not isinstance(left, float) and not isinstance(right, float) and right:
        found = Fraction(left) / Fraction(right)
        if is_handy(found):
            return int(found) if found.denominator == 1 else found
    try:
        result = _worked_out(op, left, right)
    except (ArithmeticError, ValueError, TypeError):
        result = None
    # A root may be complex.
    is_known = isinstance(result, Number) and is_handy(result)
    return result if is_known else Unknown(f"{left} {op} {right}")


def _worked_out(op: str, left: Number, right: Number) -> Number | complex | None:
    match op, left, right:
        case "+", _, _:
            return left + right
        case "-", _, _:
            return left - right
        case "*", _, _:
            return left * right
        case "/", _, _:
            return left / right
        case "//", _, _:
            return left // right
        case "%", _, _:
            return left % right
        case "**", _, _:
            return power(left, right)
        case "&", int(), int():
            return left & right
        case "|", int(), int():
            return left | right
        case "^", int(), int():
            return left ^ right
        case "<<", int(), int() if right <= 64:
            return left << right
        case ">>", int(), int():
            return left >> right
        case _:
            return None


def on_sequences(
    op: str, left: list[Value] | tuple[Value, ...] | str, right: Value, node: p.Node
) -> Value:
    """`left op right` with a list, a tuple or a text in front."""
    match op, left, right:
        case _, _, list() | tuple() | str() if len(left) + len(right) > MOST:
            pass
        case "+", list(), list():
            return [*left, *right]
        case "+", tuple(), tuple():
            return (*left, *right)
        case "+", tuple(), Unknown():
            return _in_front(left, right, node)
        case "+", str(), str():
            return left + right
        case "*", list(), int() if len(left) * right <= MOST:
            return left * right
        case _:
            pass
    return Unknown(p.text_of(node))


def _in_front(first: tuple[Value, ...], rest: Unknown, node: p.Node) -> Unknown:
    """`(loss,) + outputs[2:]`: what stands in front of a tuple that is not known."""
    found = derived(p.text_of(node), *first, rest, node=node)
    found.attributes.update({f"[{i}]": value for i, value in enumerate(first)})
    return found


def text_of(value: Value, expression: p.Expr) -> str:
    """How a value is named in decisions: by itself where it is unknown, else as written."""
    if isinstance(value, Unknown | Object):
        return value.text
    return repr(value) if isinstance(value, str) else p.render(expression)


def data_of(value: Value) -> tuple[frozenset[Batch], frozenset[str]]:
    """The data that a value depends on, and the networks that its gradient reaches."""
    if isinstance(value, Unknown):
        return value.batches, value.networks
    return frozenset(), frozenset()


def known(
    op: str, left: Value, right: Value, shown: p.Expr, other: p.Expr, choice: _Choice
) -> bool | Unknown | None:
    """What two values tell by themselves; None where more has to be asked.

    `choice` tells which literal an unknown was taken to be.
    """
    if isinstance(left, Number) and isinstance(right, Number) and op in ORDERED:
        return ORDERED[op](left, right)
    if op in ("is", "is not"):
        return _identical(left, right, shown, other, op == "is")
    if op in ("in", "not in"):
        return _contained(left, right, shown, other, op == "in", choice)
    plain = (str, bytes, bool, int, float, type(None), tuple, list)
    if isinstance(left, plain) and isinstance(right, plain) and op in ("==", "!="):
        if not _holds_unknown(left) and not _holds_unknown(right):
            return (left == right) == (op == "==")
    return None


def _open(text: str, positive: bool, of: Value = None) -> Unknown:
    found = Unknown(text if positive else f"not {text}")
    found.batches, found.networks = data_of(of)
    return found


def _identical(
    left: Value, right: Value, shown: p.Expr, other: p.Expr, positive: bool
) -> bool | Unknown:
    match left, right:
        case (Unknown() as value, None) | (None, Unknown() as value) if not value.tensor:
            return _open(f"{value.text} is None", positive)
        case (Unknown() as value, None) | (None, Unknown() as value) if not value.networks:
            # A loader seldom gives None.
            found = _open(f"{value.text} is None", positive, value)
            found.hint = not positive
            return found
        case (None, _) | (_, None) | (bool(), bool()) | (Object(), Object()):
            return (left is right) == positive
        case Unknown(text=text), bool():
            return _open(text, positive == right)
        case _:
            return _open(f"{text_of(left, shown)} is {text_of(right, other)}", positive)


def _contained(
    left: Value, right: Value, shown: p.Expr, other: p.Expr, positive: bool, choice: _Choice
) -> bool | Unknown:
    if isinstance(right, dict | list | tuple | set) and not isinstance(left, Unknown):
        if not any(isinstance(x, Unknown) for x in right):
            try:
                return (left in right) == positive
            except TypeError:
                pass
    if isinstance(right, str) and isinstance(left, str):
        return (left in right) == positive
    if isinstance(right, list | tuple) and isinstance(left, Unknown) and not left.tensor:
        literals = [x for x in right if isinstance(x, str)]
        if literals and (chosen := choice(left.text)) is not None:
            return (chosen in literals) == positive
    return _open(f"{text_of(left, shown)} in {text_of(right, other)}", positive, left)


def _holds_unknown(value: Value) -> bool:
    if isinstance(value, tuple | list):
        return any(_holds_unknown(v) or isinstance(v, Unknown | Object) for v in value)
    return False


def skipped(op: str, left: Value, right: Value) -> Unknown | None:
    """Two scales of one scaler compared: it falls when a step was left out."""
    if not isinstance(left, Unknown) or not isinstance(right, Unknown):
        return None
    if left.scale is None or right.scale is None or left.scale[0] is not right.scale[0]:
        return None
    if left.scale[1] > right.scale[1]:
        return skipped(MIRRORED[op], right, left) if op in MIRRORED else None
    key = names.skipped_step(left.scale[0].text)
    text = {">": key, "!=": key, "<=": f"not {key}", "==": f"not {key}"}.get(op)
    return Unknown(text) if text is not None and left.scale[1] < right.scale[1] else None


def undecided(op: str, left: Value, right: Value, shown: p.Expr, other: p.Expr) -> Unknown:
    """A comparison whose outcome is not known, with what tells which one is likely."""
    text, against = text_of(left, shown), text_of(right, other)
    batches, networks = data_of(left)
    more, further = data_of(right)
    if batches or more:
        # A comparison has data, and no graph.
        networks = further = frozenset[str]()
    # Negations are written one way, so that `!=` and `==` are one decision.
    negated = op in _POSITIVE
    found = _open(f"{text} {_POSITIVE.get(op, op)} {against}", not negated)
    found.batches, found.networks = batches | more, networks | further
    if isinstance(left, Unknown) and batches:
        if left.counted is not None and left.counted.kind == "some" and right == 0:
            # A mask leaves something in, but for few micro-batches.
            found.hint = op in (">", "!=") if op in (">", "!=", "==", "<=") else None
        found.counted = Counted("some", (left,))
    if not negated and op in ORDERED and isinstance(right, Number):
        # What is -1 is set only where a run is to be limited (`max_steps=-1`).
        if isinstance(left, Unknown) and isinstance(left.hint, int) and left.hint < 0:
            found.hint = ORDERED[op](left.hint, right)
    return found


def size_of_pieces(loop: p.Node | None) -> set[str]:
    """The names in what a loop over a batch's pieces goes on by: `rows` of `for start in range(0, end, rows)`."""
    taken = loop.iterable if isinstance(loop, p.For) else None
    while isinstance(taken, p.Call) and p.dotted(taken.func) != "range":
        # `enumerate(range(0, end, rows))`, with a bar around it or not.
        taken = taken.positional(0)
    match taken:
        case p.Call(func=func, args=[_, _, size]) if p.dotted(func) == "range":
            return {n.id for n in p.walk_expr(size.value) if isinstance(n, p.Name)}
        case _:
            return set()


def made_from(own: set[str], loop: p.For) -> set[str]:
    """The names that a loop's body binds to something made of its own number."""
    return {
        name
        for s in loop.body
        if isinstance(s, p.Assign)
        and any(isinstance(n, p.Name) and n.id in own for n in p.walk_expr(s.value))
        for target in s.targets
        for name in p.target_names(target)
    }
