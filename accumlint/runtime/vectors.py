"""Vector arithmetic for sampled gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from accumlint.runtime.records import Vector


def norm(vector: Vector) -> float:
    return math.sqrt(sum(x * x for x in vector))


def is_nothing(vector: Vector | None) -> bool:
    """True for a gradient that is absent or zero."""
    return vector is None or not any(vector)


def is_finite(vector: Vector) -> bool:
    return all(math.isfinite(x) for x in vector)


def added(vectors: Iterable[Vector]) -> Vector:
    """The sum of vectors of one length."""
    return [math.fsum(column) for column in zip(*vectors, strict=True)]


def minus(one: Vector, other: Vector) -> Vector:
    return [a - b for a, b in zip(one, other, strict=True)]


def distance(one: Vector, other: Vector) -> float:
    """The distance of two vectors, relative to the longer one; 0 for two zeros."""
    largest = max(norm(one), norm(other))
    return norm(minus(one, other)) / largest if largest else 0.0


def fit(one: Vector, other: Vector) -> tuple[float, float]:
    """The factor by which `other` is closest to `one`, and the remaining distance, relative to `one`."""
    square = sum(b * b for b in other)
    length = norm(one)
    if not square or not length:
        return 0.0, 1.0
    factor = sum(a * b for a, b in zip(one, other, strict=True)) / square
    rest = [a - factor * b for a, b in zip(one, other, strict=True)]
    return factor, norm(rest) / length


def spread(vectors: Sequence[Vector]) -> float:
    """The largest distance of a vector from the first."""
    return max((distance(vector, vectors[0]) for vector in vectors[1:]), default=0.0)
