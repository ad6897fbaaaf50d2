"""Functions of numbers, on numbers: Python's own and `math`'s."""

from __future__ import annotations

import math
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
            found = _worked_out(name, numbers)
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


def _worked_out(name: str, numbers: list[Number]) -> Number | complex | None:
    match name, numbers:
        case "max", [_, _, *_]:
            return max(numbers)
        case "min", [_, _, *_]:
            return min(numbers)
        case "int", [number]:
            return int(number)
        case "float", [number]:
            return float(number)
        case "abs", [number]:
            return abs(number)
        case "round", [number]:
            return round(number)
        case "round", [number, int() as digits]:
            return round(number, digits) if abs(digits) <= 64 else None
        case "ceil", [number]:
            return math.ceil(number)
        case "floor", [number]:
            return math.floor(number)
        case "trunc", [number]:
            return math.trunc(number)
        case "sqrt", [number]:
            return math.sqrt(number)
        case "log", [number]:
            return math.log(_plain(number))
        case "log", [number, base]:
            return math.log(_plain(number), _plain(base))
        case "pow", [base, exponent]:
            return power(base, exponent)
        case "pow", [int() as base, int() as exponent, int() as modulus]:
            return pow(base, exponent, modulus)
        case "gcd", _:
            whole = [n for n in numbers if isinstance(n, int)]
            return math.gcd(*whole) if len(whole) == len(numbers) else None
        case _:
            return None


def _plain(number: Number) -> int | float:
    # An integer stays one: its logarithm is known where it is too long for a float.
    return float(number) if isinstance(number, Fraction) else number


def word(value: Value) -> str:
    """How a value is written in the text of another: a number or a name, dots for all else."""
    if isinstance(value, Unknown | Object):
        return value.text
    return str(value) if isinstance(value, Number) else "…"
