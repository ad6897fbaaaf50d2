"""`loss.backward()` runs under `accelerator.accumulate`."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import Replace
from accumlint.reading.ir import Attr, Call, Function, If, dotted, walk
from accumlint.reading.program import Program
from accumlint.rule import Applicability, Finding, Fix, Observed, Rule, Severity, Symptom, safe
from accumlint.tracing.trace import Backward, Trace

from ._calls import accelerators


class AccelerateBackwardBypassed(Rule):
    """Inside `accelerator.accumulate` the loss goes backward by itself instead of through `accelerator.backward`.

    `accumulate` decides when the gradients are synchronised and when the prepared optimizer steps. The division by
    the accumulation steps, and in fp16 the GradScaler's scale, belong to `accelerator.backward`. Without it the window
    of N micro-batches is summed: the gradient is N times too long, and in fp16 small gradients underflow.

    Bad:

    ```python
    import torch.nn.functional as F
    from accelerate import Accelerator


    def train(model, loader, optimizer, accumulation_steps):
        accelerator = Accelerator(gradient_accumulation_steps=accumulation_steps)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for images, labels in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(images), labels)
                loss.backward()  # error: ACC602
                optimizer.step()
                optimizer.zero_grad()
    ```

    Good:

    ```diff
                 loss = F.cross_entropy(model(images), labels)
    -            loss.backward()
    +            accelerator.backward(loss)
                 optimizer.step()
    ```

    When it stays silent: on a backward outside `accumulate`, on windows of one micro-batch, and when the loss is
    divided by hand: that gradient is right, except in fp16.

    When the fix is not offered: when the loss is already divided by hand, since `accelerator.backward` divides too.

    Measured (N = 4): relative error 3.0, cosine 1, length 4; the parameters are 270 % of the distance trained away.

    See: [`Accelerator.backward`][backward] and the [guide to gradient accumulation][accelerate]. The example in the
    docstring of `Accelerator.accumulate` (1.15) calls `loss.backward()` and has this defect;
    [med-seg-diff-pytorch #6][slip] is one slip among many.

    [backward]: https://huggingface.co/docs/accelerate/package_reference/accelerator#accelerate.Accelerator.backward
    [slip]: https://github.com/lucidrains/med-seg-diff-pytorch/pull/6
    """

    severity = Severity.ERROR
    observed = Observed.PAST_ACCELERATE
    symptom = Symptom.SCALE
    fix = Applicability.SAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        for window in run.steady_of_each():
            if len(window.backwarded) < 2 or trace.divisions(window) == 1:
                continue
            for backward in window.bypasses[:1]:
                if is_one_of_several(trace.program, backward):
                    continue
                yield self.at(
                    backward,
                    f"`{backward.loss}.backward()` bypasses `accelerator.backward`, so nothing divides "
                    "it by the accumulation steps",
                    window=window,
                    applied=window.applied,
                    expected=window.expected,
                    fixes=by_accelerator(trace.program, backward),
                )


def is_one_of_several(program: Program, backward: Backward) -> bool:
    """True in one branch of several backends, of which another goes through the accelerator."""
    for outer in program.above(backward.node):
        if isinstance(outer, Function):
            return False
        if isinstance(outer, If):
            calls = (dotted(n.func) for n in walk(outer.orelse) if isinstance(n, Call))
            if any(call.endswith("accelerator.backward") for call in calls):
                return True
    return False


def by_accelerator(program: Program, backward: Backward) -> Iterator[Fix]:
    """Sends the loss backward through the accelerator whose `accumulate` it stands under."""
    if backward.via != "tensor" or not isinstance(backward.node, Call) or backward.node.args:
        return
    for accelerator in accelerators(program):
        call = f"{accelerator}.backward({loss_of(program, backward.node)})"
        yield safe(f"Call `{call}`", Replace(backward.node, call))


def loss_of(program: Program, call: Call) -> str:
    """What a call of `backward` is made on."""
    return program.code(call.func.base) if isinstance(call.func, Attr) else ""
