"""DDP reduces on every micro-batch of a window."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from accumlint.reading.ir import Attr, If, render, walk
from accumlint.reading.program import Program
from accumlint.rule import (
    Applicability,
    Claim,
    Confidence,
    Finding,
    Fix,
    Observed,
    Rule,
    Severity,
    unsafe,
)
from accumlint.tracing.trace import (
    Accumulate,
    Contribution,
    NoSync,
    Reduce,
    Run,
    SyncFlag,
    Trace,
    Window,
)

from ._boundaries import under_no_sync
from ._wrapping import wrapped_elsewhere, wrapped_in_project

_SWITCHES = {"disable_allreduce", "disable_need_reduction"}
# Who goes backward: what it is called, and what it wraps a model by.
_MAKERS = {
    "accelerator": ("Accelerate", {"prepare", "prepare_model"}),
    "fabric": ("Fabric", {"setup", "setup_module"}),
}
# A context that keeps ranks from reducing, or a backend that reduces in another way than DDP.
_WAITS = re.compile(
    r"no_\w*sync|LocalSGD|deepspeed|zero_(stage|opt)|fsdp|FullyShard|static_graph|torch_xla",
    re.IGNORECASE,
)
# The same for a wrapper of the script's own, beside which DeepSpeed and FSDP may be choices.
_WAITS_IN_DDP = re.compile(r"no_\w*sync|LocalSGD|require_backward|static_graph|torch_xla")
# What is done with a model beside its training; none of it goes backward.
_LOOKS_ON = re.compile(
    r"(^|[._])(de_parallel|unwrap\w*|get_(raw_|core_)?model|eval\w*|valid\w*|test\w*|save\w*|count\w*)$"
)
_OWN_BACKWARDS = {"tensor", "scaler", "apex"}


class NoSyncMissing(Rule):
    """DDP all-reduces in every backward of a window, although the step needs it only once.

    Averaging over ranks is linear, so the result is right: the gradient that is applied is the one that a single
    reduction at the boundary gives. What is lost is time. A window of N micro-batches sends everything N times; with N
    = 4 that is 20 all-reduce calls where 5 do, and 117 KB where 29 KB do.

    Bad:

    ```python
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel


    def train(model, loader, optimizer, accumulation_steps):
        ddp = DistributedDataParallel(model)
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            optimizer.zero_grad()
            for _ in range(accumulation_steps):
                inputs, targets = next(batches)
                loss = F.cross_entropy(ddp(inputs), targets) / accumulation_steps
                loss.backward()  # error: ACC301
            optimizer.step()
    ```

    Good:

    ```diff
    +from contextlib import nullcontext
    +
     import torch.nn.functional as F
    @@
             optimizer.zero_grad()
    -        for _ in range(accumulation_steps):
    +        for micro_step in range(accumulation_steps):
                 inputs, targets = next(batches)
    -            loss = F.cross_entropy(ddp(inputs), targets) / accumulation_steps
    -            loss.backward()
    +            with nullcontext() if micro_step + 1 == accumulation_steps else ddp.no_sync():
    +                loss = F.cross_entropy(ddp(inputs), targets) / accumulation_steps
    +                loss.backward()
             optimizer.step()
    ```

    When it stays silent: on one process, with windows of one micro-batch, under Accelerate's `accumulate`, DeepSpeed,
    Lightning and the HF Trainer (they switch synchronisation themselves), with FSDP (where `no_sync` costs memory), as
    soon as the window uses `no_sync` or `require_backward_grad_sync` in any way, and when a call that could not be
    followed received the model. Under Accelerate and Fabric, with windows of the script's own, it is likely, since they
    may run one process; where another file of the project wraps the model, it is likely and names that place.

    When the fix is not offered: under Accelerate and Fabric, which have contexts of their own for it; with
    `static_graph=True`, where a first backward under `no_sync` fails inside the reducer, under ZeRO stage 2, which
    forbids `no_sync`, and for a forward that a helper makes of the model that it is given, or that goes on through a
    network which is not wrapped. Elsewhere it is unsafe, since a wrong condition turns a slow loop into one whose ranks
    drift apart (ACC302).

    Measured: with 2 and with 4 ranks the gradients agree to 1.7e-16, whatever the bucket size, and the ranks hold the
    same parameters. A window of 8 micro-batches of a model with 8.4 million parameters took 2.37 s instead of 1.28 s
    (gloo, one host). Only lossy communication hooks give another result.

    See: [`DistributedDataParallel.no_sync`][ddp], pytorch#143580 and accelerate#3679 on `static_graph`.
    """

    severity = Severity.INFO
    observed = Observed.REDUCED_EACH_TIME
    claim = Claim.COMMUNICATION
    ranks = 2
    fix = Applicability.UNSAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        for window in run.steady_of_each():
            if hides_model(run) or switches(trace.program):
                continue
            if window.is_sharded or window.of(NoSync) or window.of(SyncFlag):
                continue
            # What is cleared inside the window, by another defect, is reduced all the same.
            these = window.sources
            added = [c for b in window.backwards for c in b.contributions]
            added = [c for c in added if (c.origin, c.network) in these]
            # One backward through several micro-batches reduces once.
            if min(len({c.microbatch for c in added}), len({c.backward for c in added})) < 2:
                continue
            # A GAN's discriminator receives the generator's gradients before its own.
            first = added[0].backward
            by_framework = reduced_by(trace.program, window, added)
            where = f" (where {by_framework} runs several processes)" if by_framework else ""
            if not where and (wrapping := wrapped(trace, window, added)):
                where = f" (where the model is wrapped as at {wrapping})"
            # The network that the loss comes from last may be another than the wrapped one.
            mendable = not where and all(c.synced for c in added)
            if where or (is_reduced(added) and not waits(trace, window)):
                yield self.at(
                    first,
                    f"every micro-batch of the window all-reduces its gradients, while "
                    f"`{window.step.subject}.step()` needs them reduced once{where}",
                    confidence=Confidence.LIKELY if where else Confidence.CERTAIN,
                    window=window,
                    fixes=silenced(trace.program, window) if mendable else (),
                )


def is_reduced(added: list[Contribution]) -> bool:
    """True where each backward of two micro-batches or more reduces all gradients of a network that it reaches.

    A head beside the wrapped network may be no rank's but its own.
    """
    networks = {c.network for c in added if c.synced} - {c.network for c in added if not c.synced}
    return any(
        len({c.backward for c in added if c.network == network}) > 1
        and len({c.microbatch for c in added if c.network == network}) > 1
        for network in networks
    )


def reduced_by(program: Program, window: Window, added: list[Contribution]) -> str:
    """Accelerate or Fabric, where it wraps the model with DDP and is never told to wait; "" for anything else."""
    vias = {c.backward.via for c in added}
    waits = any(c.backward.accumulating for c in added)
    # A list of models is none that `accumulate` leaves the reduction out of.
    waits = waits and any(event.waits for event in window.of(Accumulate))
    # Networks that one loss reaches are parts of a model; those that have losses of their own may not be wrapped.
    reached = {frozenset(o.network for o in added if o.backward is c.backward) for c in added}
    if len(vias) > 1 or not vias <= _MAKERS.keys() or waits or len(reached) > 1:
        return ""
    maker, wrapping = _MAKERS[vias.pop()]
    sources = (source for source, _ in program.neighbours)
    if names(program.source.identifiers, _WAITS) or not (
        wrapping & program.words or any(wrapping & source.identifiers for source in sources)
    ):
        return ""
    # What is called past the wrapper is never reduced at all (ACC305).
    past = any(c.forward is not None and c.forward.bypassed for c in added)
    return "" if past else maker


def names(identifiers: frozenset[str], pattern: re.Pattern[str]) -> bool:
    """True where a file's code names something like this."""
    return any(map(pattern.search, identifiers))


