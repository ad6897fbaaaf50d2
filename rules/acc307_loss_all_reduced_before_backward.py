"""The loss that goes backward was reduced over ranks."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.reading.frameworks import AVERAGE_SETTINGS
from accumlint.reading.ir import Binary, Call, dotted
from accumlint.reading.program import Program
from accumlint.rule import Finding, Observed, Related, Rule, Severity
from accumlint.tracing.trace import Backward, Contribution, Event, Reduce, Rescale, Run, Trace


class LossAllReducedBeforeBackward(Rule):
    """The loss is reduced over ranks before it goes backward, as if that reduced its gradient.

    `dist.all_reduce` overwrites the value and leaves the graph alone: the backward that follows is the one of this
    rank's own N micro-batches. What comes after it counts, though. The division by the W ranks that makes the value a
    mean makes the gradient W times too short, because DDP averages the gradients by itself: half the length on 2
    ranks, a quarter on 4. Without DDP nothing else is reduced, and each rank trains a model of its own. The version
    with a gradient, `torch.distributed.nn.functional.all_reduce`, sums the gradients as well: without a division they
    are W times too long, and without DDP the parameters still are not reduced.

    Bad:

    ```python
    from contextlib import nullcontext

    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel


    def train(model, loader, optimizer, accumulation_steps, log):
        ddp = DistributedDataParallel(model)
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            optimizer.zero_grad()
            for micro_step in range(accumulation_steps):
                inputs, targets = next(batches)
                last = micro_step + 1 == accumulation_steps
                with nullcontext() if last else ddp.no_sync():
                    loss = F.cross_entropy(ddp(inputs), targets) / accumulation_steps
                    dist.all_reduce(loss)  # error: ACC307
                    loss = loss / dist.get_world_size()
                    log(loss.item() * accumulation_steps)
                    loss.backward()
            optimizer.step()
    ```

    Good:

    ```diff
                     loss = F.cross_entropy(ddp(inputs), targets) / accumulation_steps
    -                dist.all_reduce(loss)
    -                loss = loss / dist.get_world_size()
    -                log(loss.item() * accumulation_steps)
                     loss.backward()
    +            shown = loss.detach().clone()
    +            dist.all_reduce(shown)
    +            log(shown.item() / dist.get_world_size())
             optimizer.step()
    ```

    When it stays silent: when a copy is reduced (`loss.detach().clone()`, `loss.clone()`) or the backward came before;
    on an in-place reduction without a division under DDP, where only the logged value changes; on the version with a
    gradient followed by the division under DDP, which is exact; when the gradients are summed by hand as well and the
    division belongs to them; when no wrapper is seen and nothing is divided, since the model may be wrapped
    elsewhere; and when the loss also has factors that could not be followed.

    Measured (N = 4; 2 ranks, 4 ranks): in place and divided under DDP, relative error .50 and .75, cosine 1, length .50
    and .25, parameters .49 and .74 of the distance trained away; the same without DDP .52 and .76, the ranks .13 of
    it apart. With a gradient and not divided: length 2 and 4. In place without a division under DDP: 1e-16. Torch
    2.13 warns once that "an autograd kernel was not registered" for `c10d::allreduce_`.

    See: [`torch.distributed.all_reduce`][reduce]; [`DistributedDataParallel`][ddp], which averages gradients, so that
    the loss stays each rank's own.
    """

    severity = Severity.ERROR
    needs_followed = ("loss", "optimizer")
    observed = Observed.LOSS_REDUCED
    ranks = 2

    def check(self, trace: Trace) -> Iterator[Finding]:
        if trace.program.words & AVERAGE_SETTINGS:
            return
        for window in trace.typical_windows():
            rescales = window.of(Rescale)
            if any(rescale.factor is None for rescale in rescales):
                continue
            by_hand = sum(rescale.ranks for rescale in rescales)
            reduced = any(rescale.reduced for rescale in rescales)
            for c in window.contributions:
                if not c.over or c.has_other_factors:
                    continue
                told = fault(c, by_hand, reduced)
                if told and not is_over_a_reduced_count(trace.program, c.backward.loss):
                    yield self.at(
                        reduction(trace.main, c.backward),
                        f"`{c.backward.loss}` is reduced over ranks before its backward: {told}",
                        window=window,
                        related=[Related(c.backward.node, "goes backward")],
                    )


def is_over_a_reduced_count(program: Program, loss: str) -> bool:
    """True for a reduced sum over a reduced count, which is right once ranks are averaged, by whoever does it."""
    values = program.assigned.get(loss, ())
    counts = [v.right for v in values if isinstance(v, Binary) and v.op == "/"]
    made = (m for count in counts for m in program.assigned.get(dotted(count), ()))
    return any(isinstance(m, Call) and dotted(m.func).endswith("nn.all_reduce") for m in made)


def fault(c: Contribution, by_hand: int, reduced: bool) -> str:
    """What the reduction of the loss does to the gradient, "" for nothing."""
    own = c.due_ranks
    due = 0 if own is None else own
    through = c.over.endswith("with gradient")
    due -= c.over == "sum with gradient"
    if c.averaged_by or reduced:
        power = c.ranks + by_hand
        if power < due and (own is not None or power < 0):
            return (
                "its gradient is still this rank's own and is divided by the number of ranks twice"
            )
        summed = through and power > due
        return "its gradient is summed over ranks and not divided" if summed else ""
    if c.ranks < 0 and not through:
        return "its gradient is still this rank's own, divided by the number of ranks"
    return ""


def reduction(run: Run, backward: Backward) -> Event:
    """The reduction of the loss that goes backward, the backward itself where it was not seen."""
    before = (e for e in reversed(run.events[: backward.index]) if isinstance(e, Reduce))
    return next((e for e in before if e.what == "loss"), backward)
