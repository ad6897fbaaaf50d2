"""Which losses a window is about, where several share a network."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.tracing.trace import Backward, Clear, Run, Step, Trace, Window


def sources(window: Window) -> frozenset[tuple[str, str]]:
    """The losses that the step applies, each with the network it reaches."""
    return frozenset((c.origin, c.network) for c in window.contributions)


def length(window: Window, like: Window | None = None) -> int:
    """How many micro-batches of its losses (or those of another window) went backward since the previous step.

    A GAN's discriminator also receives the generator's gradient; what is cleared of it makes no window longer, by
    the name of its loss or because the generator's step had applied it by then.
    """
    of_these = sources(window if like is None else like)
    spent = spent_elsewhere(window)
    return len(
        {
            backward.microbatch
            for backward in window.backwards
            if backward not in spent
            and any((c.origin, c.network) in of_these for c in backward.contributions)
        }
    )


def spent_elsewhere(window: Window) -> set[Backward]:
    """The backwards that another optimizer's step applied before this one's share of them was cleared."""
    others = [step for step in window.of(Step) if step is not window.step]
    if not others:
        return set()
    return {
        wiped.backward
        for clear in window.of(Clear)
        for wiped in clear.wiped
        if any(
            wiped.backward.index < step.index < clear.index
            and any(applied.backward is wiped.backward for applied in step.applied)
            for step in others
        )
    }


def accumulating_windows(run: Run) -> Iterator[Window]:
    """A steady window of each optimizer for which several micro-batches go backward."""
    for optimizer in run.optimizers:
        window = run.steady(optimizer)
        if window is not None and length(window) > 1:
            yield window


def is_entangled(window: Window) -> bool:
    """True when optimizers take turns inside a window, and it is not known which network is whose."""
    if window.step.owned:
        return False
    cleared = {clear.optimizer for clear in window.of(Clear)} - {None, window.step.optimizer}
    if cleared and any(c.network == "?" for c in window.contributions):
        return True
    turn = ""
    for event in window.between:
        if isinstance(event, Backward):
            if turn == "stepped":
                return True
            turn = "backward"
        elif isinstance(event, Step) and event is not window.step and turn == "backward":
            turn = "stepped"
    return False


def typical_windows(trace: Trace) -> Iterator[Window]:
    """One window of each optimizer that holds no gradient of an earlier one: a steady one, where there is one."""
    run = trace.main
    for optimizer in run.optimizers:
        windows = run.windows_of(optimizer)
        window = run.steady(optimizer) or next((w for w in windows if w.contributions), None)
        if window is not None and window.contributions:
            start = window.between[0].index
            if all(c.backward.index >= start for c in window.contributions):
                yield window
