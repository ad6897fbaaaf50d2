"""Gradients that were applied are applied again."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import After, Insert
from accumlint.reading.ir import (
    Assign,
    Attr,
    Call,
    If,
    Name,
    Node,
    called,
    dotted,
    names_in,
    walk,
)
from accumlint.reading.names import is_clearing
from accumlint.reading.program import Program
from accumlint.rule import (
    Applicability,
    Confidence,
    Finding,
    Fix,
    Observed,
    Rule,
    Severity,
    safe,
    unsafe,
)
from accumlint.tracing.trace import Backward, Clear, Run, Step, Trace

from ._boundaries import is_counted_by_the_caller
from ._calls import argument_of, ends_of_update, receiver_of


class ZeroGradMissing(Rule):
    """An optimizer's gradients are never cleared, so each step applies all earlier windows again.

    `.grad` is a sum. Without `zero_grad` the second step applies the gradients of 2N micro-batches,
    the third those of 3N: the update is the gradient of all that was ever seen, of which most
    belongs to parameters long gone. The first step is right, which hides the defect from short
    tests. Adam hides it further, because it divides by the gradient's size.

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
            optimizer.step()  # error: ACC401
    ```

    Good:

    ```diff
             optimizer.step()
    +        optimizer.zero_grad()
    ```

    When it stays silent: when a call that could not be followed received the optimizer, when several optimizers step
    and it is not known which parameters are whose, and where the gradients are cleared somewhere in the window
    (`model.zero_grad()`, `p.grad = None`, an engine that clears in its own step), or outside of a function that takes
    one micro-batch and is called by others. A loop that steps on every micro-batch and clears only at the end of the
    window is another defect (ACC504).

    When the fix is not offered: where the optimizer has no plain name at the step; it is only shown where the file
    does not tell that the optimizer has a `zero_grad`.

    Measured (N = 4, 6 windows): relative error 0 at the first update and 4.3 at the sixth; at the end the parameters
    are off by 2.36 times the distance trained with SGD, by .16 with Adam. Together with one overflow under a GradScaler
    it stops training for good: the inf stays in `.grad`, and every later step is skipped.

    See: [`Optimizer.zero_grad`][zero], [gradient accumulation in the AMP examples][amp].
    """

    severity = Severity.ERROR
    observed = Observed.NEVER_CLEARED
    fix = Applicability.SAFE
    # Where everything piles up, nothing is said of a window's own gradient.
    hides = ("ACC1", "ACC2", "ACC3", "ACC5")

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        for window in run.steady_of_each():
            if run.hides("optimizer") or may_be_cleared_by_callers(trace):
                continue
            if not window.step.owned and len(run.optimizers) > 1:
                continue
            if is_counted_by_the_caller(trace.program, window.step.node):
                continue
            if may_clear_by_flag(trace.program, window.step.optimizer.node):
                continue
            if is_chosen_by_name(trace.program, window.step.node):
                continue
            if is_made_in_each_round(trace.program, window.step):
                continue
            if any(b.via == "tensor" and is_in_a_context(b.node) for b in window.backwards):
                continue
            cleared_later = any(clear.applied for clear in run.of(Clear))
            if cleared_later and len(window.backwarded) == 1:
                continue
            earlier = [w for w in run.windows_of(window.step.optimizer) if w.number < window.number]
            applied = {c.backward for w in earlier for c in w.contributions}
            again = {c.microbatch for c in window.contributions if c.backward in applied}
            wrapped = any(
                b.via == "engine" and b.subject == window.step.subject for b in window.backwards
            )
            if again and not wrapped and not clears_something_else(run, window.step):
                yield self.at(
                    window.step,
                    f"`{window.step.subject}.step()` applies the gradients of earlier windows "
                    "again: they are never cleared",
                    confidence=Confidence.LIKELY if run.hides("model") else Confidence.CERTAIN,
                    window=window,
                    fixes=clear_after(trace, window.step),
                )


def clears_something_else(run: Run, step: Step) -> bool:
    """True where a model is cleared window by window that nothing went through: another name of the one that trains."""
    idle = [e for e in run.of(Clear) if e.optimizer is None and not e.wiped and not e.applied]
    return len(idle) > 1 and idle[-1].index > step.index


def is_in_a_context(backward: Node) -> bool:
    """True for `loss.backward(context_id)`: distributed autograd keeps gradients in contexts, not in `.grad`."""
    given = backward.positional(0) if isinstance(backward, Call) else None
    return given is not None and "context" in dotted(given)


def is_chosen_by_name(program: Program, step: Node) -> bool:
    """True for `getattr(self, name)` that steps, in a file that clears what it finds in the same way."""

    def is_found(node: Node) -> bool:
        base = node.func.base if isinstance(node, Call) and isinstance(node.func, Attr) else None
        found = program.assigned.get(dotted(base), ()) if isinstance(base, Name) else ()
        return any(isinstance(v, Call) and dotted(v.func) == "getattr" for v in found)

    clears = (n for n in program.of(Call) if is_clearing(called(n)))
    return is_found(step) and any(map(is_found, clears))


def is_made_in_each_round(program: Program, step: Step) -> bool:
    """True for an optimizer that the innermost loop around its step makes anew, of a model that it makes anew."""
    optimizer = argument_of(step.node) if step.scaler else receiver_of(step.node)
    loop = program.loop_around(step.node)
    made = {
        dotted(target): s.value
        for s in (loop.body if loop is not None else ())
        if isinstance(s, Assign) and isinstance(s.value, Call)
        for target in s.targets
    }
    call = made.get(optimizer)
    given = names_in(call) if call else set[str]()
    return bool(given & made.keys())


def may_clear_by_flag(program: Program, made: Node) -> bool:
    """True for an optimizer that is given the flag under which the script clears in its stead."""
    value = made.value if isinstance(made, Assign) else made
    given = {dotted(a.value) for a in value.args} - {""} if isinstance(value, Call) else set[str]()
    for call in program.of(Call) if given else ():
        if isinstance(call.func, Attr) and is_clearing(call.func.name):
            tests = (n.test for n in program.above(call) if isinstance(n, If))
            if any(names_in(test) & given for test in tests):
                return True
    return False


def may_be_cleared_by_callers(trace: Trace) -> bool:
    """True for a step without a loop of its own, in a file that clears gradients outside of it, or calls it nowhere."""
    function = trace.entry.function if trace.entry.calls == "microbatch" else None
    if function is None:
        return False
    # Whoever works out the loss calls it, and is in another file.
    losses = {b.loss for b in trace.main.of(Backward)}
    roles = trace.program.roles
    given = any(q.name in losses or roles.is_loss(q.name) for q in function.params)
    calls = trace.program.calls
    if given and function.name not in calls:
        return True
    inside = set(walk(function.body))
    clearing = (call for name in calls if is_clearing(name) for call in calls[name])
    return any(isinstance(c.func, Attr) and c not in inside for c in clearing)


def clear_after(trace: Trace, step: Step) -> Iterator[Fix]:
    """Clears what the step has applied; unsafe where the loop clears it under a condition that did not hold."""
    optimizer = argument_of(step.node) if step.scaler else receiver_of(step.node)
    if optimizer:
        call = f"{optimizer}.zero_grad()"
        loop = trace.program.loop_around(step.node)
        calls = (n for n in walk(loop.body if loop else ()) if isinstance(n, Call))
        cleared = any(dotted(call.func) == f"{optimizer}.zero_grad" for call in calls)
        clearing = unsafe if cleared else safe
        for last in ends_of_update(trace.main, step):
            yield clearing(f"Call `{call}` after the step", Insert(call, After(last.node)))
