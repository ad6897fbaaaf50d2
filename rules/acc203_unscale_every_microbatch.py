"""`unscale_` runs before a window is complete, or twice."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from accumlint.editing import Before, Delete, Move
from accumlint.reading.ir import Node
from accumlint.rule import Applicability, Claim, Finding, Observed, Related, Rule, Severity, safe
from accumlint.tracing.trace import Clip, Trace, Unscale, Update, Window


class UnscaleEveryMicrobatch(Rule):
    """`unscale_` runs more than once per window, or before the last backward of it.

    `unscale_` divides what is in `.grad` by the scale, once: a second call before `update()` raises. Called in the
    middle of a window and not again, it leaves true gradients to which scaled ones are added, and `scaler.step` takes
    the scale off neither, since it believes that to be done: the last micro-batches then count 65536 times as much.
    With `update()` after every `unscale_` nothing raises, older micro-batches are divided again each time, and
    only the last one survives.

    Bad:

    ```python
    import torch
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps, max_norm):
        scaler = torch.amp.GradScaler("cuda")
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            for _ in range(accumulation_steps):
                images, labels = next(batches)
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = F.cross_entropy(model(images), labels) / accumulation_steps
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)  # error: ACC203
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    ```

    Good:

    ```diff
                 scaler.scale(loss).backward()
    -            scaler.unscale_(optimizer)
    +        scaler.unscale_(optimizer)
             torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    ```

    When it stays silent: with `GradScaler(enabled=False)`, where `unscale_` does nothing; on one call for each of
    several optimizers; on `accelerator.clip_grad_norm_`, which is ACC202 when it is not guarded. A window that is
    unscaled once and never closed by `update()` is ACC204.

    When the fix is not offered: where the boundary is in another function, and where the second call is not a
    statement of its own.

    Measured (N = 4): RuntimeError "unscale_() has already been called on this optimizer since the last update()" at the
    second call. After the first micro-batch only: relative error .157 with a clip behind it, length 5e4 without. With
    `update()` each time: relative error .73, cosine .89, length .32, silently.

    See: [`GradScaler.unscale_`][unscale] (once per optimizer and step, after all gradients have been accumulated);
    [pytorch #36601][example], which added the example of accumulation.

    [unscale]: https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler.unscale_
    [example]: https://github.com/pytorch/pytorch/pull/36601
    """

    severity = Severity.ERROR
    observed = Observed.UNSCALED_EARLY
    fix = Applicability.SAFE
    claim = Claim.EXCEPTION

    def check(self, trace: Trace) -> Iterator[Finding]:
        for window in trace.main.windows:
            unscales = [
                u for u in window.of(Unscale) if u.optimizer in (window.step.optimizer, None)
            ]
            early = [u for u in unscales if is_early(window, u)]
            for unscale in early:
                yield self.at(
                    unscale,
                    f"`{unscale.subject}.unscale_` runs before the last backward of its window, so "
                    "scaled gradients are added to unscaled ones",
                    window=window,
                    fixes=[
                        safe("Unscale once, at the boundary", Move(unscale.node, Before(first)))
                        for first in boundary(window)
                    ],
                )
            for first, second in pairwise(unscales if not early else []):
                updated = any(first.index < u.index < second.index for u in window.of(Update))
                if not updated:
                    yield self.at(
                        second,
                        f"`{second.subject}.unscale_` runs a second time in its window",
                        window=window,
                        related=[Related(first.node, "has unscaled the window before")],
                        fixes=[safe("Leave the second call out", Delete(second.node))],
                    )


def is_early(window: Window, unscale: Unscale) -> bool:
    """True when later micro-batches of the window go backward after what is unscaled here."""
    now = max((c.microbatch for c in unscale.pending), default=0)
    return any(
        c.microbatch > now > 0 and c.backward.index > unscale.index for c in window.contributions
    )


def boundary(window: Window) -> list[Node]:
    """The calls that need unscaled gradients after the last backward: a clip, if there is one, and the step."""
    clips = [c.node for c in window.of(Clip) if c.index > window.backwards[-1].index]
    return [*clips[:1], window.step.node]
