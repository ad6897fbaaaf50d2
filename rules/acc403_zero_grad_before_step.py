"""Gradients are cleared just before the step that should apply them."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.reading.ir import If, Node, called, render, walk
from accumlint.reading.program import Program
from accumlint.rule import Applicability, Finding, Observed, Rule, Severity
from accumlint.tracing.trace import Clear, Rescale, Run, Step, Trace, TrainingObject

from ._calls import after_update


class ZeroGradBeforeStep(Rule):
    """Gradients are cleared between the last backward and the step, which applies nothing.

    All N micro-batches of the window are lost. The optimizer finds no gradient and skips its
    parameters; with `set_to_none=False` it finds zeros, and then weight decay and momentum still
    move the parameters, which looks like training and is not.

    Bad:

    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps):
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            for _ in range(accumulation_steps):
                inputs, targets = next(batches)
                loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
                loss.backward()
            optimizer.zero_grad()  # error: ACC403
            optimizer.step()
    ```

    Good:

    ```diff
                 loss.backward()
    +        optimizer.step()
             optimizer.zero_grad()
    -        optimizer.step()
    ```

    When it stays silent: when something is left to apply, and when no backward was seen to reach
    the optimizer's parameters.

    When the fix is not offered: where the clearing is part of a longer statement, or stands in a branch of its own.

    Measured: the applied gradient is 0 and the parameters stay where they were. With
    `set_to_none=False` AdamW still decayed the weights (they moved by .10), and momentum moved on.

    See: [`Optimizer.zero_grad`][zero] on `set_to_none`.
    """

    severity = Severity.ERROR
    observed = Observed.CLEARED_BEFORE_STEP
    fix = Applicability.SAFE
    # Where nothing is applied, nothing is said of what it would be.
    hides = ("ACC1", "ACC2", "ACC3", "ACC5")
    misplaced = True

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        for window in run.steady_of_each():
            optimizer = window.step.optimizer
            if window.contributions or window.of(Rescale):
                continue
            for clear in window.of(Clear):
                others = clear.optimizer is not None and clear.optimizer is not optimizer
                if (
                    window.backwards
                    and clear.index > window.backwards[-1].index
                    and not others
                    and _loses(clear, optimizer, run)
                    and not is_intended(trace.program, clear.node, window.step.node)
                ):
                    yield self.at(
                        clear,
                        f"the gradients of `{clear.subject}` are cleared before "
                        f"`{window.step.subject}.step()`, which finds nothing to apply",
                        window=window,
                        fixes=after_update(trace, window, clear.node, "Clear"),
                    )


def _loses(clear: Clear, optimizer: TrainingObject, run: Run) -> bool:
    """True where something is wiped that no optimizer but this one has applied before."""
    lost = set(clear.wiped)
    for step in run.of(Step):
        if lost and step.optimizer is not optimizer and step.index < clear.index:
            lost.difference_update(step.applied)
    return bool(lost)


def is_intended(program: Program, clear: Node, step: Node) -> bool:
    """True where a condition asks for the clearing, or leaves out a backward between it and the step."""
    asked = [n for n in program.above(clear) if isinstance(n, If)]
    around = [n for n in program.above(step) if isinstance(n, If)]
    tests = {render(n.test) for n in around}
    if any(n not in around and render(n.test) not in tests for n in asked):
        return True
    nodes = list(walk(program.body_around(clear)))
    if clear not in nodes or step not in nodes:
        return False
    between = nodes[nodes.index(clear) : nodes.index(step)]
    return "backward" in map(called, between)
