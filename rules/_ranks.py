"""Which applied gradients the ranks do not share."""

from __future__ import annotations

from accumlint.tracing.trace import Contribution, Forward, Reduce, Rescale, Window


def unshared(window: Window) -> Contribution | None:
    """The last contribution of a network that DDP never reduced, None when none is known.

    A reduction covers all that a network holds in `.grad`, so only its last contribution decides.
    """
    last = {c.network: c for c in window.contributions}
    if reduced_by_hand(window) or is_sharded(window) or (len(last) > 1 and not window.step.owned):
        return None
    return next((c for c in last.values() if c.synced is False), None)


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
