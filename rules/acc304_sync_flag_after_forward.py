"""The synchronisation flag is set when its reader is gone."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import Before, Move
from accumlint.reading.ir import Node, With
from accumlint.reading.program import Program
from accumlint.rule import Applicability, Claim, Finding, Observed, Rule, Severity, safe
from accumlint.tracing.trace import Contribution, Forward, SyncFlag, Trace


class SyncFlagAfterForward(Rule):
    """`require_backward_grad_sync` is set after the forward, which is where DDP reads it.

    DDP reads the flag in its forward. Set after it, the value reaches the next micro-batch only: in
    a window of N micro-batches the first one is reduced and the last one, whose backward was meant
    to reduce, is not. Each rank then steps with gradients that it holds alone, and the ranks drift
    apart: with N = 4 and 2 ranks the applied gradient is off by 19 %.

    Bad:

    ```python
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel


    def train(model, loader, optimizer, accumulation_steps):
        ddp = DistributedDataParallel(model)
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            optimizer.zero_grad()
            for micro_step in range(accumulation_steps):
                inputs, targets = next(batches)
                loss = F.cross_entropy(ddp(inputs), targets) / accumulation_steps
                last = micro_step + 1 == accumulation_steps
                ddp.require_backward_grad_sync = last  # error: ACC304
                loss.backward()
            optimizer.step()
    ```

    Good:

    ```diff
                 inputs, targets = next(batches)
    -            loss = F.cross_entropy(ddp(inputs), targets) / accumulation_steps
                 last = micro_step + 1 == accumulation_steps
                 ddp.require_backward_grad_sync = last
    +            loss = F.cross_entropy(ddp(inputs), targets) / accumulation_steps
                 loss.backward()
    ```

    When it stays silent: with FSDP, whose `set_requires_gradient_sync` is read after the backward,
    and when the last micro-batch of each window is reduced all the same, because the flag is
    switched on early enough or the gradients are reduced by hand.

    When the fix is not offered: where the flag is set in another function than the forward.

    Measured (N = 4; 2 ranks, 4 ranks): relative error .19 and .25 at the first update, spread
    between ranks .22 of the distance trained.

    See: [`DistributedDataParallel`][ddp] (`forward` asks `require_backward_grad_sync` and prepares
    the reducer), karpathy/build-nanogpt#30, modded-nanogpt#31.
    """

    severity = Severity.ERROR
    observed = Observed.FLAG_LATE
    claim = Claim.RANKS
    ranks = 2
    fix = Applicability.SAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        for window in trace.main.windows:
            last = window.unshared
            if last is None or is_past_the_wrapper(last):
                continue
            for flag in window.of(SyncFlag):
                if flag.after_forward and flag.wrapper == "ddp":
                    yield self.at(
                        flag,
                        f"`{flag.subject}` is set after the forward that reads it: "
                        f"`{window.step.subject}.step()` applies gradients that are not reduced over the ranks",
                        window=window,
                        fixes=[
                            safe(
                                "Set the flag before the forward",
                                Move(flag.node, Before(place), "needs"),
                            )
                            for forward in window.of(Forward)
                            if forward.microbatch == flag.microbatch
                            for place in places(trace.program, forward.node)
                        ],
                    )


def is_past_the_wrapper(contribution: Contribution) -> bool:
    """True where the forward does not ask the wrapper, which alone reads the flag."""
    return contribution.forward is not None and contribution.forward.bypassed


def places(program: Program, forward: Node) -> list[Node]:
    """The contexts around a forward, the outermost first, and the forward itself."""
    return [*reversed([n for n in program.above(forward) if isinstance(n, With)]), forward]
