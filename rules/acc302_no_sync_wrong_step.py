"""The micro-batch before the step is the one that does not sync."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import Replace
from accumlint.reading.ir import Choice, Expr, Function, names_in, walk
from accumlint.reading.program import Program
from accumlint.rule import Applicability, Claim, Finding, Fix, Observed, Rule, Severity, safe
from accumlint.tracing.trace import Forward, SyncFlag, Trace, Window

from ._boundaries import boundary_tests


class NoSyncWrongStep(Rule):
    """The last forward before the step runs inside `no_sync`: each rank applies its own gradients.

    DDP reduces all that is in `.grad` in the backward of a forward that ran outside `no_sync`. What
    counts is therefore the last forward before the step. When it is inside (the condition is
    negated, tests `i` for `i + 1`, covers the whole window, or forgets the partial window), each
    rank steps with what it alone has seen and the parameters drift apart: with N = 4, 2 ranks and a
    negated condition the applied gradient is off by 13 %, with nothing reduced by 23 %.

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
                last = micro_step + 1 == accumulation_steps
                with ddp.no_sync() if last else nullcontext():
                    loss = F.cross_entropy(ddp(inputs), targets)  # error: ACC302
                    (loss / accumulation_steps).backward()
            optimizer.step()
    ```

    Good:

    ```diff
                 last = micro_step + 1 == accumulation_steps
    -            with ddp.no_sync() if last else nullcontext():
    +            with nullcontext() if last else ddp.no_sync():
                     loss = F.cross_entropy(ddp(inputs), targets)
    ```

    When it stays silent: when the gradients are reduced by hand before the step, when a last synchronised forward
    follows (even of a zero loss: it reduces all that was accumulated), under frameworks that choose the micro-batch
    themselves, and, if nothing in the loop ever syncs, when a call that could not be followed received the model or the
    optimizer, because it may reduce. FSDP reads its flag after the backward and has a rule of its own (ACC309).

    When the fix is not offered: only the condition of a conditional expression is mended, by
    turning it round or by the boundary's own test. A window that lies wholly inside `no_sync` may
    be waiting for a reduction that was never written.

    Measured (N = 4; 2 ranks, 4 ranks): relative error of the first applied gradient .23 and .28 with the whole window
    inside, .13 and .15 with the condition negated, .19 and .25 when only the first micro-batch syncs, up to .34 and .39
    on a forgotten partial window. The spread between ranks is .11 to .25 of the distance trained; a right loop has 0.

    See: [`DistributedDataParallel.no_sync`][ddp], whose warning says that the forward belongs inside the context.
    """

    severity = Severity.ERROR
    observed = Observed.UNSYNCED
    claim = Claim.RANKS
    ranks = 2
    fix = Applicability.SAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        for run in trace.runs:
            ever_synced = any(c.synced for w in run.windows for c in w.contributions)
            if not ever_synced and run.hides("model", "optimizer"):
                continue
            for window in run.windows:
                last = window.unshared
                if last is None or any(flag.after_forward for flag in window.of(SyncFlag)):
                    continue
                forward = window.forward_of(last)
                if not any(f.bypassed for f in window.of(Forward)):
                    yield self.at(
                        forward or last.backward,
                        f"the last micro-batch before `{window.step.subject}.step()` runs without "
                        "gradient synchronisation, so each rank applies its own gradients",
                        window=window,
                        fixes=sync_at_boundary(trace.program, window),
                    )


def sync_at_boundary(program: Program, window: Window) -> Iterator[Fix]:
    """Asks for the boundary where `no_sync` is chosen: the other way round, or by the boundary's own test."""
    inverted = all(c.synced for c in window.contributions[:-1])
    for choice in choices(program, window):
        body, orelse = program.code(choice.body), program.code(choice.orelse)
        if inverted:
            swapped = f"{orelse} if {program.code(choice.test)} else {body}"
            yield safe("Synchronise at the boundary only", Replace(choice, swapped))
        silent, loud = (body, orelse) if is_silent(choice.body) else (orelse, body)
        for test in boundary_tests(program, window):
            chosen = f"{loud} if {test} else {silent}"
            yield safe("Synchronise at every boundary", Replace(choice, chosen))


def choices(program: Program, window: Window) -> list[Choice]:
    """The conditional expressions in the forward's function of which one arm is a `no_sync`."""
    forwards = {forward.node for forward in window.of(Forward)}
    functions = {n for f in forwards for n in program.above(f) if isinstance(n, Function)}
    nodes = [n for f in functions for n in walk(f.body)] if functions else program.nodes
    found = (n for n in nodes if isinstance(n, Choice))
    return [n for n in found if is_silent(n.body) != is_silent(n.orelse)]


def is_silent(expr: Expr) -> bool:
    """True for an expression with a `no_sync` in it."""
    return any(name.rpartition(".")[2] == "no_sync" for name in names_in(expr))
