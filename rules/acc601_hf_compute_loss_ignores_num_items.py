"""A `compute_loss` takes `num_items_in_batch` and does not use it."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import After, Before, Insert, Replace
from accumlint.reading.frameworks import TRAINER_SWITCHES
from accumlint.reading.ir import Call, Do, Function, Name, dotted, render
from accumlint.reading.program import Program
from accumlint.reading.trainer_methods import (
    goes_backward,
    has_no_labels,
    takes_the_count,
    undivided_backwards,
    uses_the_count,
)
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
    safe,
    unsafe,
)

# Trainers of libraries whose batches have no `labels`.
_WITHOUT_LABELS = (
    "RewardTrainer", "SentenceTransformerTrainer", "EncoderTrainer", "EmbedderTrainer", "RerankerTrainer",
    "RetrieverTrainer", "RetrievalTrainer",
)  # fmt: skip


_GIVEN = "is given the count of the window, and divides by nothing"


class HfComputeLossIgnoresNumItems(Rule):
    """A `compute_loss` override, or a `compute_loss_func`, takes `num_items_in_batch` and does not use it.

    The Hugging Face Trainer counts the items of the whole window and hands the count to the loss. When the model
    accepts loss arguments (its `forward` takes `**kwargs`, as most do) or a `compute_loss_func` is given, the Trainer
    no longer divides by the accumulation steps, because it expects the loss to divide by the count. A mean over the
    micro-batch is divided by neither: the gradient is N times too long, and N times the number of ranks with a
    `compute_loss_func` under DDP. The reported loss grows with the accumulation steps as well. The same holds for a
    `training_step` that goes backward itself: the Trainer divides in the method that it takes the place of. And it
    holds for a model of the project that a stock Trainer trains: a `forward` that takes `labels` and `**kwargs` is
    given the count among these, and where it reads nothing of them, the mean is divided by neither. It is reported at
    the call that makes the Trainer. Drop `**kwargs` from the `forward`, or set `accepts_loss_kwargs = False` in the
    model's class, and the Trainer divides.

    Bad:

    ```python
    import torch.nn.functional as F
    from transformers import Trainer


    class WeightedTrainer(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):  # error: ACC601
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            loss = F.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
            return (loss, outputs) if return_outputs else loss
    ```

    Good:

    ```python
    import torch.nn.functional as F
    from transformers import Trainer


    class WeightedTrainer(Trainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.model_accepts_loss_kwargs = False

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            loss = F.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
            return (loss, outputs) if return_outputs else loss
    ```

    With that the Trainer divides by the accumulation steps again, and each micro-batch weighs the same. Dividing by the
    count is better where the counts differ (ACC101):

    ```python
    import torch.nn.functional as F
    from transformers import Trainer


    class WeightedTrainer(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            logits, flat = outputs.logits.flatten(0, 1), labels.flatten()
            if num_items_in_batch is None:
                loss = F.cross_entropy(logits, flat, ignore_index=-100)
            else:
                loss = F.cross_entropy(logits, flat, ignore_index=-100, reduction="sum")
                loss = loss / num_items_in_batch
                if self.args.average_tokens_across_devices:
                    loss = loss * self.accelerator.num_processes
            return (loss, outputs) if return_outputs else loss
    ```

    When it stays silent: when the class sets `model_accepts_loss_kwargs`, or `loss_is_scaled_for_ga`, which the Trainer
    of transformers asks first since 5.19; divides by `gradient_accumulation_steps` or
    `current_gradient_accumulation_steps`, hands the count on, or goes backward in a `training_step` of its own; on a
    method that only raises; where the batch holds no `labels`, so that nothing is counted and the Trainer divides: it
    is a pair (`query, passage = inputs`), or only other keys are read from it; on the reward trainers of trl, the
    trainers of sentence-transformers and others of retrievers, whose batches are like that. Of a `training_step`, where
    its class inherits from another Trainer than that of transformers, whose loss may be divided; where the accumulation
    steps are read before it returns; where it takes no count, as until transformers 4.45, whose Accelerator divided. Of
    a model, where the project pins a transformers below 4.46, which divides. The finding on a method is `likely`, since
    it rests on the model's signature, or on the backward not being DeepSpeed's, which divides; on a `compute_loss_func`
    it is `certain`.

    When the fix is not offered: on a `compute_loss_func`, which no attribute can help. The fix restores the division by
    the accumulation steps; it is unsafe where counts are seen to differ, since the mean of means remains (ACC101). That
    of a `training_step` is unsafe, since DeepSpeed divides in the same call.

    Measured (N = 4, transformers 5.17): relative error 3.0, cosine 1, length 4 on equal counts; 8.6, .37, 8.9 on uneven
    ones. A model that drops `**kwargs`: length 4.0 (transformers 5.24). `compute_loss_func`: length 4 on one rank, 8 on
    two. `super().compute_loss(model, inputs)` without the count: length 4. With `model_accepts_loss_kwargs = False`:
    exact on equal counts. Dividing by the count without the number of processes on two ranks: length .5.

    See: [transformers #37766][growing] and [#34198][func]; [trl #4104][reward] on the trainers that are right;
    `training_step` and `compute_loss` in `transformers/trainer.py`.

    [growing]: https://github.com/huggingface/transformers/issues/37766
    [func]: https://github.com/huggingface/transformers/pull/34198
    [reward]: https://github.com/huggingface/trl/issues/4104
    """

    severity = Severity.ERROR
    observed = Observed.TRAINER_UNDIVIDED
    symptom = Symptom.SCALE
    # What is divided by the steps again weighs every micro-batch the same.
    hides = ("ACC101",)
    fix = Applicability.SAFE

    def check_program(self, program: Program) -> Iterator[Finding]:
        yield from self.of_models(program)
        passed = loss_functions(program)
        for function in program.functions:
            owner = program.class_around(function)
            for backward in undivided_backwards(function, owner):
                yield self.at(
                    backward,
                    f"`{function.owner}.training_step` replaces the method that divides by the "
                    f"accumulation steps, and `{render(backward.args[0].value)}` is divided by nothing (unless "
                    "DeepSpeed does)",
                    confidence=Confidence.LIKELY,
                    fixes=divide_there(backward),
                )
            if takes_the_count(function) and not uses_the_count(function):
                if is_override(function):
                    # A `training_step` with a backward of its own divides or does not.
                    own = owner is not None and goes_backward(owner, "training_step")
                    if own or has_no_labels(function):
                        continue
                    yield self.at(
                        function,
                        f"`{function.owner}.compute_loss` ignores `num_items_in_batch`, and the Trainer "
                        "does not divide by the accumulation steps (if the model takes `**kwargs`)",
                        confidence=Confidence.LIKELY,
                        fixes=leave_division(program, function),
                    )
                elif not function.owner and function.name in passed:
                    yield self.at(
                        function,
                        f"`{function.name}` ignores `num_items_in_batch`, and the Trainer does not divide "
                        "a `compute_loss_func` by the accumulation steps",
                    )

    def of_models(self, program: Program) -> Iterator[Finding]:
        """The stock trainers whose model is given the count and divides by nothing."""
        for trainer in program.stock_trainers:
            if trainer.model is not None:
                yield self.at(
                    trainer.call,
                    f"{trainer.undivided}, and `{dotted(trainer.call.func)}` does not divide its loss by the "
                    "accumulation steps",
                    confidence=Confidence.LIKELY,
                    related=[Related(trainer.model, _GIVEN)],
                    conditions=(("gradient_accumulation_steps > 1", "true"),),
                )


def loss_functions(program: Program) -> frozenset[str]:
    """The functions that are handed to a Trainer as `compute_loss_func`."""
    values = (call.keyword("compute_loss_func") for call in program.of(Call))
    return frozenset(map(dotted, filter(None, values)))


def is_override(function: Function) -> bool:
    """True for `compute_loss` in a class of the Trainer's line that leaves the division to it."""
    bases = [base.rpartition(".")[2] for base in function.bases]
    return (
        function.name == "compute_loss"
        and any(base.endswith("Trainer") for base in bases)
        and not any(line.endswith(_WITHOUT_LABELS) for line in (function.owner, *bases))
        and function.assigned_attributes_of_class.isdisjoint(TRAINER_SWITCHES)
    )


def divide_there(backward: Call) -> Iterator[Fix]:
    """Divides what goes backward, as the Trainer does."""
    loss, told = backward.args[0].value, "Divide by the accumulation steps, as the Trainer does"
    if isinstance(loss, Name):
        yield unsafe(told, Replace(loss, f"{loss.id} / self.args.gradient_accumulation_steps"))


def leave_division(program: Program, function: Function) -> Iterator[Fix]:
    """Tells the Trainer, once its own `__init__` is through, that it has to divide."""
    switch = "self.model_accepts_loss_kwargs = False"
    told = "Leave the division to the Trainer"
    owner = program.class_around(function)
    made = owner.methods.get("__init__") if owner is not None else None
    if made is None:
        head = "def __init__(self, *args, **kwargs):"
        lines = (head, "    super().__init__(*args, **kwargs)", f"    {switch}", "")
        first = next(iter(owner.methods.values())) if owner is not None else function
        yield safe(told, Insert("\n".join(lines), Before(first)))
        return
    for statement in made.body:
        if isinstance(statement, Do) and render(statement.value).startswith("super().__init__("):
            yield safe(told, Insert(switch, After(statement)))
