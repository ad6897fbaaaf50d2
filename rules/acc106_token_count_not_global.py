"""The loss is divided by tokens of one rank, or of one micro-batch of all ranks, where the whole window's are meant."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.reading.frameworks import AVERAGE_SETTINGS
from accumlint.rule import Confidence, Finding, Observed, Rule, Severity, Symptom
from accumlint.tracing.trace import Contribution, Trace, Window


class TokenCountNotGlobal(Rule):
    """A summed loss is divided by a token count that leaves out ranks, or the rest of the window.

    The mean over tokens has one divisor: the tokens of all N micro-batches on all W ranks. Divided by the tokens of
    this rank's window, every rank weighs 1/W, however many tokens it holds, so a token on a rank with short rows counts
    for more. Divided by each micro-batch's tokens on all ranks and by N, every micro-batch weighs the same instead.
    Both turn the direction of the update, the second one more than the first: with N = 4 on 2 ranks by 8 % and 22 %.

    Bad:

    ```python
    from contextlib import nullcontext

    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel


    def train(model, loader, optimizer, accumulation_steps):
        ddp = DistributedDataParallel(model)
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            window = [next(batches) for _ in range(accumulation_steps)]
            tokens = sum((labels != -100).sum() for _, labels in window)
            optimizer.zero_grad()
            for micro_step, (inputs, labels) in enumerate(window):
                last = micro_step + 1 == accumulation_steps
                with nullcontext() if last else ddp.no_sync():
                    logits = ddp(inputs).flatten(0, 1)
                    loss = F.cross_entropy(logits, labels.flatten(), reduction="sum")
                    (loss / tokens).backward()  # error: ACC106
            optimizer.step()
    ```

    Good:

    ```diff
    +import torch.distributed as dist
     import torch.nn.functional as F
    @@
             tokens = sum((labels != -100).sum() for _, labels in window)
    +        dist.all_reduce(tokens)
             optimizer.zero_grad()
    @@
                     loss = F.cross_entropy(logits, labels.flatten(), reduction="sum")
    -                (loss / tokens).backward()
    +                (loss * dist.get_world_size() / tokens).backward()
             optimizer.step()
    ```

    The factor is there because DDP averages over the ranks (ACC107).

    When it stays silent: without a wrapper that is seen to average over ranks; on counts of rows or elements, which are
    the same everywhere when batches are full; on counts that were not seen being counted (a batch's own `num_items`, a
    function in another file), since they may be global; when the gradients are rescaled before the step; and in a loop
    without accumulation. One micro-batch's own tokens on one rank are ACC101.

    A finding is `certain` under DDP and FSDP, and `likely` under Accelerate and Fabric, which may run one process.

    When the fix is not offered: never. The count must be reduced before the window's first backward, and the ranks have
    to agree on when.

    Measured (N = 4; 2 ranks, 4 ranks): tokens of this rank's window, relative error .083 and .053, cosine .997, length
    .98, parameters 4.5 % of the distance trained away; tokens of each micro-batch on all ranks and over N, relative
    error .22, cosine .976, parameters 13 % away; for comparison a plain mean over N, .63 and .60; with the count of the
    whole window on all ranks and the factor W, 1e-16.

    See: Accelerate's guide to [samples of variable size][accelerate], which gathers the count;
    `average_tokens_across_devices` in [`TrainingArguments`][trainer].

    [trainer]: https://huggingface.co/docs/transformers/main_classes/trainer
    """

    severity = Severity.WARNING
    needs_followed = ("loss", "optimizer")
    observed = Observed.COUNT_NOT_GLOBAL
    symptom = Symptom.WEIGHTS
    ranks = 2

    def check(self, trace: Trace) -> Iterator[Finding]:
        if trace.program.words & AVERAGE_SETTINGS:
            return
        for window in trace.steady_windows():
            for c in window.contributions:
                if not c.averaged_by or c.over or c.has_other_factors:
                    continue
                told = fault(trace, window, c)
                if told:
                    yield self.at(
                        c.backward,
                        told,
                        confidence=Confidence.CERTAIN if c.is_wrapped else Confidence.LIKELY,
                        window=window,
                    )


def fault(trace: Trace, window: Window, c: Contribution) -> str:
    """What the divisor leaves out, "" for nothing that is known."""
    divisor = c.divisor
    if divisor is None or divisor.kind != "some":
        return ""
    several = "" if c.is_wrapped else " (if there are several)"
    if c.reduction == "window" and not divisor.over:
        return (
            f"`{c.backward.loss}` is a sum divided by `{divisor.text}` of this rank's window, while "
            f"{c.averaged_by} weighs every rank the same{several}"
        )
    if c.reduction == "mean" and divisor.over == "sum" and trace.divisions(window) == 1:
        return (
            f"`{c.backward.loss}` is a sum divided by `{divisor.text}` of one micro-batch on all ranks, "
            f"and the window weighs every micro-batch the same{several}"
        )
    return ""
