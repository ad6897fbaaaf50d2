"""Gradients are cleared only if the scaler did not skip its step."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import After
from accumlint.reading.ir import Call, If, Node, dotted, walk_expr
from accumlint.reading.program import Program
from accumlint.rule import Applicability, Finding, Fix, Observed, Rule, Severity, Symptom, safe
from accumlint.tracing.trace import Backward, Clear, Run, SkippedStep, Step, Trace

from ._calls import taken


class StepSkipKeepsGradients(Rule):
    """`zero_grad` runs only when the scaler has not skipped the step, so what overflowed stays in `.grad`.

    A GradScaler skips a step when a gradient is infinite or NaN, and halves its scale: one window is lost and training
    goes on. With the clearing under the same condition the infinite gradient stays, the next N micro-batches are added
    to it, the sum is infinite again, the step is skipped again, and so on for good. Nothing raises. The loss is finite
    and flat, the scale falls with every window: after one overflow in the third of 30 windows there are 3 updates
    instead of 29.

    Bad:

    ```python
    import torch
    import torch.nn.functional as F


    def train(model, loader, optimizer, scheduler, accumulation_steps):
        scaler = torch.amp.GradScaler("cuda")
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            for _ in range(accumulation_steps):
                images, labels = next(batches)
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = F.cross_entropy(model(images), labels) / accumulation_steps
                scaler.scale(loss).backward()
            scale = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            if scaler.get_scale() >= scale:  # error: ACC209
                scheduler.step()
                optimizer.zero_grad()
    ```

    Good:

    ```diff
                 scheduler.step()
    -            optimizer.zero_grad()
    +        optimizer.zero_grad()
    ```

    The scheduler is right where it is: a skipped step should not move the learning rate.

    When it stays silent: when the gradients are cleared anywhere else before the next backward, for instance at the top
    of the loop. A clearing that is missing on every path is ACC401; a guard on the loss or on the norm that jumps over
    step and clearing is ACC408.

    Measured (N = 4, 30 windows, scale 65536, one inf in the third): 3 updates, and a scale of 4.9e-4 at the end. With
    the clearing in every window: 29 updates, scale 32768.

    See: [`GradScaler.step`][step], which skips; Accelerate's `optimizer_step_was_skipped`.
    """

    severity = Severity.ERROR
    needs_followed = ("optimizer",)
    observed = Observed.KEPT_AFTER_SKIP
    symptom = Symptom.STUCK
    exceptional = True
    fix = Applicability.SAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        for asked in run.of(SkippedStep):
            step = next(
                (e for e in reversed(run.events[: asked.index]) if isinstance(e, Step)), None
            )
            if step is not None and stays(run, step):
                yield self.at(
                    asked,
                    f"`{step.subject}`'s gradients are cleared only if the scaler has not skipped the step: "
                    "after one overflow they stay infinite",
                    fixes=clear_anyway(trace.program, asked.node),
                )


def stays(run: Run, step: Step) -> bool:
    """True when something is added to what a step was to apply before it is cleared."""
    applied = {(c.microbatch, c.network) for c in step.applied}
    networks = {c.network for c in step.applied}
    for event in run.events[step.index + 1 :]:
        if isinstance(event, Clear) and any(
            (c.microbatch, c.network) in applied for c in (*event.wiped, *event.applied)
        ):
            return False
        if isinstance(event, Backward) and any(c.network in networks for c in event.contributions):
            return True
    return False


def clear_anyway(program: Program, asked: Node) -> Iterator[Fix]:
    """Takes the clearing out of the guard that asks whether the step was skipped."""
    guard = next((n for n in program.above(asked) if isinstance(n, If)), None)
    for node in walk_expr(guard) if guard is not None else ():
        if isinstance(node, Call) and dotted(node.func).endswith(".zero_grad"):
            for verbs in taken(program, node, After(guard)) if guard is not None else ():
                yield safe("Clear whether the step was skipped or not", *verbs)
