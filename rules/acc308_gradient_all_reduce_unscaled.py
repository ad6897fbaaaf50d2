"""Gradients are summed over ranks and never divided, or summed more than once."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.rule import Confidence, Finding, Observed, Rule, Severity
from accumlint.tracing.trace import Contribution, Rescale, Trace, Window


class GradientAllReduceUnscaled(Rule):
    """Gradients are summed over ranks by hand without a division, or summed again with every micro-batch.

    A sum over W ranks is W times the average. With SGD that is a learning rate W times too high, and one that changes
    with the number of machines. Inside a window of N micro-batches it is worse: `.grad` holds the sum so far, and each
    reduction sums what was already summed, so the first micro-batch ends with W to the power N and the last with W.
    On 2 ranks with N = 4 the applied gradient is 7.5 times too long, on 4 ranks 84 times, and points elsewhere.

    Bad:

    ```python
    import torch.distributed as dist
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps):
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            optimizer.zero_grad()
            for _ in range(accumulation_steps):
                images, labels = next(batches)
                loss = F.cross_entropy(model(images), labels)
                (loss / accumulation_steps).backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)  # error: ACC308
            optimizer.step()
    ```

    Good:

    ```diff
                 dist.all_reduce(parameter.grad)
    +            parameter.grad /= dist.get_world_size()
             optimizer.step()
    ```

    When it stays silent: on `ReduceOp.AVG`; when the loss or the gradients are divided by the world size, before or
    after; on a summed loss, whose sum over ranks is what was asked for, and on one divided by the tokens of all ranks;
    and on a reduction or a factor that could not be followed, among them buffers of gradients. An average that is taken
    again with every micro-batch is right and only costs communication.

    The finding is `certain` when the loss is seen to be a mean, `likely` when its reduction could not be seen. A sum
    that is never divided is a warning with Adam and its like, which divide a constant factor out again.

    When the fix is not offered: without `--unsafe-fixes` where the sum is only undivided, because the learning rate was
    tuned with it.

    Measured (N = 4): not divided, length 2 on 2 ranks and 4 on 4, parameters .95 and 2.7 times the distance trained
    away; reduced with every micro-batch, length 7.5 and 84, parameters 5 to 261 times. Divided, or `AVG`: 1e-16.

    See: [`torch.distributed.all_reduce`][reduce], whose default is the sum; `average_gradients` in
    [writing distributed applications][tutorial], which divides.

    [tutorial]: https://docs.pytorch.org/tutorials/intermediate/dist_tuto.html
    """

    severity = Severity.ERROR
    needs_followed = ("loss", "model", "gradients", "optimizer")
    observed = Observed.GRADIENT_SUMMED
    ranks = 2

    def check(self, trace: Trace) -> Iterator[Finding]:
        for window in trace.typical_windows():
            rescales = window.of(Rescale)
            summed = [rescale for rescale in rescales if rescale.reduced and rescale.ranks]
            # In a script for two ranks, 2 is how many there are.
            if not summed or any(r.factor is None or divides_by_a_number(r) for r in rescales):
                continue
            powers = {power(c, rescales) for c in window.contributions}
            beyond = [excess(c) for c in window.contributions]
            known = [extra for extra in beyond if extra is not None]
            if not known or len(known) < len(beyond) or max(powers) + max(known) <= 0:
                continue
            again = len(powers) > 1
            seen = all(c.reduction != "unknown" for c in window.contributions)
            mild = window.step.optimizer.is_scale_free and not again
            yield self.at(
                summed[0],
                message(window, again),
                confidence=Confidence.CERTAIN if seen else Confidence.LIKELY,
                severity=Severity.WARNING if mild else Severity.ERROR,
                window=window,
            )


def divides_by_a_number(rescale: Rescale) -> bool:
    """True for gradients that are divided by a whole number, however it came to be known."""
    factor = rescale.factor
    return not rescale.ranks and factor is not None and factor.numerator == 1 < factor.denominator


def power(c: Contribution, rescales: tuple[Rescale, ...]) -> int:
    """The power of the world size that the code gives a gradient beyond the average over ranks."""
    place = (c.microbatch, c.network)
    held = ((r.ranks, {(h.microbatch, h.network) for h in r.pending}) for r in rescales)
    return sum(ranks for ranks, places in held if place in places)


def excess(c: Contribution) -> int | None:
    """The power that its loss has beyond what an average over ranks wants; None where it cannot be told."""
    due = c.due_ranks
    if due is None and c.reduction == "unknown" and c.divisor is None:
        due = 0
    return None if due is None or c.has_other_factors or c.over else c.ranks - due


def message(window: Window, again: bool) -> str:
    step = f"`{window.step.subject}.step()`"
    if again:
        return f"gradients are summed over ranks again with each micro-batch before {step}"
    who = next((c.averaged_by for c in window.contributions if c.averaged_by), "")
    if who:
        return f"gradients are summed over ranks before {step}, although {who} has averaged them"
    return f"gradients are summed over ranks and never divided before {step}"
