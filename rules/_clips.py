"""Which clips bound nothing that a step applies."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.tracing.trace import Backward, Clear, Clip, Forward, Run, Step, Window


def idle_clips(run: Run, window: Window) -> Iterator[Clip]:
    """The clips of a window that find no gradient, where none follows the window's last backward.

    Only clips of what the window applies count, and a clip between the steps of two optimizers belongs to the second.
    """
    networks = {c.network for c in window.contributions}
    backwards = [b for b in window.backwards if any(c.network in networks for c in b.contributions)]
    clips = [c for c in window.of(Clip) if not c.networks or c.networks & networks]
    if not backwards or any(clip.index > backwards[-1].index for clip in clips):
        return
    for clip in clips:
        following = (e for e in run.events[clip.index + 1 :] if isinstance(e, Step | Backward))
        if not clip.pending and isinstance(next(following, None), Backward):
            yield clip


def follows_step(run: Run, clip: Clip) -> bool:
    """True when a clip stands behind a step, and not ahead of the next window."""
    before = (e for e in reversed(run.events[: clip.index]))
    telling = next((e for e in before if isinstance(e, Step | Backward | Clear | Forward)), None)
    return isinstance(telling, Step)
