"""The loss that is shown is a share of a micro-batch's, or a sum over the ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

from accumlint.reading.ir import Call, Const
from accumlint.rule import Claim, Confidence, Finding, Rule, Severity
from accumlint.tracing.trace import ELEMENTS, OVER_RANKS, Backward, Report, Run, Share, Trace


class LoggedLossMisleading(Rule):
    """The loss that is printed or logged was divided for the window, or summed over the ranks and not divided.

    `loss = loss / N` makes the micro-batch's share of the window's mean. Shown as it is, it is N times too small, of
    one micro-batch of N, and changes with N, so that two runs with the same large batch seem to differ. So is the
    average of such shares over an epoch. A loss that was summed over the ranks is as many times too large as there are
    ranks. The training is right; comparisons and stopping rules that read the number are not.

    Bad:

    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps):
        batches = iter(loader)
        for update in range(len(loader) // accumulation_steps):
            optimizer.zero_grad()
            for _ in range(accumulation_steps):
                inputs, targets = next(batches)
                loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
                loss.backward()
            optimizer.step()
            print(f"{update}: {loss.item():.3f}")  # error: ACC702
    ```

    Good:

    ```diff
             optimizer.zero_grad()
    +        window_loss = 0.0
             for _ in range(accumulation_steps):
    @@
                 loss.backward()
    +            window_loss += loss.detach()
             optimizer.step()
    -        print(f"{update}: {loss.item():.3f}")
    +        print(f"{update}: {window_loss.item():.3f}")
    ```

    When it stays silent: when the shares of a window are added up, when the number is multiplied by
    N again, for the whole loss of one micro-batch (noisy, and of the right size), when the number
    went through something that could not be followed, and for meters, which may add up.

    When the fix is not offered: always; which number is wanted is for its reader.

    Measured (N = 4): the last micro-batch's share shows .78 where the window's mean is 3.16. The
    Hugging Face Trainer's `train_loss` of rank 0 is that rank's own share in the same way.

    See: [gradient accumulation in the AMP examples][amp].
    """

    severity = Severity.INFO
    claim = Claim.LOG
    unmeasured = "no run tells what a figure that is shown is meant to be"

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        longest = max((w.backward_count() for w in run.steady_of_each()), default=0)
        for report in {(e.node, e.subject): e for e in run.of(Report)}.values():
            sure = Confidence.CERTAIN if run.asked else Confidence.LIKELY
            if is_summed_over_ranks(run, report):
                sure = Confidence.CERTAIN
                said = "was summed over the ranks, and is shown undivided"
            elif longest > 1 and is_divided(trace, report) and not says_so(report):
                said = "is one micro-batch's loss divided by the accumulation steps, and is shown as the loss"
            elif longest > 1 and (
                all(is_average(run, report) or is_divided_again(run, report) for run in trace.runs)
                or is_average_of_parts(trace, report)
            ):
                said = "is the average of losses that were divided by the accumulation steps, and is shown as the loss"
            else:
                continue
            yield self.at(report, f"`{report.subject}` {said}", confidence=sure)


def same(run: Run, report: Report) -> list[Report]:
    return [e for e in run.of(Report) if e.node is report.node and e.subject == report.subject]


def is_divided(trace: Trace, report: Report) -> bool:
    """True when what is shown of one micro-batch shrinks as the accumulation steps grow, whatever it is a sum of."""
    if all(is_a_share(run, report) for run in trace.runs):
        return True
    wholes = {whole for run in trace.runs for whole in times_steps(run, report)}
    return len(wholes) == 1 and () not in wholes and tells_by_steps(trace, report)


def tells_by_steps(trace: Trace, report: Report) -> bool:
    """True when the number is shown with several choices of the steps, so that it tells how they change it."""
    chosen = trace.main.asked and trace.main.literal is None
    return chosen and len({run.steps for run in trace.runs if same(run, report)}) > 1


def times_steps(run: Run, report: Report) -> Iterator[tuple[Fraction, ...]]:
    """The factors of each number that is shown, times the steps; none where it is more or less than one whole loss."""
    backwarded = {number for backward in run.of(Backward) for number in backward.microbatches}
    for event in same(run, report):
        shown = {part.microbatch for part in event.shares}
        # What never goes backward, as in an evaluation, may be divided by a length that grows like the steps.
        one = len(shown) == 1 and shown <= backwarded
        factors = [part.factor for part in event.shares if part.factor and is_unscaled(run, part)]
        if not one or len(factors) != len(event.shares):
            yield ()
        else:
            yield tuple(sorted(factor * run.steps for factor in factors))


def says_so(report: Report) -> bool:
    """True when the number is shown as what it is, a scaled loss (`add_scalar("scaled_loss", …)`)."""
    given = [a.value for a in report.node.args] if isinstance(report.node, Call) else []
    return any(isinstance(v, Const) and "scaled" in str(v.value).lower() for v in given)


def is_a_share(run: Run, report: Report) -> bool:
    """True when each time one micro-batch's loss is shown, divided by the window's size."""
    share = Fraction(1, run.literal or run.steps)
    return share < 1 and all(
        len({part.microbatch for part in event.shares}) == 1
        and all(part.factor in (share, -share) and is_unscaled(run, part) for part in event.shares)
        for event in same(run, report)
    )


def is_average(run: Run, report: Report) -> bool:
    """True when each time an average over micro-batches is shown, of shares of a window's size.

    Where the number of micro-batches is one too small or too large, it is an average still.
    """
    steps = run.literal or run.steps
    events = same(run, report)
    totals = [sum((part.factor or 0 for part in e.shares), Fraction(0)) for e in events]
    equal = all(len({part.factor for part in e.shares}) == 1 for e in events)
    several = any(len({part.microbatch for part in e.shares}) > 1 for e in events)
    whole = all(is_unscaled(run, part) and part.microbatch for e in events for part in e.shares)
    near = all(abs(total * steps - 1) <= Fraction(1, 3) for total in totals)
    return steps > 1 and several and equal and whole and near


def is_average_of_parts(trace: Trace, report: Report) -> bool:
    """True when each time an average over micro-batches is shown, of several losses that shrink as the steps grow."""
    averages = [average for run in trace.runs for average in of_parts(run, report)]
    first = averages[0] if averages and tells_by_steps(trace, report) else ()
    return bool(first) and all(
        len(other) == len(first)
        and all(abs(a - b) <= abs(a) / 3 for a, b in zip(first, other, strict=True))
        for other in averages
    )


def of_parts(run: Run, report: Report) -> Iterator[tuple[Fraction, ...]]:
    """The factors of each part of an average, times the steps and the micro-batches; none where it is no average."""
    for event in same(run, report):
        by_microbatch: dict[int, list[Fraction]] = {}
        for part in event.shares:
            if part.factor and is_unscaled(run, part):
                by_microbatch.setdefault(part.microbatch, []).append(part.factor)
        parts = {tuple(sorted(factors)) for factors in by_microbatch.values()}
        several = len(by_microbatch) > 1 and 0 not in by_microbatch
        shown = sum(map(len, by_microbatch.values())) == len(event.shares)
        if several and shown and len(parts) == 1:
            yield tuple(f * run.steps * len(by_microbatch) for f in parts.pop())
        else:
            yield ()


def is_divided_again(run: Run, report: Report) -> bool:
    """True for shares added up and divided by a product of the steps, `total / (every * accumulation_steps)`."""
    return run.asked and all(
        part.factor == Fraction(1, run.steps)
        and re.fullmatch(rf"/ .* \* {run.steps}", ";".join(part.symbols))
        and part.microbatch > 0
        for event in same(run, report)
        for part in event.shares
    )


def is_unscaled(run: Run, part: Share) -> bool:
    """True where no factor is on the loss that does not go backward; weights of its elements are none."""
    if all(symbol.startswith(ELEMENTS) for symbol in part.symbols):
        return True
    trained = {c.symbols for backward in run.of(Backward) for c in backward.contributions}
    return tuple(sorted(part.symbols)) in trained


def is_summed_over_ranks(run: Run, report: Report) -> bool:
    """True when each time the number is a sum over the ranks that nothing was divided by."""
    parts = (part for event in same(run, report) for part in event.shares)
    return all(part.symbols == (OVER_RANKS,) and (part.factor or 0) >= 1 for part in parts)
