"""Logistic regression with signs and a prior, cross-validated by groups of cases; needs scipy."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from statistics import fmean
from typing import Any, TypeAlias

Weights: TypeAlias = Mapping[str, float]
# A row that fewer groups show keeps the weight of the prior.
FEWEST = 3
# The penalties on the distance from the prior that are tried.
RIDGES = (0.3, 1.0, 3.0, 10.0)
FOLDS, INNER = 10, 4
_SLOPE = "slope"


@dataclass(frozen=True)
class Case:
    """What is seen of a case, and whether it is positive; the cases of one group weigh 1 together."""

    group: str
    positive: bool
    keys: frozenset[str]


@dataclass(frozen=True)
class Curve:
    """How likely a score makes it that a case is positive."""

    intercept: float
    slope: float

    def chance(self, score: float) -> float:
        return 1 / (1 + math.exp(-(self.intercept + self.slope * score)))

    @property
    def even(self) -> float:
        """The score at which a case is as likely positive as not."""
        return -self.intercept / self.slope


@dataclass(frozen=True)
class _Row:
    """A case of the regression: its values, what is added to them, how it came out and what it counts."""

    values: Weights
    offset: float
    positive: bool
    share: float


Learner: TypeAlias = Callable[[Sequence[Case]], Weights]


def score(weights: Weights, keys: frozenset[str]) -> float:
    """The sum of the weights of what is seen."""
    return sum(weights[key] for key in sorted(keys))


def shown_by(cases: Sequence[Case]) -> Counter[str]:
    """The number of groups that show each row."""
    return Counter(key for key, _ in {(key, case.group) for case in cases for key in case.keys})


def calibrated(cases: Sequence[Case], weights: Weights) -> Curve:
    """The curve of the scores that some weights give the cases."""
    rows = [
        _Row({_SLOPE: score(weights, case.keys)}, 0, case.positive, share)
        for case, share in _shares(cases)
    ]
    intercept, found = _least(rows, {_SLOPE: 1.0}, {_SLOPE: (0.05, 5.0)}, 0.0)
    return Curve(intercept, found[_SLOPE])


def fitted(cases: Sequence[Case], prior: Weights, ridge: float | None = None) -> Weights:
    """Weights in the unit of the prior, rounded to halves; without a ridge, the one that does best on groups left out.

    Each keeps the sign of its prior, so that rows of no weight keep none.
    """
    if ridge is None:
        ridge = min(RIDGES, key=lambda each: _left_out(cases, prior, each))
    slope = calibrated(cases, prior).slope
    shown = shown_by(cases)
    free = {row: slope * weight for row, weight in prior.items() if weight and shown[row] >= FEWEST}
    kept = {row: slope * weight for row, weight in prior.items() if row not in free}
    rows = [
        _Row(
            dict.fromkeys(case.keys & set(free), 1.0),
            score(kept, case.keys & set(kept)),
            case.positive,
            share,
        )
        for case, share in _shares(cases)
    ]
    signs = {
        row: (0.0, math.inf) if weight > 0 else (-math.inf, 0.0) for row, weight in free.items()
    }
    _, found = _least(rows, free, signs, ridge)
    return dict(prior) | {row: round(2 * value / slope) / 2 for row, value in found.items()}


def losses(cases: Sequence[Case], learn: Learner, repeats: int) -> dict[str, tuple[float, float]]:
    """The log-loss of each group, and the share of its cases told right, by what was learned without it.

    Both are means over so many divisions of the groups into `FOLDS`.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for seed in range(repeats):
        for group, told in _told(cases, learn, FOLDS, seed):
            found.setdefault(group, []).append(told)
    return {
        group: (fmean(loss for loss, _ in told), fmean(right for _, right in told))
        for group, told in found.items()
    }


def _told(
    cases: Sequence[Case], learn: Learner, folds: int, seed: int
) -> Iterator[tuple[str, tuple[float, float]]]:
    groups = sorted({case.group for case in cases})
    random.Random(seed).shuffle(groups)
    for number in range(folds):
        left_out = set(groups[number::folds])
        known = [case for case in cases if case.group not in left_out]
        weights = learn(known)
        curve = calibrated(known, weights)
        for group in sorted(left_out):
            held = [case for case in cases if case.group == group]
            chances = [(curve.chance(score(weights, case.keys)), case.positive) for case in held]
            # No case of thousands is certain.
            loss = fmean(-math.log(max(c if yes else 1 - c, 1e-4)) for c, yes in chances)
            yield group, (loss, fmean((c >= 0.5) is yes for c, yes in chances))


def _left_out(cases: Sequence[Case], prior: Weights, ridge: float) -> float:
    """The log-loss of weights fitted with a ridge on groups that they were fitted without."""
    told = _told(cases, lambda known: fitted(known, prior, ridge), INNER, 0)
    return fmean(loss for _, (loss, _) in told)


def _shares(cases: Sequence[Case]) -> Iterator[tuple[Case, float]]:
    held = Counter(case.group for case in cases)
    for case in cases:
        yield case, 1 / held[case.group]


def _least(
    rows: Sequence[_Row], prior: Weights, bounds: Mapping[str, tuple[float, float]], ridge: float
) -> tuple[float, Weights]:
    """The intercept and the values of least log-loss and penalty."""
    # Nothing else of the project needs them.
    np, minimize = import_module("numpy"), import_module("scipy.optimize").minimize
    names = list(prior)
    seen = np.array([[1.0, *(row.values.get(name, 0.0) for name in names)] for row in rows])
    offset = np.array([row.offset for row in rows])
    positive = np.array([float(row.positive) for row in rows])
    share = np.array([row.share for row in rows])
    start = np.array([0.0, *prior.values()])
    # The intercept has no prior.
    penalty = np.array([0.0, *(ridge for _ in names)])

    def cost(point: Any) -> tuple[Any, Any]:
        z = seen @ point + offset
        away = point - start
        total = share @ (np.logaddexp(0, z) - positive * z) + (penalty * away) @ away / 2
        return total, (share * (1 / (1 + np.exp(-z)) - positive)) @ seen + penalty * away

    limits = [(-20.0, 20.0), *(bounds[name] for name in names)]
    found = minimize(cost, start, jac=True, method="L-BFGS-B", bounds=limits)
    intercept, *values = map(float, found.x)
    return intercept, dict(zip(names, values, strict=True))
