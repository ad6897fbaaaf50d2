"""The graphs of a window are kept instead of being freed micro-batch by micro-batch."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import DropArgument
from accumlint.reading.ir import Attr, Call, Do, Name, dotted, walk, walk_expr
from accumlint.reading.names import role_of
from accumlint.reading.program import Program
from accumlint.rule import (
    Applicability,
    Claim,
    Confidence,
    Finding,
    Rule,
    Severity,
    Symptom,
    unsafe,
)
from accumlint.tracing.trace import Backward, Contribution, Run, Step, Trace

_FREED = "Let the graph go with its backward"


class GraphHeldAcrossWindow(Rule):
    """The graph of a micro-batch outlives its backward, or waits for the end of the window.

    Accumulation saves memory because each micro-batch's activations are freed before the next one's are made.
    `retain_graph=True` without a second backward keeps them for nothing. Losses that are added up and sent backward
    once, at the end of the window, keep all N of them: the gradient is that of the large batch, and so is the memory.
    When the optimizer steps between a forward and its backward, the gradient is that of parameters which are gone:
    torch raises where it notices that they changed in place, and is silent where it does not.

    Bad:

    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps):
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            optimizer.zero_grad()
            total = 0
            for _ in range(accumulation_steps):
                inputs, targets = next(batches)
                total = total + F.cross_entropy(model(inputs), targets) / accumulation_steps
            total.backward()  # error: ACC407
            optimizer.step()
    ```

    Good:

    ```diff
             optimizer.zero_grad()
    -        total = 0
             for _ in range(accumulation_steps):
                 inputs, targets = next(batches)
    -            total = total + F.cross_entropy(model(inputs), targets) / accumulation_steps
    -        total.backward()
    +            loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
    +            loss.backward()
             optimizer.step()
    ```

    When it stays silent: when a second backward or `torch.autograd.grad` goes through the same
    graph, as in many GANs; when the losses of a window depend on each other (a recurrent state, a
    loss over pairs), so that one backward is the only way; outside windows of several micro-batches.

    The fix is unsafe: what the file does with the loss after the backward may still need its graph.

    When the fix is not offered: for summed losses, whose backward has to move into the loop, and
    for a step in between, which has no single cure.

    Measured (N = 4): `retain_graph=True` and one backward at the end change the gradient by 1e-16. A graph that is kept
    costs 496 to 522 KiB per micro-batch (4 rows of 512 tokens, a model of three layers), one that is freed 3.4 KiB. The
    running total sent backward on every micro-batch with `retain_graph=True` is wrong: relative error 1.5, since the
    first micro-batch counts N times.

    See: [`Tensor.backward`][backward], [the PyTorch FAQ][faq].

    [backward]: https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html
    """

    severity = Severity.INFO
    claim = Claim.MEMORY
    symptom = Symptom.HELD
    fix = Applicability.UNSAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        for backward in run.of(Backward):
            stale = step_in_between(run, backward)
            if stale is not None:
                yield self.at(
                    backward,
                    f"`{backward.loss}` goes backward through a forward from before "
                    f"`{stale.subject}.step()`: its gradient belongs to parameters that the step has changed",
                    severity=Severity.ERROR,
                )
        for window in run.steady_of_each():
            if len(window.backwarded) < 2:
                continue
            for backward in window.backwards:
                if len(backward.microbatches) > 1 and is_chosen(run):
                    yield self.at(
                        backward,
                        f"`{backward.loss}` holds the graphs of all {len(backward.microbatches)} "
                        "micro-batches until this backward: accumulating saves no memory",
                        window=window,
                    )
                elif keeps_for_nothing(trace, backward):
                    yield self.at(
                        backward,
                        f"`retain_graph=True` keeps the graph of `{backward.loss}`, and nothing "
                        "goes through it again",
                        confidence=Confidence.LIKELY if run.hides("loss") else Confidence.CERTAIN,
                        window=window,
                        everywhere=True,
                        fixes=[unsafe(_FREED, DropArgument(backward.node, "retain_graph"))],
                    )


def is_chosen(run: Run) -> bool:
    """True when the number of micro-batches is the accumulation steps, and not some other loop's length."""
    return (run.asked or run.literal is not None) and not run.guessed


def keeps_for_nothing(trace: Trace, backward: Backward) -> bool:
    """True for a retained graph that is known and that no later backward or gradient goes through."""
    if not backward.retains_graph or not backward.forwards or takes_gradients(trace.program):
        return False
    if is_parameter(trace.program, backward) or is_gone_on_with(trace.program, backward):
        return False
    mine = set(backward.forwards)
    others = (b for b in trace.main.of(Backward) if b is not backward)
    # What comes of who knows where may come of this forward: a model keeps more than it returns.
    return not any(
        (other.index > backward.index and mine & set(other.forwards))
        or (not other.forwards and other.microbatch == backward.microbatch)
        for other in others
    )


def is_parameter(program: Program, backward: Backward) -> bool:
    """True for a loss that a function is given: whoever gave it may go on with it."""
    function = program.function_around(backward.node)
    values = (backward.node, *program.assigned.get(backward.loss, ()))
    read = {n.id for value in values for n in walk_expr(value) if isinstance(n, Name)}
    given = (param.name for param in function.params) if function is not None else ()
    return any("loss" in name for name in given if name in read)


def is_gone_on_with(program: Program, backward: Backward) -> bool:
    """True where what a call gave is told to do something next: it may hold a part of the graph.

    So do losses that hand their gradients on late (`losses.release_gradients()`).
    """
    here = program.place(backward.node).end_line
    for node in walk(program.body_around(backward.node)):
        match node:
            case Do(value=Call(func=Attr(base=Name(id=name)), args=())) if not role_of(name):
                made = program.assigned.get(name, ())
                if program.place(node).line == here + 1 and any(isinstance(m, Call) for m in made):
                    return True
            case _:
                pass
    return False


def takes_gradients(program: Program) -> bool:
    """True when the file asks for gradients without a backward."""
    callees = (dotted(call.func) for call in program.calls.get("grad", ()))
    return any(callee == "grad" or callee.endswith("autograd.grad") for callee in callees)


def step_in_between(run: Run, backward: Backward) -> Step | None:
    """A step that changed the parameters of this backward's network after its forward."""
    for c in backward.contributions:
        since = c.forward.index if c.forward else backward.index
        step = next(
            (s for s in run.between(Step, since, backward.index) if changes(run, s, c)), None
        )
        if step is None or c.forward is None:
            continue
        # A graph that was gone through before would raise: it is not what it seems to be.
        if any(b.index < backward.index for b in run.through.get(c.forward, ())[:1]):
            continue
        # What is cleared before any step does no harm, as with a temperature beside the policy.
        if any(s.index > backward.index for s in run.applying.get(c, ())[-1:]):
            return step
    return None


def changes(run: Run, step: Step, contribution: Contribution) -> bool:
    """True when the step is known to move the contribution's network, and no other optimizer moves a part of it."""
    moved = {c.network for c in step.applied if not c.backward.lost} - {"?"}
    if not step.owned or contribution.network not in moved:
        return False
    return run.moving[contribution.network] <= {step.optimizer}
