"""The loss has a factor of the world size that the reduction over ranks does not want."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import Replace
from accumlint.reading.frameworks import AVERAGE_SETTINGS
from accumlint.reading.ir import Binary, render
from accumlint.reading.program import Program
from accumlint.rule import (
    Applicability,
    Confidence,
    Finding,
    Fix,
    Observed,
    Rule,
    Severity,
    Symptom,
    unsafe,
)
from accumlint.tracing.trace import Contribution, Rescale, Trace, Window

from ._dividing import divisions_of, undivided

# What gathers tensors over ranks: a loss made of these has a gradient on every rank.
_GATHERING = ("all_gather", "allgather", "gatherlayer", "gather_features", "gather_with_grad")


class WrongWorldSizeFactor(Rule):
    """The loss is divided or multiplied by the world size, on top of what DDP or FSDP does.

    DDP, FSDP, Accelerate and Fabric average gradients: they sum them over the W ranks and divide by W. A mean loss
    needs nothing more. Divided by W it gives a gradient that is W times too short, multiplied by W one that is W times
    too long, on every one of the N micro-batches, and the effective learning rate changes with the number of machines.
    The other way round, a sum that is divided by the tokens of *all* ranks needs the factor W, because the average
    divides by W once more: without it the gradient has half its length on 2 ranks and a quarter on 4.

    Bad:

    ```python
    from contextlib import nullcontext

    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel


    def train(model, loader, optimizer, accumulation_steps):
        ddp = DistributedDataParallel(model)
        world_size = dist.get_world_size()
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            optimizer.zero_grad()
            for micro_step in range(accumulation_steps):
                inputs, targets = next(batches)
                last = micro_step + 1 == accumulation_steps
                with nullcontext() if last else ddp.no_sync():
                    loss = F.cross_entropy(ddp(inputs), targets)
                    loss = loss / (accumulation_steps * world_size)
                    loss.backward()  # error: ACC107
            optimizer.step()
    ```

    Good:

    ```diff
                     loss = F.cross_entropy(ddp(inputs), targets)
    -                loss = loss / (accumulation_steps * world_size)
    +                loss = loss / accumulation_steps
                     loss.backward()
    ```

    When it stays silent: without a wrapper that is seen (gradients summed by hand need the division); when the loss
    also has factors that could not be followed, or the gradients are rescaled before the step by anything but the
    number of ranks alone; on a sum that nothing divides; when a communication hook or a divide factor replaces the
    average; on a factor W in a file that gathers tensors over ranks, since a contrastive loss over gathered features
    needs it; and on a loss that was itself reduced over ranks, which is ACC307.

    A finding is `certain` under DDP and FSDP and `likely` under Accelerate and Fabric, which may run one process, and
    where a divided loss is not seen to be a mean.

    When the fix is not offered: without `--unsafe-fixes`, because the learning rate was tuned with the factor.

    Measured (N = 4): a mean over N W has length .5 on 2 ranks and equal counts; on uneven rows .41, and 1.65 times W.
    A sum over the tokens of all ranks without W: relative error .50 and .75, cosine 1, length .50 and .25 on 2 and
    4 ranks; the parameters end .49 and .74 of the distance trained away. With W: 1e-16.

    See: [`DistributedDataParallel`][ddp], "gradients are averaged across processes"; Accelerate's guide to
    [samples of variable size][accelerate], which multiplies by the number of processes for this reason.
    """

    severity = Severity.WARNING
    needs_followed = ("loss", "optimizer")
    observed = Observed.WORLD_FACTOR
    symptom = Symptom.SCALE
    ranks = 2
    fix = Applicability.UNSAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        if trace.program.words & AVERAGE_SETTINGS:
            return
        for window in trace.typical_windows():
            again = divided_again(window)
            if again is not None:
                yield self.at(
                    again,
                    "the gradients are divided by the number of ranks, over which "
                    f"{window.contributions[0].averaged_by} has averaged them",
                    confidence=Confidence.LIKELY,
                    window=window,
                )
            if window.of(Rescale):
                continue
            for c in window.contributions:
                if not c.averaged_by or c.over or c.has_other_factors:
                    continue
                told = fault(
                    c, any(part in w.lower() for w in trace.program.words for part in _GATHERING)
                )
                if told:
                    seen = c.is_wrapped and c.reduction != "unknown"
                    yield self.at(
                        c.backward,
                        told,
                        confidence=Confidence.CERTAIN if seen else Confidence.LIKELY,
                        window=window,
                        fixes=without_ranks(trace.program, c),
                    )


def divided_again(window: Window) -> Rescale | None:
    """The one place that divides gradients by the number of ranks, whose average a wrapper has taken."""
    rescales = {e.node: e for e in window.of(Rescale)}
    if len(rescales) != 1 or window.reduced_by_hand or not window.contributions:
        return None
    (only,) = rescales.values()
    averaged = all(c.is_wrapped and c.ranks == 0 and not c.over for c in window.contributions)
    means = all(c.divisor is None for c in window.contributions)
    return only if only.ranks == -1 and only.factor == 1 and averaged and means else None


def fault(c: Contribution, gathered: bool) -> str:
    """What is wrong with the factor of the world size, "" for nothing."""
    due = c.due_ranks
    loss, who = f"`{c.backward.loss}`", c.averaged_by
    several = "" if c.is_wrapped else " (if there are several)"
    name = next((symbol[2:] for symbol in c.symbols), "")
    if due is None and c.reduction == "unknown" and c.ranks < 0:
        return f"{loss} is divided by `{name}`, and {who} averages over the ranks again (if it is a mean)"
    if due is None or c.ranks == due:
        return ""
    if c.ranks < due and c.divisor is not None and due == 1 and c.ranks == 0:
        return (
            f"{loss} is a sum divided by `{c.divisor.text}` of all ranks, and {who} divides by the number "
            f"of ranks again{several}"
        )
    if c.ranks < due:
        return f"{loss} is divided by `{name}`, and {who} averages over the ranks again{several}"
    if gathered:
        return ""
    return f"{loss} is multiplied by `{name}`, although {who} averages over the ranks{several}"


def without_ranks(program: Program, c: Contribution) -> Iterator[Fix]:
    """Takes the factor of the world size out of the product that divides the loss, or the division by it alone."""
    names = {symbol[2:] for symbol in c.symbols if symbol.startswith("/ ")}
    told = "Leave the ranks to the reduction, and tune the learning rate again"
    for division in divisions_of(program, c.backward):
        divisor = division.right if isinstance(division, Binary) else division.value
        match divisor:
            case Binary(op="*", left=left, right=right) if render(right) in names:
                yield unsafe(told, Replace(divisor, program.code(left)))
            case Binary(op="*", left=left, right=right) if render(left) in names:
                yield unsafe(told, Replace(divisor, program.code(right)))
            case _:
                pass
    for verbs in undivided(program, c.backward, names):
        yield unsafe(told, *verbs)
