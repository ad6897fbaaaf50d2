"""FSDP2's gradient synchronisation is off in the backward that should reduce."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import Replace
from accumlint.reading.ir import Call, Const, Node, Unary
from accumlint.reading.program import Program
from accumlint.rule import Applicability, Finding, Fix, Observed, Related, Rule, Severity, safe
from accumlint.tracing.trace import Backward, Run, SyncFlag, Trace, Window

from ._boundaries import boundary_tests


class FsdpSyncNotRestored(Rule):
    """`set_requires_gradient_sync` is still off when the last micro-batch of a window goes backward.

    FSDP2 asks the flag after each module's backward: while it is off the gradients stay on the rank, unsharded, and
    `.grad`, which the optimizer reads, gets nothing. Never switched on again, `p.grad` is None at every step and no
    parameter ever moves. Switched the wrong way round in a window of N micro-batches, the last one is left out of its
    own step and added to the next: `zero_grad` does not reach it, and with N = 4 the applied gradient is off by 26 %.

    Bad:

    ```python
    import torch.nn.functional as F
    from torch.distributed.fsdp import fully_shard


    def train(model, loader, make_optimizer, accumulation_steps):
        fully_shard(model)
        optimizer = make_optimizer(model.parameters())
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            optimizer.zero_grad()
            for micro_step in range(accumulation_steps):
                inputs, targets = next(batches)
                last = micro_step + 1 == accumulation_steps
                model.set_requires_gradient_sync(not last)  # error: ACC309
                loss = F.cross_entropy(model(inputs), targets)
                (loss / accumulation_steps).backward()
            optimizer.step()
    ```

    Good:

    ```diff
                 last = micro_step + 1 == accumulation_steps
    -            model.set_requires_gradient_sync(not last)
    +            model.set_requires_gradient_sync(last)
                 loss = F.cross_entropy(model(inputs), targets)
    ```

    When it stays silent: when the flag is switched between the forward and the backward, which is early enough here
    (DDP's is not, ACC304); when its value could not be worked out; when the gradients are reduced by hand before the
    step; when nothing ever switches it on and a call that could not be followed received the model; and on
    `set_requires_all_reduce`, which is about replicas.

    When the fix is not offered: where the synchronisation is switched off once for the whole run, or by a helper
    that knows no boundary.

    Measured (N = 4, 2 ranks, gloo): left off, `p.grad` is None and no update happens; the wrong way round, relative
    error .26, cosine .993, length .756 at the first step, and the parameters end 8.6 % of the distance trained away;
    right, exact with 9 reduce-scatter calls instead of 36.

    See: [`FSDPModule.set_requires_gradient_sync`][fsdp].

    [fsdp]: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """

    severity = Severity.ERROR
    observed = Observed.SHARDS_UNSYNCED
    ranks = 2
    fix = Applicability.SAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        for run in trace.runs:
            off = switched_off(run)
            restored = any(flag.on is not False for flag in run.of(SyncFlag))
            if not restored and run.hides("model", "optimizer"):
                continue
            for window in run.windows:
                last = {c.network: c.backward for c in window.contributions}
                flag = next((off[b] for b in last.values() if b in off), None)
                if flag is None or window.reduced_by_hand:
                    continue
                told = (
                    f"the last micro-batch before `{window.step.subject}.step()` goes backward with "
                    f"`{flag.subject}`'s gradient synchronisation off"
                )
                yield self.at(
                    flag,
                    told if restored else f"{told}, and nothing switches it on",
                    window=window,
                    related=[Related(window.step.node, "finds no gradient of that micro-batch")],
                    fixes=sync_at_boundary(trace.program, window, flag.node),
                )


def switched_off(run: Run) -> dict[Backward, SyncFlag]:
    """The backwards that FSDP2 does not reduce, each with what switched the synchronisation off."""
    state: dict[str, SyncFlag] = {}
    found: dict[Backward, SyncFlag] = {}
    for event in run.events:
        if isinstance(event, SyncFlag) and event.wrapper == "fsdp2":
            state.update(dict.fromkeys(event.networks, event))
        elif isinstance(event, Backward):
            flags = [state[c.network] for c in event.contributions if c.network in state]
            found.update((event, flag) for flag in flags if flag.on is False)
    return found


def sync_at_boundary(program: Program, window: Window, flag: Node) -> Iterator[Fix]:
    """Switches on at the boundary: the other way round, or by the boundary's own test."""
    if isinstance(flag, Call) and len(flag.args) == 1 and not isinstance(flag.args[0].value, Const):
        wanted = flag.args[0].value
        opposite = [program.code(wanted.operand)] if isinstance(wanted, Unary) else []
        for test in (*opposite, *boundary_tests(program, window)):
            yield safe("Synchronise at the boundary", Replace(wanted, test))
