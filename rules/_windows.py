"""Which losses a window is about, where several share a network."""

from __future__ import annotations

from accumlint.tracing.trace import Window


def sources(window: Window) -> frozenset[tuple[str, str]]:
    """The losses that the step applies, each with the network it reaches."""
    return frozenset((c.origin, c.network) for c in window.contributions)


def length(window: Window) -> int:
    """How many micro-batches of these losses went backward since the previous step.

    A GAN's discriminator also receives the generator's gradient; what is cleared of it makes no window longer.
    """
    of_these = sources(window)
    return len(
        {
            backward.microbatch
            for backward in window.backwards
            if any((c.origin, c.network) in of_these for c in backward.contributions)
        }
    )
