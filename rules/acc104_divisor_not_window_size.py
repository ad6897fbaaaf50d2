"""The loss is divided by a number that is not the window's length."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise

from accumlint.editing import Replace
from accumlint.reading.ir import Binary
from accumlint.reading.program import Program
from accumlint.rule import Applicability, Confidence, Finding, Fix, Observed, Rule, Severity, unsafe
from accumlint.tracing.trace import Trace, Window

from ._dividing import divisions_of, window_sizes


class DivisorNotWindowSize(Rule):
    """The loss is divided by something else than the number of micro-batches that are accumulated.

    A constant that was left behind when the window changed makes every update too long or too short by their ratio:
    a divisor of 2 in a window of 4 doubles the gradient. The running index is worse, because it weighs the
    micro-batches 1, 1/2, 1/3, 1/4: the first counts four times as much as the last, and an index over the whole loader
    makes the updates fade as the epoch goes on. Where only the micro-batch that steps is divided, it weighs 1/N of what
    each of the others does.

    Bad:

    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps):
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            optimizer.zero_grad()
            for micro_step in range(accumulation_steps):
                images, labels = next(batches)
                loss = F.cross_entropy(model(images), labels)
                (loss / (micro_step + 1)).backward()  # error: ACC104
            optimizer.step()
    ```

    Good:

    ```diff
                 loss = F.cross_entropy(model(images), labels)
    -            (loss / (micro_step + 1)).backward()
    +            (loss / accumulation_steps).backward()
             optimizer.step()
    ```

    When it stays silent: on `/ len(group)` and on shares such as `len(chunk) / len(batch)`, whose sum over a window is
    1; on a partial window with a divisor of its own; on factors that could not be followed; and on a factor of a half,
    which is a weight of the loss more often than a divisor. A window that has another length than was asked
    for is ACC503, a stray world size is ACC107.

    A running index is `certain`, and so is a divisor on the last micro-batch alone. A constant is `likely`: the same
    number could be a weight that the loss is meant to have, and the finding says so.

    When the fix is not offered: without `--unsafe-fixes`, because the learning rate was tuned with the factor.

    Measured (N = 4): length of the first applied gradient .52 with a divisor twice the window, direction unchanged; the
    weights 1, 1/2, 1/3, 1/4 sum to 2.08 where the large batch has 1.

    See: the gradient-accumulation section of [PyTorch's AMP examples][amp], whose divisor is the window's own constant;
    [nanoGPT #605][running], which asks for the running index.

    [running]: https://github.com/karpathy/nanoGPT/issues/605
    """

    severity = Severity.WARNING
    observed = Observed.OTHER_DIVISOR
    fix = Applicability.UNSAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        for window in trace.steady_windows():
            divisor, length = trace.foreign_divisor(window), len(window.microbatches)
            place, sure = window.contributions[0].backward, Confidence.CERTAIN
            if counts_up(window.factors):
                by = "a running index, so each micro-batch weighs less than the last"
            elif divides_the_last(window.factors):
                place = window.contributions[-1].backward
                by = f"{length} in the micro-batch that steps alone, and by nothing in the {length - 1} before it"
            elif divisor is not None:
                sure = Confidence.LIKELY
                by = f"{divisor} in a window of {length} micro-batches (if 1/{divisor} is not its weight)"
            else:
                continue
            yield self.at(
                place,
                f"`{place.loss}` is divided by {by}",
                confidence=sure,
                window=window,
                fixes=divide_by_size(trace.program, window),
                applied=window.applied,
                expected=window.expected,
            )


def counts_up(factors: tuple[Fraction, ...] | None) -> bool:
    """True for 1/n, 1/(n + 1), 1/(n + 2) …"""
    if factors is None or any(factor <= 0 for factor in factors):
        return False
    divisors = [1 / factor for factor in factors]
    return divisors[0].denominator == 1 and all(b - a == 1 for a, b in pairwise(divisors))


def divides_the_last(factors: tuple[Fraction, ...] | None) -> bool:
    """True for 1, 1, …, 1/N."""
    last = len(factors or ())
    return factors == (*(Fraction(1),) * (last - 1), Fraction(1, max(last, 1)))


def divide_by_size(program: Program, window: Window) -> Iterator[Fix]:
    """Puts the window's size where the other divisor stands."""
    for division in divisions_of(program, window.contributions[0].backward):
        divisor = division.right if isinstance(division, Binary) else division.value
        for size in window_sizes(program, window):
            told = f"Divide by `{size}`, and tune the learning rate again"
            yield unsafe(told, Replace(divisor, size))
