"""Only the backward stands inside `no_sync`."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import Before, Move
from accumlint.reading.ir import Call, Expr, Node, With, called, dotted, walk
from accumlint.reading.program import Program
from accumlint.rule import Applicability, Claim, Confidence, Finding, Observed, Rule, Severity, safe
from accumlint.tracing.trace import Backward, NoSync, Trace


class NoSyncForwardOutside(Rule):
    """Only the backward is inside `no_sync`, where the context does nothing.

    DDP decides in its forward whether the coming backward reduces. A forward outside the context has already armed the
    reducer, and each of the N micro-batches of a window is reduced after all. The gradients are right, the
    communication that the context was meant to save is spent: with N = 4, 20 all-reduce calls where 5 do.

    Bad:

    ```python
    from contextlib import nullcontext

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
                with nullcontext() if last else ddp.no_sync():  # error: ACC303
                    loss.backward()
            optimizer.step()
    ```

    Good:

    ```diff
                 inputs, targets = next(batches)
    -            loss = F.cross_entropy(ddp(inputs), targets) / accumulation_steps
                 last = micro_step + 1 == accumulation_steps
                 with nullcontext() if last else ddp.no_sync():
    +                loss = F.cross_entropy(ddp(inputs), targets) / accumulation_steps
                     loss.backward()
    ```

    When it stays silent: with FSDP, which reads its flag after the backward, and under Accelerate,
    whose `accumulate` holds the whole micro-batch. A condition that is also negated is not reported
    a second time: as long as the forward is outside, it changes nothing.

    When the fix is not offered: where the backward stands in two branches and only one of them is under `no_sync`:
    the forward belongs into both.

    Measured: relative error 1.2e-16, no spread between ranks, as many all-reduce calls as without `no_sync`.

    See: [`DistributedDataParallel.no_sync`][ddp], accelerate#1726, karpathy/build-nanogpt#30.
    """

    severity = Severity.INFO
    observed = Observed.ARMED_FORWARD
    claim = Claim.COMMUNICATION
    ranks = 2
    fix = Applicability.SAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        around = {b: w for w in run.windows for b in w.backwards}
        for backward in run.of(Backward):
            if not backward.silenced:
                continue
            entered = [e for e in run.between(NoSync, -1, backward.index) if e.entered]
            if not entered or entered[-1].wrapper.startswith("fsdp"):
                continue
            unseen = entered[-1].wrapper == "ddp" and covers_backward_only(trace, backward)
            prepared = entered[-1].wrapper == "accelerate" and all(
                c.forward is not None and c.forward.index < entered[-1].index
                for c in backward.contributions
            )
            if unseen or prepared or any(c.synced for c in backward.contributions):
                yield self.at(
                    entered[-1],
                    f"`no_sync` of `{entered[-1].subject}` covers a backward but not its "
                    "forward, where DDP decides to reduce",
                    confidence=Confidence.LIKELY if prepared else Confidence.CERTAIN,
                    # Who steps may be out of sight.
                    window=around.get(backward),
                    fixes=[
                        safe(
                            "Take the forward into `no_sync`",
                            Move(c.forward.node, Before(context.body[0]), "users"),
                        )
                        for context in contexts(trace.program, backward.node)
                        for c in backward.contributions
                        if c.forward is not None
                    ],
                )


def covers_backward_only(trace: Trace, backward: Backward) -> bool:
    """True when a context holds nothing but a backward: its forward is outside, wherever that may be."""
    if any(c.forward is not None for c in backward.contributions):
        return False
    for context in contexts(trace.program, backward.node):
        if all(_watches(item) for item, _ in context.items):
            continue
        callees = [dotted(n.func) for n in walk(context.body) if isinstance(n, Call)]
        return all(callee.endswith((".backward", ".scale")) for callee in callees)
    return False


def contexts(program: Program, backward: Node) -> Iterator[With]:
    """The contexts around a backward that may be `no_sync`."""
    for outer in program.above(backward):
        if isinstance(outer, With):
            yield outer


def _watches(item: Expr) -> bool:
    """True for a context that only measures what runs in it (`with record_function("backward"):`)."""
    last = called(item).lower() if isinstance(item, Call) else ""
    return any(part in last for part in ("record", "profil", "annotat", "timer", "timing", "watch"))
