"""Functions of numbers, on numbers: Python's own and `math`'s."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from accumlint.tracing.values import Number, Object, Unknown, Value


def numeric(name: str, args: list[Value]) -> Value:
    """What a function of numbers gives; unknown where it refuses its arguments."""
    numbers = [a for a in args if isinstance(a, Number)]
    if numbers and len(numbers) == len(args):
        try:
            found = NUMERIC[name](*numbers)
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


def _power(base: int, exponent: int, *modulus: int) -> Number | complex | None:
    return pow(base, exponent, *modulus) if modulus else power(base, exponent)


def _rounded(number: Number, *digits: Any) -> Number | None:
    known = all(isinstance(d, int) and abs(d) <= 64 for d in digits)
    return round(number, *digits) if known else None


def _logarithm(*given: Number) -> float:
    # An integer stays one: its logarithm is known where it is too long for a float.
    return math.log(*(float(n) if isinstance(n, Fraction) else n for n in given))


def word(value: Value) -> str:
    """How a value is written in the text of another: a number or a name, dots for all else."""
    if isinstance(value, Unknown | Object):
        return value.text
    return str(value) if isinstance(value, Number) else "…"


# Functions of numbers, by name. Called with what they do not take, they raise as they do.
NUMERIC: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "ceil": math.ceil,
    "float": float,
    "floor": math.floor,
    "gcd": math.gcd,
    "int": int,
    "log": _logarithm,
    "max": max,
    "min": min,
    "pow": _power,
    "round": _rounded,
    "sqrt": math.sqrt,
    "trunc": math.trunc,
}
