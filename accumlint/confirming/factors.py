"""Factors between gradients, their names, and what they are measured by."""

from __future__ import annotations

import math
from collections.abc import Sequence

# The name of the factor by which a mean over all elements is too small.
SHARE = "the share of elements that count"


def divided(factors: Sequence[Sequence[float]], size: int, steps: int, world: int) -> float | None:
    """What all summands of a loss are divided by for the sake of its window, 1 for nothing.

    That is its `size`, or the accumulation steps that the loop was told, or either times the number of ranks. None
    where it is not the same for all, or not known. `factors` are the constants that each summand is multiplied with.
    """
    sizes = {float(size), float(steps)} - {1.0}
    wanted = [n * times for times in (1, world) for n in sorted(sizes, reverse=True)]
    found = {
        next((n for n in wanted if any(abs(x * n - 1) < 1e-6 for x in products(own))), 1.0)
        for own in factors
    }
    return found.pop() if len(found) == 1 else None


def products(factors: Sequence[float]) -> set[float]:
    """The products of some of several numbers."""
    found = {1.0}
    for factor in factors[:10]:
        found |= {x * factor for x in found if x * factor}
    return found - {1.0} if 1.0 not in factors else found


def factor_of(
    scale: float,
    steps: int,
    world: int,
    targets: int,
    scaler: float,
    near: float = 1e-6,
    share: float = 1.0,
) -> str:
    """The name of a factor between the applied gradient and the large batch's, "" for one that has none."""
    k, w, n = float(steps), float(world), float(targets)
    named = {
        "1": 1.0, "K": k, "1/K": 1 / k, "1/K²": 1 / k**2, "W": w, "1/W": 1 / w, "K·W": k * w, "1/(K·W)": 1 / (k * w),
        "N": n, "N/K": n / k, "N/W": n / w, "N/(K·W)": n / (k * w),
        "the loss scale": scaler, "1/the loss scale": 1 / scaler,
        SHARE: share, f"1/{SHARE}": 1 / share if share else 0.0,
    }  # fmt: skip
    for name, value in named.items():
        if value and abs(scale - value) <= near * value:
            return name
    return ""


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    """The inner product, `nan` where a number is not finite."""
    products = [x * y for x, y in zip(a, b, strict=True)]
    # What is no number has no sum; `fsum` would refuse infinities of both signs.
    return math.fsum(products) if all(map(math.isfinite, products)) else math.nan


def norm(a: Sequence[float]) -> float:
    """The 2-norm."""
    return math.sqrt(dot(a, a))
