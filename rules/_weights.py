"""How often the loss of a steady window is divided by the window's length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from accumlint.reading.ir import Call, Const
from accumlint.reading.names import is_weight
from accumlint.tracing.trace import (
    ELEMENTS,
    PICKED,
    Backward,
    Contribution,
    Forward,
    Rescale,
    Run,
    Trace,
    TrainingObject,
    Window,
)

from ._windows import is_entangled

# Their `weight_decay` is L2 regularisation, a part of the gradient.
_COUPLED = {"adam", "adamax", "nadam", "radam", "adagrad", "rmsprop", "adam8bit"}
_SCALE_FREE = (
    "ada", "lamb", "lion", "muon", "novograd", "prodigy", "prop", "ranger", "shampoo", "soap", "sophia",
)  # fmt: skip


def steady_windows(trace: Trace, *, rescaled: bool = False) -> Iterator[Window]:
    """The steady windows of several micro-batches whose size of update the loss alone decides.

    With `rescaled`, those whose gradients the loop itself divides by the window's length instead.

    A window that holds gradients of an earlier step, that is rescaled by hand or goes past its framework's backward has
    another cause, which has a rule of its own or is none. So has a loss whose forward was not seen.
    """
    for optimizer in trace.main.optimizers:
        window = trace.main.steady(optimizer)
        if window is None or len(window.microbatches) < 2 or bypasses(window):
            continue
        if is_entangled(window):
            continue
        start = window.between[0].index
        carried = any(c.backward.index < start for c in window.contributions)
        factors = [rescale.factor for rescale in window.of(Rescale) if not rescale.reduced]
        fits = factors == [Fraction(1, len(window.microbatches))] if rescaled else not factors
        if window.of(Forward) and not carried and fits:
            yield window


def divisions(trace: Trace, window: Window) -> int | None:
    """How many times the window's length divides its loss: 0, 1 or 2; None for anything else.

    Where the accumulation steps can be chosen, windows of 4 and of 2 are compared and constant factors cancel;
    a window that the code writes as a number is judged by its total.
    """
    length = len(window.microbatches)
    if not trace.main.asked:
        if all(c.symbols for c in window.contributions):
            return None
        if trace.main.literal not in (None, length):
            return None
        total = window.total
        known = {Fraction(length): 0, Fraction(1): 1, Fraction(1, length): 2}
        return None if total is None else known.get(total)
    growth = trace.growth.get(window.step.optimizer)
    if length and trace.main.guessed and weights(window) == (Fraction(1, length),) * length:
        # Divided by the length of the loop around it, whatever that is.
        return 1
    if growth == 2 and length > trace.main.steps and length % trace.main.steps == 0:
        # Several pieces of each micro-batch go backward by themselves: their sum grows all the same.
        return None if any(map(unknown_factors, window.contributions)) else 0
    if growth is None or length != trace.main.steps:
        return None
    shared = [unknown_factors(contribution) for contribution in window.contributions]
    if growth == 2 and set[str].intersection(*map(set, shared)):
        # A factor of all losses that nobody knows may be what divides; a factor of one of them is its weight.
        return None
    return {Fraction(2): 0, Fraction(1): 1, Fraction(1, 2): 2}.get(growth)


def unknown_factors(contribution: Contribution) -> frozenset[str]:
    """The factors of a loss that could not be followed; weights, of the elements of a mean too, are none."""
    return frozenset(
        symbol
        for symbol in contribution.symbols
        if not symbol.startswith(ELEMENTS)
        and not (symbol.startswith("* ") and is_weight(symbol[2:]))
    )


def weights(window: Window) -> tuple[Fraction, ...] | None:
    """The factor of each micro-batch in order, None where losses or networks differ or a part is not known."""
    by_origin: dict[tuple[str, str], dict[int, Fraction]] = {}
    for c in window.contributions:
        if c.weight is None or c.symbols:
            return None
        factors = by_origin.setdefault((c.origin, c.network), {})
        factors[c.microbatch] = factors.get(c.microbatch, Fraction(0)) + c.weight
    found = {tuple(factors.values()) for factors in by_origin.values()}
    # Losses that take turns make one window together, and none of them tells of all of it.
    whole = len({c.microbatch for c in window.contributions})
    return found.pop() if len(found) == 1 and all(len(f) == whole for f in found) else None


def foreign_divisor(trace: Trace, window: Window) -> int | None:
    """The whole number that divides every micro-batch and is not the window's length, None without one.

    A half, and one over the number of losses (times the window's length), are weights of a loss more often than
    divisors of a window.
    """
    factors = weights(window)
    length = len(window.microbatches)
    if factors is None or len(set(factors)) != 1 or not factors[0]:
        return None
    # A framework divides by the length it was given: a window of another length is one that an epoch's end cut short.
    if any(backward.divided not in (1, length) for backward in window.backwards):
        return None
    divisor = 1 / factors[0]
    origins = len({c.origin for c in window.contributions})
    if divisor.denominator != 1 or divisor in (1, 2, length, origins, origins * length):
        return None
    # Half of what is divided rightly is a weight as well, as far as runs with windows of other lengths tell.
    varied = len(trace.runs) > 1 or trace.main.asked
    if varied and all(_is_half(run, window.step.optimizer) for run in trace.runs[:2]):
        return None
    # A window of another length than was asked for is a defect of its boundary, not of the divisor.
    if length not in (trace.main.literal, trace.main.steps if trace.main.asked else length):
        return None
    return None if divisions(trace, window) in (1, 2) else int(divisor)


def _is_half(run: Run, optimizer: TrainingObject) -> bool:
    """True when each micro-batch weighs 1/2N, however long the window of N is."""
    twin = next((o for o in run.optimizers if o.text == optimizer.text), None)
    window = run.steady(twin) if twin is not None else None
    if window is None:
        return False
    length = len(window.microbatches)
    return weights(window) == (Fraction(1, 2 * length),) * length


def is_mean_of_picked(contribution: Contribution) -> bool:
    """True for `losses[losses != 0].mean()`: its count is that of what a mask picks, whatever else is left out."""
    divisor = contribution.divisor
    picked = contribution.varies.startswith(PICKED)
    return picked and divisor is not None and divisor.text == "mean()"


def bypasses(window: Window) -> tuple[Backward, ...]:
    """The backwards of a window that run under `accumulate` without the framework's own backward."""
    return tuple(b for b in window.backwards if b.accumulating and b.via in ("tensor", "scaler"))


def is_scale_free(optimizer: TrainingObject) -> bool:
    """True for Adam and its like, whose update hardly changes when all gradients are multiplied.

    A weight decay that is added to the gradient (Adam's, not AdamW's) changes its share in the update.
    """
    kind = optimizer.kind.rpartition(".")[2].lower()
    if kind in _COUPLED and _decays(optimizer):
        return False
    return kind != "adadelta" and any(part in kind for part in _SCALE_FREE)


def _decays(optimizer: TrainingObject) -> bool:
    """True when the optimizer was built with a weight decay."""
    built = optimizer.node
    decay = built.keyword("weight_decay") if isinstance(built, Call) else None
    return decay is not None and not (isinstance(decay, Const) and not decay.value)


def applied(window: Window) -> str:
    """What the step applies, as a sum over the window's micro-batches: `1/4 g5 + 1/4 g6`."""
    factors = weights(window)
    if factors is None:
        return ""
    return " + ".join(weighted(f, number) for number, f in enumerate(factors, 1))


def expected(window: Window) -> str:
    """What the large batch would apply."""
    return mean(range(1, len(window.microbatches) + 1))


def mean(numbers: Sequence[int]) -> str:
    """The mean of the gradients of some micro-batches."""
    return " + ".join(weighted(Fraction(1, len(numbers)), number) for number in numbers)


def weighted(factor: Fraction | None, number: int) -> str:
    """One micro-batch's gradient with its factor, "?" where that is not known."""
    return f"g{number}" if factor == 1 else f"{'?' if factor is None else factor} g{number}"
