"""A Lightning module divides the loss although Lightning does, or leaves a division out that is its own to do."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import Delete, Replace
from accumlint.reading.ir import (
    Assign,
    Attr,
    Augment,
    Binary,
    Expr,
    Function,
    Item,
    Name,
    Node,
    Return,
    Table,
    dotted,
    names_in,
    render,
    walk,
)
from accumlint.reading.names import is_steps
from accumlint.reading.program import Program
from accumlint.rule import Applicability, Confidence, Finding, Fix, Observed, Rule, Severity, unsafe
from accumlint.tracing.trace import Trace


class LightningManualDivision(Rule):
    """A `LightningModule` divides by the accumulation steps in automatic optimisation, or forgets to in manual.

    With automatic optimisation Lightning divides what `training_step` returns by the Trainer's
    `accumulate_grad_batches`; a division in the module is the second one, and the gradient is 1/N of
    what it should be. With `automatic_optimization = False` the module accumulates by itself,
    Lightning divides nothing, and an undivided gradient is N times too long.

    Bad:

    ```python
    import lightning as L
    import torch.nn.functional as F


    class Classifier(L.LightningModule):
        def training_step(self, batch, batch_idx):
            images, labels = batch
            loss = F.cross_entropy(self(images), labels)
            return loss / self.trainer.accumulate_grad_batches  # error: ACC606
    ```

    Good:

    ```diff
             loss = F.cross_entropy(self(images), labels)
    -        return loss / self.trainer.accumulate_grad_batches
    +        return loss
    ```

    When it stays silent: when only a logged copy is divided, when the divisor does not read like
    the accumulation steps, and, in manual optimisation, wherever ACC102 would be silent too.

    When the fix is not offered: without `--unsafe-fixes`. The learning rate may have been tuned with
    the gradient as it is.

    Measured (Lightning 2.6, N = 4): with a division in the module the gradient has length .25, with manual optimisation
    and none length 4. Automatic optimisation without a division of one's own is exact on equal batches.
    `accumulate_grad_batches` above 1 together with manual optimisation raises `MisconfigurationException`.

    See: [manual optimisation][manual]; `from_training_step_output` in
    `lightning/pytorch/loops/optimization/automatic.py`.

    [manual]: https://lightning.ai/docs/pytorch/stable/model/manual_optimization.html
    """

    severity = Severity.WARNING
    needs_followed = ("loss", "optimizer")
    observed = Observed.LIGHTNING_DIVIDED
    fix = Applicability.UNSAFE

    def check_program(self, program: Program) -> Iterator[Finding]:
        for function in filter(is_automatic, program.functions):
            for division in divisions_of_result(function):
                by_its_own = any("accumulate_grad_batches" in n for n in names_in(division))
                yield self.at(
                    division,
                    f"`{render(division)}`: Lightning divides what `training_step` returns by "
                    "`accumulate_grad_batches` already",
                    confidence=Confidence.CERTAIN if by_its_own else Confidence.LIKELY,
                    fixes=undivided(program, division),
                )

    def check(self, trace: Trace) -> Iterator[Finding]:
        for window in trace.steady_windows():
            manual = all(b.via == "lightning" for b in window.backwards)
            reductions = {c.reduction for c in window.contributions}
            if not manual or reductions & {"sum", "window"} or trace.divisions(window) != 0:
                continue
            backward = window.backwards[0]
            free = window.step.optimizer.is_scale_free
            yield self.at(
                backward,
                f"`{backward.loss}` is summed over a window in manual optimisation, where Lightning "
                "divides nothing",
                confidence=Confidence.CERTAIN if reductions == {"mean"} else Confidence.LIKELY,
                severity=Severity.WARNING if free else Severity.ERROR,
                window=window,
                applied=window.applied,
                expected=window.expected,
            )


def is_automatic(function: Function) -> bool:
    """True for the step of a `LightningModule` whose class does not switch to manual optimisation."""
    module = any(base.rpartition(".")[2] == "LightningModule" for base in function.bases)
    manual = "automatic_optimization" in function.assigned_attributes_of_class
    return function.name == "training_step" and module and not manual


def divisions_of_result(function: Function) -> Iterator[Expr]:
    """The divisions by accumulation steps between the loss and what the function returns."""
    assigned: dict[str, list[Node]] = {}
    nodes = list(walk(function.body, into_functions=False))
    for node in nodes:
        if isinstance(node, Assign):
            for target in node.targets:
                assigned.setdefault(dotted(target), []).append(node.value)
        elif isinstance(node, Augment):
            shrunk = Binary(node.at, node.op, node.target, node.value)
            assigned.setdefault(dotted(node.target), []).append(shrunk)
    waiting = [loss_in(n.value) for n in nodes if isinstance(n, Return) and n.value is not None]
    while waiting:
        expression = waiting.pop()
        match expression:
            case Binary(op="/", left=left, right=right):
                if any(map(is_steps, names_in(right))):
                    yield expression
                waiting.append(left)
            case Name() | Attr() | Item():
                waiting.extend(
                    n for n in assigned.pop(dotted(expression), []) if isinstance(n, Expr)
                )
            case _:
                pass


def loss_in(value: Expr) -> Expr:
    """The loss in what `training_step` returns: itself, or the entry `loss` of a dict."""
    if isinstance(value, Table):
        for key, entry in value.items:
            if key is not None and render(key) == "'loss'":
                return entry
    return value


def undivided(program: Program, division: Node) -> Iterator[Fix]:
    """Leaves the division to Lightning."""
    told = "Leave the division to Lightning"
    if any(n.at is division.at for n in program.of(Augment)):
        yield unsafe(told, Delete(division, bound=True))
    elif isinstance(division, Binary):
        yield unsafe(told, Replace(division, program.code(division.left)))
