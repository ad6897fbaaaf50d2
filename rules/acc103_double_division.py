"""The loss is divided by the accumulation steps twice."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.reading.frameworks import TRAINER_SWITCHES
from accumlint.reading.ir import (
    Assign,
    Attr,
    Augment,
    Binary,
    Const,
    Function,
    Item,
    dotted,
    render,
    walk,
)
from accumlint.reading.names import is_of_plugin
from accumlint.reading.program import Program
from accumlint.rule import (
    Applicability,
    Confidence,
    Finding,
    Fix,
    Observed,
    Related,
    Rule,
    Severity,
    Symptom,
    unsafe,
)
from accumlint.tracing.trace import Backward, Rescale, Trace, Window

from ._dividing import undivided


class DoubleDivision(Rule):
    """The loss is divided by the accumulation steps twice: by hand and again by the framework, or twice by hand.

    Accelerate's `backward` divides whenever the Accelerator was given more than one accumulation step, inside
    `accumulate` or not; DeepSpeed's `engine.backward` does, Lightning's automatic optimisation does, and the Hugging
    Face Trainer does. A division in the script comes on top, and the applied gradient is N times too short: with
    N = 4 its length is 1/4 and a run with SGD covers a quarter of the distance.

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
                accelerator.backward(loss / accumulation_steps)  # error: ACC103
                optimizer.step()
                optimizer.zero_grad()
    ```

    Good:

    ```diff
                 loss = F.cross_entropy(model(images), labels)
    -            accelerator.backward(loss / accumulation_steps)
    +            accelerator.backward(loss)
                 optimizer.step()
    ```

    When it stays silent: a division by hand beside a plain `Accelerator()` is right, since one step is its default and
    it then divides by 1; so is `engine.backward(loss / n, scale_wrt_gas=False)`, and dividing a copy that is only
    logged. Nothing is said when the steps that the framework was given could not be read, but for a DeepSpeed engine
    that is made in another file: one that is asked to step after every backward counts the windows by itself, and its
    finding is `likely`. So is that on an Accelerator whose steps are read from the configuration of its DeepSpeed
    plugin: under DeepSpeed the engine divides by them.

    When the fix is not offered: without `--unsafe-fixes`. The division by hand is the one to remove, but the learning
    rate may have been tuned with the shorter gradient.

    Measured (N = 4): relative error .75, cosine 1, length .25 with Accelerate, with DeepSpeed (stages 0, 1 and 2) and
    with Lightning; the parameters are 74 % of the distance trained away. The silent cases above are exact (5e-8).

    See: [accelerate #3533][double] and [#1773][example]; [DeepSpeed #7439][deepspeed], where its maintainers name
    `scale_wrt_gas`; Accelerate's [guide to gradient accumulation][accelerate].

    [double]: https://github.com/huggingface/accelerate/issues/3533
    [example]: https://github.com/huggingface/accelerate/issues/1773
    [deepspeed]: https://github.com/deepspeedai/DeepSpeed/issues/7439
    """

    severity = Severity.WARNING
    observed = Observed.DIVIDED_TWICE
    symptom = Symptom.SCALE
    fix = Applicability.UNSAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        for window in trace.steady_windows():
            if trace.divisions(window) == 2:
                backward = window.contributions[0].backward
                yield self.at(
                    backward,
                    self._message(backward) + _where(trace, backward),
                    confidence=confidence_in(trace, backward),
                    window=window,
                    applied=window.applied,
                    expected=window.expected,
                    fixes=divide_once(trace.program, window),
                )
        for window in trace.steady_windows(rescaled=True):
            if trace.divisions(window) == 1:
                backward = window.contributions[0].backward
                rescale = next(r for r in window.of(Rescale) if not r.reduced)
                yield self.at(
                    backward,
                    f"`{backward.loss}` is divided by the accumulation steps, and so are the gradients",
                    window=window,
                    related=[Related(rescale.node, "the gradients are divided here")],
                    expected=window.expected,
                )

    def check_program(self, program: Program) -> Iterator[Finding]:
        for function in program.methods_of("Trainer", "compute_loss"):
            for node in walk(function.body if leaves_division(program, function) else ()):
                match node:
                    case (
                        Binary(op="/", right=Attr(name=steps))
                        | Augment(op="/", value=Attr(name=steps))
                    ):
                        if steps.endswith("gradient_accumulation_steps"):
                            yield self.at(
                                node,
                                f"`{function.owner}.compute_loss` divides by the accumulation steps, and the "
                                "Trainer divides what it returns again",
                            )
                    case _:
                        pass

    def _message(self, backward: Backward) -> str:
        if backward.divided == 1:
            return f"`{backward.loss}` is divided by the accumulation steps twice"
        return (
            f"`{backward.loss}` is divided by the accumulation steps by hand, "
            f"and `{backward.subject}.backward` divides it again"
        )


def confidence_in(trace: Trace, backward: Backward) -> Confidence:
    """Less sure of an engine that is made elsewhere: what it divides by is taken from how it is asked to step.

    Nor is it sure that an Accelerator runs under DeepSpeed, where the steps are read from its plugin.
    """
    made = trace.program.calls.get("initialize", ())
    seen = backward.via != "engine" or any(
        dotted(c.func).endswith("deepspeed.initialize") for c in made
    )
    return Confidence.LIKELY if _where(trace, backward) or not seen else Confidence.CERTAIN


def _where(trace: Trace, backward: Backward) -> str:
    """Where a division by the framework hangs on what the Accelerator runs under."""
    by_plugin = backward.via == "accelerator" and any(
        is_of_plugin(render(item)) for item in trace.program.of(Item)
    )
    return ", where it runs under DeepSpeed" if by_plugin else ""


def leaves_division(program: Program, function: Function) -> bool:
    """True for a method whose class tells the Trainer to divide."""
    owner = program.class_around(function)
    return any(
        isinstance(node, Assign)
        and isinstance(node.value, Const)
        and node.value.value is False
        and any(dotted(t).endswith(TRAINER_SWITCHES) for t in node.targets)
        for node in walk(owner.body if owner is not None else ())
    )


def divide_once(program: Program, window: Window) -> Iterator[Fix]:
    """Leaves one of the divisions by hand out."""
    backward = window.contributions[0].backward
    divisors = {render(node.right) for node in program.of(Binary) if node.op == "/"}
    for verbs in undivided(program, backward, divisors):
        yield unsafe("Divide once, and tune the learning rate again", *verbs)
