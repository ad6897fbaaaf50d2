"""A mean over a varying number of tokens is divided by the accumulation steps."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.reading.frameworks import COUNTED_LOSSES
from accumlint.reading.ir import Call, called, dotted, render
from accumlint.reading.program import Program
from accumlint.reading.targets import (
    STRONG,
    Evidence,
    about_losses,
    has_labels,
    has_positions,
    is_loss_function,
    leaves_labels_out,
    weight,
)
from accumlint.rule import (
    Applicability,
    Confidence,
    Finding,
    Observed,
    Related,
    Rule,
    Severity,
    Symptom,
)
from accumlint.tracing.trace import MARKED, OF_A_MODEL, PICKED, Contribution, Trace, Window

from ._token_sums import token_sums


class MeanLossNotNormalisedByTokens(Rule):
    """A loss that is a mean over a varying number of tokens is divided by the accumulation steps.

    Each of the N micro-batches then weighs 1/N, however many tokens it holds, so a token of a short micro-batch
    counts for more than a token of a long one: its weight is 1/(N n) where the large batch gives every token one
    over the tokens of the whole window. The direction of the update is wrong, not only its length. With N = 4 and
    10/1000/10/1000 tokens per row the applied gradient is off by 101 %, with 64/512/128/256 by 13 to 24 %, with
    400/500/450/600 by 1.7 %; with equal counts it is exact. Adam does not hide it.

    Bad:

    ```python
    import torch.nn.functional as F

    PAD = 0


    def train(model, loader, optimizer, accumulation_steps):
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            optimizer.zero_grad()
            for _ in range(accumulation_steps):
                source, target = next(batches)
                labels = target.masked_fill(target == PAD, -100).flatten()
                logits = model(source).flatten(0, 1)
                loss = F.cross_entropy(logits, labels, ignore_index=-100)
                (loss / accumulation_steps).backward()  # error: ACC101
            optimizer.step()
    ```

    Good:

    ```diff
             optimizer.zero_grad()
    +        tokens = 0
             for _ in range(accumulation_steps):
    @@
                 logits = model(source).flatten(0, 1)
    -            loss = F.cross_entropy(logits, labels, ignore_index=-100)
    -            (loss / accumulation_steps).backward()
    +            loss = F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
    +            tokens += (labels != -100).sum()
    +            loss.backward()
    +        for group in optimizer.param_groups:
    +            for parameter in group["params"]:
    +                if parameter.grad is not None:
    +                    parameter.grad /= tokens
             optimizer.step()
    ```

    Counting before the window is as good: collect its micro-batches, count their targets, and divide each summed loss
    by that count. Clip after the division, and divide after `unscale_` with a GradScaler. On several ranks the count
    is that of all ranks, over the world size under DDP, which averages: `p.grad *= world_size / tokens`.

    When it stays silent: on rows of one fixed length (packed blocks, images, classification), on losses that are means
    over sequences or pairs rather than tokens, and on sums that are divided by a count of the whole window. A mean that
    is never divided at all is ACC102, one that counts padding ACC108, one over the tokens of all ranks ACC106.

    Where a framework's trainer divides (Lightning's automatic optimisation, the Trainer of transformers), the finding
    stands at the `return` of the loss and holds with more than one accumulation step. A `compute_loss` that takes
    `num_items_in_batch` and ignores it is ACC601. A Trainer of transformers, or an `SFTTrainer`, that takes the loss
    from the model is reported at the call that makes it where it divides that mean. Since 4.46 it counts the window's
    tokens for models whose `forward` takes `**kwargs`: not for a model of the project that takes none, or no `labels`,
    for GPT-2 and its like before 4.49, for masked, encoder-decoder and CTC models, and encoders that classify tokens,
    before 5.0. Which releases a project can use is read from what it pins (in its requirements, README, scripts or
    images), also of `tokenizers` (below 0.20: up to 4.44) and `accelerate` (below 0.26: up to 4.44), and from what
    later releases lack: `evaluation_strategy=` (up to 4.50), the Trainer's `tokenizer=` (up to 4.57), lists like
    `GPT2_PRETRAINED_MODEL_ARCHIVE_LIST` (up to 4.40) and peft's `prepare_model_for_int8_training` (up to 4.38).
    `train_batch` of a DeepSpeed pipeline is reported as well, since its engine averages the means of the micro-batches.
    A script that names its trainer's settings, but no accumulation steps, does not accumulate: a stock trainer is not
    reported there, and a method that a trainer calls is `possible`.

    Whether the counts differ is weighed from evidence in the file, in what it imports from its project and in the
    files that import it: labels that are set to the ignored value, collators and padding, masks, instruction data
    speak for it; blocks of one length, rows drawn from a stream, one label for each row speak against it. Each piece
    is listed with its place. The finding is `certain` when the mean itself is seen and the evidence is strong,
    `likely` when the loss comes out of the model and has a target for every position, for a mean over what a mask
    picks or an `ignore_index` other than the default leaves, and for a sum that is divided by another one over the
    micro-batch's own data. A file that stands alone, without the files that it imports, is `likely` as well where it
    imports transformers, takes the loss from the model, and shows nothing that speaks against it. It is `possible` when
    a loss per position is all that is known: `accumlint confirm --run` then measures how much the counts differ on the
    real data. Class weights make the count differ by a little, and the finding a warning.

    When the fix is not offered: unless one function holds all of a window whose only loss is `F.cross_entropy` with a
    plain backward (none through a GradScaler, Accelerate or Fabric), without class weights, and no name is `tokens`
    yet. It is unsafe, since what is logged of the loss is a sum afterwards; log it over the count.

    Measured (N = 4, relative error, cosine and length of the first applied gradient): 1.01, .50, 1.01 on 10/1000
    tokens; .13, .992, .99 on 64/512/128/256; .017, .9999, 1.00 on 400 to 600; 1e-16 on equal counts and for the good
    example; class weights .015 to .13. After 30 windows on the 10/1000 data the parameters are off by 71 % of the
    distance trained with SGD and by 72 % with Adam and AdamW.

    See: [transformers #34191][hf] and [trl #2175][trl], where this was found in the libraries;
    `fixed_cross_entropy` in `transformers/loss/loss_utils.py`, which divides by the window's count; Accelerate's
    guide to [samples of variable size][accelerate].

    [hf]: https://github.com/huggingface/transformers/pull/34191
    [trl]: https://github.com/huggingface/trl/issues/2175
    """

    severity = Severity.ERROR
    observed = Observed.WEIGHTS
    symptom = Symptom.WEIGHTS
    of_losses = True
    fix = Applicability.UNSAFE

    def check_program(self, program: Program) -> Iterator[Finding]:
        for trainer in program.stock_trainers:
            evidence = evidence_from_trainers(program.evidence)
            sure = confidence_of(about_losses(evidence, of_model=True))
            if trainer.divided and sure is not None:
                yield self.at(
                    trainer.call,
                    f"`{dotted(trainer.call.func)}` divides the mean loss of each micro-batch by the accumulation "
                    f"steps, since {trainer.divided}, although the numbers of targets behind it may differ",
                    confidence=sure,
                    related=[Related(e.part, e.row.says) for e in evidence],
                    conditions=(("gradient_accumulation_steps > 1", "true"),),
                )

    def check(self, trace: Trace) -> Iterator[Finding]:
        for window in weighted_the_same(trace):
            uneven = [c for c in window.contributions if is_uneven(c)]
            unseen = [c for c in window.contributions if may_be_uneven(trace.program, c)]
            if not uneven and not unseen:
                continue
            evidence = trace.program.evidence
            if trace.entry.driven is not None:
                evidence = evidence_from_trainers(evidence)
            if not any(is_of_the_model(c) and not is_one_of_several(c) for c in (*uneven, *unseen)):
                evidence = tuple(e for e in evidence if not e.row.of_model)
            told = about_losses(evidence, of_model=any(map(is_of_the_model, unseen)))
            sure = confidence_of_means(uneven, evidence) if uneven else confidence_of(told)
            if sure is None:
                continue
            first = (uneven or unseen)[0]
            by_weight = "weight" in first.varies
            differs = "the numbers of targets behind it may differ"
            if uneven:
                differs = f"the count behind its mean differs ({_counted(first)})"
            yield self.at(
                first.backward,
                f"`{first.backward.loss}` weighs every micro-batch the same, although {differs}",
                confidence=sure,
                severity=Severity.WARNING if by_weight else Severity.ERROR,
                window=window,
                related=[Related(e.part, e.row.says) for e in evidence],
                applied=window.applied,
                expected=by_counts(window),
                fixes=token_sums(trace, window),
            )


def weighted_the_same(trace: Trace) -> Iterator[Window]:
    """The windows whose micro-batches weigh 1/N each: by a divided loss, or by gradients that are divided in the end.

    What is divided twice (ACC103) weighs every micro-batch the same as well.
    """
    for window in trace.steady_windows():
        if trace.divisions(window) in (1, 2):
            yield window
    for window in trace.steady_windows(rescaled=True):
        if trace.divisions(window) == 0:
            yield window


def confidence_of_means(uneven: list[Contribution], evidence: tuple[Evidence, ...]) -> Confidence:
    """How sure it is that counts differ where a mean was seen that leaves some labels out."""
    varies = uneven[0].varies
    told = weight(e for e in evidence if not e.row.of_model)
    if "weight" in varies or varies == MARKED or "ignore_index=-1`" in varies:
        # Whoever ignores -1 is heard only where labels are set to it.
        return Confidence.LIKELY if varies == MARKED else Confidence.CERTAIN
    if varies == OF_A_MODEL:
        # What a model does with its labels is not seen.
        return confidence_of(evidence) or Confidence.POSSIBLE
    if told >= STRONG and leaves_labels_out(evidence):
        return Confidence.CERTAIN
    # Whoever writes a label to ignore, other than the default, has data with it: the borders of a segmentation.
    chosen = varies.startswith("`ignore_index") and "-100" not in varies and told >= 0
    counted = any(is_counted(c) or is_picked(c) for c in uneven) and not is_fixed(evidence)
    return Confidence.LIKELY if chosen or counted else Confidence.POSSIBLE


def evidence_from_trainers(evidence: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    """Evidence about what a framework's trainer is given: the name of a model in another file does not tell which."""
    return tuple(e for e in evidence if e.is_local or e.key != "language model")


def is_fixed(evidence: tuple[Evidence, ...]) -> bool:
    """True where masks take the same share of each row, and nothing shows that rows differ."""
    return any(e.key == "ratio" for e in evidence) and weight(evidence) < 0


def confidence_of(evidence: tuple[Evidence, ...]) -> Confidence | None:
    """How sure it is that counts differ where nothing is seen but a loss from the model; None for no reason at all.

    Labels that are left out one by one are labels of positions.
    """
    if not has_positions(evidence) and not has_labels(evidence):
        return None
    told = weight(evidence)
    sure = Confidence.LIKELY if told >= STRONG else Confidence.POSSIBLE
    return sure if told >= 0 else None


def by_counts(window: Window) -> str:
    """What the large batch would apply: each micro-batch by its share of what is counted, n together."""
    numbers = range(1, len(window.microbatches) + 1)
    return " + ".join(f"n{number}/n g{number}" for number in numbers) + " (n together)"


def _counted(c: Contribution) -> str:
    """What tells that the count differs: the count itself, where it is written."""
    written = "" if c.divisor is None or is_picked(c) else c.divisor.text
    return f"`{written}`" if written else c.varies


def is_counted(c: Contribution) -> bool:
    """True where what divides is added up from data: the sum of a mask, by any name, or the lengths of prompts.

    What a loss leaves out by its `ignore_index` tells nothing, as long as nobody sets labels to it.
    """
    text = c.divisor.text if c.divisor is not None else ""
    named = c.divisor is not None and c.divisor.kind == "some"
    return (named or ".sum(" in text) and "ignore_index" not in text


def is_picked(c: Contribution) -> bool:
    """True where a mask picks the elements of which the loss is the mean."""
    return c.varies.startswith(PICKED)


def is_uneven(c: Contribution) -> bool:
    """True for a mean over as many elements as this rank's micro-batch happens to hold.

    A divisor that counts padding is ACC108, and one that counts all ranks ACC106 where a wrapper is seen that averages.
    As many rows are in every batch.
    """
    kind, over = (c.divisor.kind, c.divisor.over) if c.divisor is not None else ("", "")
    another = kind in ("elements", "rows") and not c.is_mean_of_picked
    return c.reduction == "mean" and bool(c.varies) and not another and not (over and c.averaged_by)


def may_be_uneven(program: Program, c: Contribution) -> bool:
    """True for a loss that comes out of the model, or is a mean of cross-entropies, and that no count has divided."""
    if c.varies or c.divisor is not None or c.over:
        return False
    if is_of_the_model(c) and c.forward is not None and program.labels_rows(c.forward.subject):
        return False
    if c.reduction == "mean":
        return isinstance(c.made, Call) and is_entropy(program, c.made)
    from_criterion = isinstance(c.made, Call) and is_loss_function(dotted(c.made.func))
    return c.reduction == "unknown" and (is_of_the_model(c) or from_criterion)


def is_of_the_model(c: Contribution) -> bool:
    """True for a loss that the call of a model gives."""
    made = c.origin.partition("@")[0]
    # What a mixture of experts of transformers returns beside the loss of its labels is no mean over them.
    if c.forward is None or made.endswith(".aux_loss"):
        return False
    # `self.model(…)` and `model(…)` are one model under two names.
    maker, _, _ = made.partition("(…)")
    return maker.rpartition(".")[2] == c.forward.subject.rpartition(".")[2]


def is_one_of_several(c: Contribution) -> bool:
    """True for a loss that the model gives beside others: `out["action_loss"]`."""
    made = c.origin.partition("@")[0]
    return made.rstrip("']").endswith("_loss")


def is_entropy(program: Program, call: Call) -> bool:
    """True for `F.cross_entropy(…)` and for the call of a criterion that the file makes as one, with their own mean.

    What an `ignore_index` leaves out is known to the trace, but for padding whose value is seen in another file only.
    """
    named = dotted(call.func)
    made = (value for value in program.assigned.get(named, ()) if isinstance(value, Call))
    return any(_means(c) for c in (call, *made))


def _means(call: Call) -> bool:
    """True for a cross-entropy that is a mean over all targets, or all but padding."""
    ignored = call.keyword("ignore_index")
    return (
        called(call) in COUNTED_LOSSES
        and call.keyword("reduction") is None
        and (ignored is None or "pad" in render(ignored))
    )
