"""The optimizer steps inside the window that the loss is divided for."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import takewhile

from accumlint.editing import After, Move
from accumlint.reading.ir import (
    Call,
    Expr,
    Function,
    If,
    Name,
    Node,
    Return,
    Unary,
    walk,
    walk_expr,
)
from accumlint.reading.program import Program
from accumlint.rule import Applicability, Finding, Fix, Observed, Rule, Severity, Symptom, safe
from accumlint.tracing.trace import Add, EpochEnd, Forward, Run, Trace, TrainingObject, Window, mean

from ._boundaries import is_counted_by_the_caller, loop_leading_to


class StepEveryMicrobatch(Rule):
    """The optimizer steps on every micro-batch, although the loss is divided for a window of N.

    Nothing is accumulated: where one update over N micro-batches was meant, there are N updates of
    1/N the length, each with the noise of a small batch. When the gradients are cleared at the end
    of the window only, each of these steps also applies the micro-batches before it again.

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
                optimizer.step()  # error: ACC504
                optimizer.zero_grad()
    ```

    Good:

    ```diff
                 loss.backward()
    -            optimizer.step()
    -            optimizer.zero_grad()
    +        optimizer.step()
    +        optimizer.zero_grad()
    ```

    When it stays silent: when the loss is not divided, when the factor on it does not follow the
    accumulation steps (a loss weight of 1/4 is no window), and under Accelerate and DeepSpeed,
    whose step on every micro-batch is gated inside.

    When the fix is not offered: where the step is no statement of the loop that could move behind it.

    Measured (N = 4): 24 updates instead of 6. Cleared at the window's end only, the parameters are off by 1.44 times
    the distance trained. Cleared with every step, SGD ends within .03 of the right place, since N short steps are
    nearly one long one: the number of updates shows it, the loss curve does not.

    See: [gradient accumulation in the AMP examples][amp].
    """

    severity = Severity.ERROR
    observed = Observed.STEPPED_EACH_TIME
    symptom = Symptom.STEPS
    fix = Applicability.SAFE
    # A window of one micro-batch needs no division, no last step of an epoch and no `no_sync`.
    hides = ("ACC1", "ACC2", "ACC3", "ACC501", "ACC502")

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        twins = [r for r in trace.runs if r.asked and r.steps != run.steps]
        if not twins and run.literal is None:
            return
        for window in run.steady_of_each():
            optimizer, step = window.step.optimizer, window.step.node
            if (
                len(window.backwarded) != 1
                or len(window.backwards) != 1
                or is_counted_by_the_caller(trace.program, step)
                or is_decided_by_caller(trace.entry.function, step)
                or may_be_a_boundary(trace.program, window)
                # A window of losses is added up before its one backward.
                or any(add.total == window.backwards[0].loss for add in window.of(Add))
                # The other micro-batches go forward only.
                or len({forward.microbatch for forward in window.of(Forward)}) > 1
                # The step comes on some micro-batches, not on every one.
                or any(len(w.backwarded) > 1 for w in run.windows_of(optimizer))
                # Each pass of the loop had one round only, as far as is known.
                or not goes_on_in_one_pass(trace, optimizer)
            ):
                continue
            same = [o for r in [run, *twins] for o in r.optimizers if o.text == optimizer.text]
            if all(is_divided(r, o) for r in [run, *twins] for o in r.optimizers if o in same):
                yield self.at(
                    window.step,
                    f"`{window.step.subject}.step()` runs on every micro-batch, while "
                    f"`{window.backwards[-1].loss}` is divided for a window of several",
                    window=window,
                    expected=mean(range(1, (run.literal or run.steps) + 1)),
                    fixes=step_after_window(trace, window),
                )


def may_be_a_boundary(program: Program, window: Window) -> bool:
    """True where a call that was not followed decides about the step alone: it may count micro-batches."""
    around = set(program.above(window.backwards[0].node))
    tests = (
        n.test for n in program.above(window.step.node) if isinstance(n, If) and n not in around
    )
    return any(isinstance(n, Call) for test in tests for n in walk_expr(test))


def goes_on_in_one_pass(trace: Trace, optimizer: TrainingObject) -> bool:
    """True where the loop around the backward goes on behind a step, or nobody knows which loop that is."""
    program = trace.program
    for window in trace.main.windows_of(optimizer)[1:]:
        loop = loop_leading_to(program, window.backwards[0].node) if window.backwards else None
        if loop is None:
            return True
        function = program.function_around(loop)
        around = [e.node for e in window.between if program.function_around(e.node) is function]
        if all(loop in program.above(node) for node in around):
            return True
    return False


def is_divided(run: Run, optimizer: TrainingObject) -> bool:
    """True when the code itself divides each loss by the steps; what is weighed by 0 for now is not there."""
    share = Fraction(1, run.literal or run.steps)
    added = [[c for c in w.contributions if c.weight != 0] for w in run.windows_of(optimizer)]
    return share < 1 and all(
        window and all(c.weight == share and c.backward.divided == 1 for c in window)
        for window in added
    )


def step_after_window(trace: Trace, window: Window) -> Iterator[Fix]:
    """Takes the update out of an inner loop: what steps after every backward steps when the loop is over."""
    loop = trace.program.loop_around(window.step.node)
    epochs = {end.node for end in trace.main.of(EpochEnd)}
    inner = loop is not None and trace.program.loop_around(loop) is not None
    if loop is not None and inner and loop not in epochs:
        yield safe("Step when the window is over", Move(window.step.node, After(loop), "rest"))


def is_decided_by_caller(entry: Function | None, step: Node) -> bool:
    """True for a step behind a flag that is given to the function where the run starts: nobody knows when it is set."""
    if entry is None:
        return False
    flags = {param.name for param in entry.params}
    before = takewhile(lambda node: node is not step, walk(entry.body))
    guards = [n for n in before if isinstance(n, If) and not n.orelse and _flag(n.test) in flags]
    return any(isinstance(n.body[-1], Return) or step in walk(n.body) for n in guards)


def _flag(test: Expr) -> str:
    """The name that a test asks for, or for the opposite of."""
    bare = test.operand if isinstance(test, Unary) else test
    return bare.id if isinstance(bare, Name) else ""