def waits(trace: Trace, window: Window) -> bool:
    """True where the window's own functions wait under a flag that this path has decided otherwise."""
    ends = {trace.program.function_around(e.node) for e in (window.backwards[-1], window.step)}
    inside = (n for f in ends if f is not None for n in walk(f.body) if isinstance(n, Attr))
    return bool(trace.assumptions) and any(_WAITS_IN_DDP.match(n.name) for n in inside)


def hides_model(run: Run) -> bool:
    """True when a call that could not be followed received the model, and may do more than save or evaluate it."""
    received = (u.callee for u in run.unread if u.inside and "model" in u.received)
    return bool(run.stopped) or not all(_LOOKS_ON.search(callee) for callee in received)


def wrapped(trace: Trace, window: Window, added: list[Contribution]) -> str:
    """Where DDP wraps the model that the trace saw unwrapped, in files that never tell it to wait; "" for nowhere."""
    program = trace.program
    if any(c.wrapper or c.synced is not None for c in added) or window.of(Reduce):
        return ""
    if not {b.via for b in window.backwards} <= _OWN_BACKWARDS:
        return ""
    if names(program.source.identifiers, _WAITS_IN_DDP):
        return ""
    wrapping = wrapped_elsewhere(program, trace.entry, added)
    if wrapping is None:
        spot = wrapped_in_project(program, added)
        if spot is None or names(spot.source.identifiers, _WAITS_IN_DDP):
            return ""
        return f"line {spot.place.line} of {Path(spot.source.path).name}"
    # What this path has decided is told by the path on which the model is wrapped.
    decided = {text for text, _ in trace.assumptions}
    if any(isinstance(n, If) and render(n.test) in decided for n in program.above(wrapping)):
        return ""
    return f"line {program.place(wrapping).line}"


def switches(program: Program) -> bool:
    """True when a wrapper of another library is told when to reduce (`model.disable_allreduce()`)."""
    return any(n.name in _SWITCHES for n in program.of(Attr))


def silenced(program: Program, window: Window) -> Iterator[Fix]:
    """Puts forward and backward under `no_sync` unless the boundary is reached; a static graph forbids it."""
    # Apex's wrapper of the same name has no `no_sync`.
    elsewhere = any(path.startswith("apex.parallel") for path in program.imports.values())
    if "static_graph" in program.source.identifiers or elsewhere:
        return
    for verbs in under_no_sync(program, window):
        yield unsafe("Reduce the gradients at the boundary only", *verbs)
