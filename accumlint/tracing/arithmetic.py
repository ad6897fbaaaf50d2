"""Arithmetic operators on what is known: exact on numbers, element by element on sequences."""

from __future__ import annotations

from fractions import Fraction

from accumlint.reading import ir as p
from accumlint.tracing.calls.numeric import is_handy, power
from accumlint.tracing.gradients.tensors import derived
from accumlint.tracing.values import MOST, Number, Unknown, Value


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
    return Unknown(p.shown(node))


def _in_front(first: tuple[Value, ...], rest: Unknown, node: p.Node) -> Unknown:
    """`(loss,) + outputs[2:]`: what stands in front of a tuple that is not known."""
    found = derived(p.shown(node), *first, rest, node=node)
    for name, value in rest.attributes.items():
        if name[1:-1].isdigit():
            found.attributes[f"[{int(name[1:-1]) + len(first)}]"] = value
    found.attributes.update({f"[{i}]": value for i, value in enumerate(first)})
    return found
