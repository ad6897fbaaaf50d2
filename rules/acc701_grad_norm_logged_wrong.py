"""A gradient norm is measured where it is not the norm of the window's gradient."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.reading.ir import Call, Do, If, Node, called, walk
from accumlint.reading.program import Program
from accumlint.rule import Claim, Confidence, Finding, Rule, Severity
from accumlint.tracing.trace import Backward, Clear, Clip, Event, Norm, Rescale, Run, Trace


class GradNormLoggedWrong(Rule):
    """A gradient norm is measured at a place where it is not the norm of what the step applies.

    After `zero_grad` it is 0, or there is nothing to measure. After clipping it is never more than the threshold, so
    the spikes that it is watched for cannot be seen. Between the backwards of one window it is the norm of a part of
    the window, and grows from micro-batch to micro-batch. While the gradients are multiplied by the scale of a
    GradScaler it shows the scale. The training is right; the curve on the screen is not.

    Bad:

    ```python
    import torch
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps):
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            for _ in range(accumulation_steps):
                inputs, targets = next(batches)
                loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            print(sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5)  # error: ACC701
            optimizer.step()
            optimizer.zero_grad()
    ```

    Good:

    ```diff
                 loss.backward()
    -        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    -        print(sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5)
    +        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    +        print(norm)
             optimizer.step()
    ```

    When it stays silent: when the value that clipping returns is used as well (then the norm after
    it is meant to be one), when the gradients are rescaled by the measured norm (a clipping of one's
    own), when several optimizers step, when the cleared gradients may be another network's, and on the side
    of a guard whose other side clips at the same place.

    When the fix is not offered: when the norm is measured by a helper that serves other places too.

    Measured (N = 4): the window's norm is .352. Measured after `zero_grad` 0, after each backward
    .09, .18, .27, .35, after clipping to .05 it is .05.

    See: [`clip_grad_norm_`][clip], which returns the norm before it clips.
    """

    severity = Severity.INFO
    claim = Claim.LOG
    unmeasured = "no run tells what a figure that is shown is meant to be"

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        window = next(run.steady_of_each(), None)
        if len(run.optimizers) != 1 or any(r.by != "ranks" for r in run.of(Rescale)):
            return
        if window is None or window.is_entangled:
            return
        places = {e.node: e for e in run.of(Norm) if e.microbatch}
        for place in places.values():
            if stands_in_for_clip(trace.program, place.node):
                continue
            events = [e for e in run.of(Norm) if e.node is place.node]
            here = {e.microbatch for e in events}
            if all(after_clearing(run, e) for e in events):
                said = "is measured after the gradients were cleared"
            elif any(c.scaled for c in place.held):
                said = "is measured while the gradients are multiplied by the scaler's scale"
            elif all(after_clipping(trace.program, run, e) for e in events):
                said = "is measured after clipping"
            elif len(window.backwarded) > 1 and here >= set(window.backwarded):
                said = "is measured on every micro-batch, of a window that is not complete"
            else:
                continue
            yield self.at(
                place,
                f"the gradient norm {said}",
                confidence=Confidence.LIKELY,
                window=window,
            )


def stands_in_for_clip(program: Program, node: Node) -> bool:
    """True for the norm on the side of a guard whose other side clips: both stand rightly, or ACC202 tells of both."""
    guards = [n for n in program.above(node) if isinstance(n, If) and n.orelse]
    sides = (side for n in guards for side in (list(walk(n.body)), list(walk(n.orelse))))
    others = (called(n) for side in sides if node not in side for n in side)
    return any("clip_grad" in callee for callee in others)


def before(run: Run, norm: Norm) -> Iterator[Event]:
    """What happened to the gradients before a measurement, latest first, back to the last backward."""
    for event in reversed(run.events[: norm.index]):
        if isinstance(event, Backward):
            return
        yield event


def after_clearing(run: Run, norm: Norm) -> bool:
    """True when nothing is left to measure, because it was cleared after it was applied."""
    return not norm.held and any(isinstance(e, Clear) and e.applied for e in before(run, norm))


def after_clipping(program: Program, run: Run, norm: Norm) -> bool:
    """True when the gradients were clipped before, and the norm that clipping returned was dropped."""
    clips = [e for e in before(run, norm) if isinstance(e, Clip) and e.pending]
    return bool(clips) and all(is_dropped(program, clip.node) for clip in clips)


def is_dropped(program: Program, node: Node) -> bool:
    """True for a norm-clipping call that stands alone as a statement."""
    named = isinstance(node, Call) and "norm" in called(node)
    return named and any(n.value is node for n in program.of(Do))
