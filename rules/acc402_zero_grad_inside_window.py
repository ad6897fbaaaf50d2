"""Gradients are cleared between the backwards of one window."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import After, Delete, Insert
from accumlint.rule import Applicability, Finding, Fix, Observed, Rule, Severity, safe
from accumlint.tracing.trace import Clear, EpochEnd, Rescale, Trace, Window

from ._calls import after_update, receiver_of


class ZeroGradInsideWindow(Rule):
    """Gradients are cleared between the backwards of one window; only what follows counts.

    With `zero_grad` on every micro-batch, N - 1 of N micro-batches are computed and thrown away.
    The step applies the gradient of the last one, divided by N: it is as noisy as a batch N times
    smaller, and N times too short. The loss still falls, only slower, and no error is raised.

    Bad:

    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps):
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            for _ in range(accumulation_steps):
                inputs, targets = next(batches)
                optimizer.zero_grad()  # error: ACC402
                loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
                loss.backward()
            optimizer.step()
    ```

    Good:

    ```diff
                 inputs, targets = next(batches)
    -            optimizer.zero_grad()
                 loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
    @@
             optimizer.step()
    +        optimizer.zero_grad()
    ```

    When it stays silent: when what is cleared came from another loss (a probe backward, the other network of a GAN), in
    handlers of NaN and out-of-memory, at the first micro-batch of a window, where nothing is pending, when the
    gradients were rescaled or copied by hand before, and when an accumulator gathers them in buffers of its own.
    Accelerate's prepared `optimizer.zero_grad()` does nothing until the boundary: after the step it is right,
    unguarded; at the start of the `accumulate` body it is not, because at the last micro-batch it clears the ones
    before. `model.zero_grad()` always clears.

    What it hides is reported with it: the loop is followed once more as if the gradients were cleared behind the step,
    and what is found then (a loss that nothing divides, a last window that leaks) holds "once ACC402 is mended".
    What is only an info is left out.

    When the fix is not offered: where the clearing is part of a longer statement, or no step in the same class or
    function can take it over.

    Measured (N = 4): relative error .77, cosine .88 and length ratio .27 at the first update; after 6 windows the
    parameters are off by .75 of the distance trained with SGD, by .36 with Adam. The same for both Accelerate forms.

    See: [`Optimizer.zero_grad`][zero], [gradient accumulation in Accelerate][accelerate].
    """

    severity = Severity.ERROR
    observed = Observed.CLEARED_INSIDE
    fix = Applicability.SAFE
    # A window of one micro-batch needs no division, no last step of an epoch and no `no_sync`.
    hides = ("ACC1", "ACC2", "ACC3", "ACC5")
    misplaced = True

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        for window in run.steady_of_each():
            if window.of(EpochEnd) or window.is_entangled:
                continue
            kept, seen = len(window.microbatches), window.backward_count()
            # Who is given a loss to take it backward may gather the gradients in buffers of its own.
            handed = any(b.via == "tensor" and b.subject != b.loss for b in window.backwards)
            if kept >= seen or handed:
                continue
            for clear in window.of(Clear):
                # A probe's gradient, of a loss that no step ever applies, is cleared on purpose.
                wiped = {(c.origin, c.network) for c in clear.wiped}
                by_hand = any(e.index < clear.index and not e.reduced for e in window.of(Rescale))
                inside = clear.index < window.backwards[-1].index
                if inside and wiped & window.sources and not by_hand:
                    told = kept if run.written in (None, seen) else "some"
                    applied = f"{told} of {run.in_file(seen)} micro-batches"
                    if kept == 1:
                        applied = "only the last micro-batch"
                    yield self.at(
                        clear,
                        f"the gradients of `{clear.subject}` are cleared inside the window: "
                        f"`{window.step.subject}.step()` applies {applied}",
                        window=window,
                        fixes=clear_after_step(trace, window, clear),
                    )


def clear_after_step(trace: Trace, window: Window, clear: Clear) -> Iterator[Fix]:
    """Clears what the step has applied, by the optimizer where the framework waits for the boundary with it."""
    yield from after_update(trace, window, clear.node, "Clear")
    optimizer = receiver_of(window.step.node)
    if optimizer and window.step.gated:
        call = f"{optimizer}.zero_grad()"
        insert = Insert(call, After(window.step.node))
        yield safe(f"Clear by `{call}` after the step", Delete(clear.node), insert)
