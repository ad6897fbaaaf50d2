"""Names the factor between an applied gradient and the large batch's: K, W, N and their quotients."""

from __future__ import annotations

import math
from collections.abc import Sequence

# The factor of a mean over all elements where only some of them are targets.
SHARE = "the share of elements that count"


def divided(factors: Sequence[Sequence[float]], size: int, steps: int, world: int) -> float | None:
    """The divisor that all terms of a loss share because of its window, 1 for none.

    Candidates are the window's `size`, the accumulation `steps` and their products with the number of ranks. None where
    the terms have different divisors. `factors` are the constants that each term is multiplied by.
    """
    sizes = {float(size), float(steps)} - {1.0}
    wanted = [n * times for times in (1, world) for n in sorted(sizes, reverse=True)]
    found = {
        next((n for n in wanted if any(abs(x * n - 1) < 1e-6 for x in products(constants))), 1.0)
        for constants in factors
    }
    return found.pop() if len(found) == 1 else None


def products(factors: Sequence[float]) -> set[float]:
    """The products of all subsets of several numbers."""
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
    """The name of a factor between the applied gradient and the large batch's, "" for an unnamed one."""
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
    # `fsum` raises for infinities of both signs.
    return math.fsum(products) if all(map(math.isfinite, products)) else math.nan


def norm(a: Sequence[float]) -> float:
    """The 2-norm."""
    return math.sqrt(dot(a, a))
