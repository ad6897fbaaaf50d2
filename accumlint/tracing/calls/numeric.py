"""Functions of numbers, on numbers: Python's own and `math`'s."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

from accumlint.tracing.values import Number, Object, Unknown, Value

NUMERIC = frozenset(
    {"ceil", "floor", "sqrt", "abs", "round", "max", "min", "log", "pow", "gcd", "trunc"}
)


def numeric(name: str, args: list[Value]) -> Value:
    """What a function of numbers gives; unknown where it refuses its arguments."""
    numbers = [a for a in args if isinstance(a, Number)]
    if numbers and len(numbers) == len(args):
        try:
            found = _FUNCTIONS[name](*numbers)
        except (ArithmeticError, ValueError, TypeError):
            found = None
        if isinstance(found, Number) and is_handy(found):
            return found
    return Unknown(f"{name}({', '.join(word(a) for a in args)})")


def is_handy(number: Number) -> bool:
    """False for numbers that are no size, count or rate of any training, and that would only keep us busy."""
    match number:
        case int():
            return number.bit_length() < 64
        case Fraction():
            return number.denominator.bit_length() + number.numerator.bit_length() < 1024
        case _:
            return math.isfinite(number)


def power(base: Number, exponent: Number) -> Number | complex | None:
    """`base ** exponent`; None where the result is no handy number."""
    return base**exponent if abs(exponent) <= 64 and abs(base) <= 1e9 else None


def _rounded(number: Number, digits: int | None = None) -> Number | None:
    return round(number, digits) if digits is None or abs(digits) <= 64 else None


_FUNCTIONS: Mapping[str, Callable[..., object]] = {
    "max": max, "min": min, "int": int, "abs": abs, "round": _rounded, "ceil": math.ceil,
    "floor": math.floor, "trunc": math.trunc, "sqrt": math.sqrt, "log": math.log, "pow": power, "gcd": math.gcd,
}  # fmt: skip


def word(value: Value) -> str:
    """How a value is written in the text of another: a number or a name, dots for all else."""
    if isinstance(value, Unknown | Object):
        return value.text
    return str(value) if isinstance(value, Number) else "…"
