"""Which applied gradients the ranks do not share, and which factor of the world size is theirs."""

from __future__ import annotations

from accumlint.reading.frameworks import CONTRACTS
from accumlint.reading.program import Program
from accumlint.tracing.trace import (
    ELEMENTS,
    Backward,
    Contribution,
    Forward,
    Reduce,
    Rescale,
    Window,
)

_AVERAGING = {
    "ddp": "DDP", "fsdp": "FSDP", "fsdp2": "FSDP", **{row.framework: row.title for row in CONTRACTS.values()},
}  # fmt: skip
_OWN_AVERAGE = {
    "register_comm_hook", "set_gradient_divide_factor", "set_reduce_scatter_divide_factor",
    "set_force_sum_reduction_for_comms", "gradient_predivide_factor", "gradient_postdivide_factor", "disable_allreduce",
}  # fmt: skip
_GATHERING = ("all_gather", "allgather", "gatherlayer", "gather_features", "gather_with_grad")


def unshared(window: Window) -> Contribution | None:
    """The last contribution of a network that DDP never reduced, None when none is known.

    A reduction covers all that a network holds in `.grad`, so only its last contribution decides.
    """
    last = {c.network: c for c in window.contributions}
    if reduced_by_hand(window) or is_sharded(window) or (len(last) > 1 and not window.step.owned):
        return None
    alone = (c for c in last.values() if c.synced is False)
    return next((c for c in alone if not is_awaited(window, c)), None)


def is_awaited(window: Window, contribution: Contribution) -> bool:
    """True where the wrapper was called before the same backward: it reduces whatever the loss is made of."""
    forward, until = contribution.forward, contribution.backward.index
    before = (b.index for b in window.of(Backward) if b.index < until)
    since = max(before, default=-1)
    return (
        forward is not None
        and forward.bypassed
        and any(
            f.model is forward.model and f.armed and not f.bypassed and since < f.index < until
            for f in window.of(Forward)
        )
    )


def reduced_by_hand(window: Window) -> bool:
    """True when the code itself reduces gradients over ranks before the step."""
    return any(e.reduced for e in window.of(Rescale)) or any(
        e.what == "gradients" for e in window.of(Reduce)
    )


def forward_of(window: Window, contribution: Contribution) -> Forward | None:
    """The forward that a contribution comes from, where it is an event of the window."""
    return contribution.forward if contribution.forward in window.between else None


def is_sharded(window: Window) -> bool:
    """True under FSDP, which asks for its flags after the backward and pays for `no_sync` in memory."""
    return any(e.wrapper.startswith("fsdp") for e in window.of(Forward))


def averaged_by(contribution: Contribution) -> str:
    """Who averages a contribution over ranks, "" where nobody is known to."""
    return _AVERAGING.get(contribution.wrapper, "")


def is_sure(contribution: Contribution) -> bool:
    """True when there is a wrapper for several ranks, not only a framework that also trains on one."""
    return contribution.wrapper in ("ddp", "fsdp", "fsdp2")


def averages_its_own_way(program: Program) -> bool:
    """True when a file changes what the reduction of its wrapper divides by."""
    return bool(program.words & _OWN_AVERAGE)


def gathers(program: Program) -> bool:
    """True when a file gathers tensors over ranks: a loss made of these has a gradient on every rank."""
    return any(part in word.lower() for word in program.words for part in _GATHERING)


def due_ranks(contribution: Contribution) -> int | None:
    """The power of the world size that the loss needs where ranks are averaged; None where that cannot be told.

    A mean over this rank's elements needs none, a sum over the count of all ranks is still to be multiplied by it.
    """
    divisor = contribution.divisor
    if divisor is None:
        return 0 if contribution.reduction == "mean" else None
    if divisor.over in ("sum", "mean"):
        return int(divisor.over == "sum")
    return 0 if divisor.kind else None


def has_other_factors(contribution: Contribution) -> bool:
    """True when the loss has factors that nobody knows, besides powers of the world size."""
    factors = [s for s in contribution.symbols if not s.startswith(ELEMENTS)]
    return contribution.weight is None or len(factors) != abs(contribution.ranks)
