"""A mean over a varying number of tokens is divided by the accumulation steps."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.rule import Confidence, Finding, Observed, Rule, Severity, Symptom
from accumlint.tracing.trace import MARKED, OF_A_MODEL, PICKED, Contribution, Trace, Window

from ._labels import leaves_labels_out
from ._weights import applied, divisions, steady_windows


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
                labels = target.masked_fill(target == PAD, -100)
                logits = model(source)
                loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
                (loss / accumulation_steps).backward()  # error: ACC101
            optimizer.step()
    ```

    Good:

    ```python
    import torch.nn.functional as F

    PAD = 0


    def train(model, loader, optimizer, accumulation_steps):
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            window = [next(batches) for _ in range(accumulation_steps)]
            tokens = sum((target != PAD).sum() for _, target in window)
            optimizer.zero_grad()
            for source, target in window:
                labels = target.masked_fill(target == PAD, -100)
                logits = model(source)
                loss = F.cross_entropy(
                    logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum"
                )
                (loss / tokens).backward()
            optimizer.step()
    ```

    Dividing the gradients is as good when the count is known only afterwards: let the summed losses go backward,
    count, and divide every `p.grad` by the count before clipping and stepping (after `unscale_` with a GradScaler).
    On several ranks the count is that of all ranks, over the world size under DDP, which averages.

    When it stays silent: on rows of one fixed length (packed blocks, images, classification), on losses that are
    means over sequences or pairs rather than tokens, and on sums that are divided by a count of the whole window.
    A mean that is never divided at all is ACC102, one that counts padding ACC108, one over the tokens of all ranks
    ACC106.

    The finding is `certain` when the file shows that labels are left out: it pads, or it writes or looks for the
    ignored value. It is `likely` for a loss that a model works out of labels of which some are set to -100, for a mean
    over what a mask picks, and for a sum that is divided by another one over the micro-batch's own data. An
    `ignore_index` alone is `possible` only, since many models name one and are trained on full rows. Class weights
    make the count differ by a little, and the finding a warning.

    When the fix is not offered: always, since the count of a window must be known before its first backward. The
    suggestion is the window of the good example.

    Measured (N = 4, relative error, cosine and length of the first applied gradient): 1.01, .50, 1.01 on 10/1000
    tokens; .13, .992, .99 on 64/512/128/256; .017, .9999, 1.00 on 400 to 600; 1e-16 on equal counts and for the good
    example; class weights .015 to .13. After 30 windows on the 10/1000 data the parameters are off by 71 % of the
    distance trained with SGD and by 72 % with Adam and AdamW.

    See: [transformers #34191][hf] and [trl #2175][trl], where this was found in the libraries;
    `fixed_cross_entropy` in `transformers/loss/loss_utils.py`, which divides by the window's count; Accelerate's
    guide to [samples of variable size][accelerate].

    [hf]: https://github.com/huggingface/transformers/pull/34191
    [trl]: https://github.com/huggingface/trl/issues/2175
    [accelerate]: https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation
    """

    code = "ACC101"
    name = "mean-loss-not-normalised-by-tokens"
    severity = Severity.ERROR
    observed = Observed.WEIGHTS
    symptom = Symptom.WEIGHTS

    def check(self, trace: Trace) -> Iterator[Finding]:
        for window in steady_windows(trace):
            uneven = [c for c in window.contributions if is_uneven(c)]
            # What is divided twice (ACC103) weighs every micro-batch the same as well.
            if not uneven or divisions(trace, window) not in (1, 2):
                continue
            first = uneven[0]
            by_weight = "weight" in first.varies
            # Whoever ignores -1 is heard only where labels are set to it.
            set_by_hand = "ignore_index=-1`" in first.varies or first.varies == MARKED
            shown = by_weight or set_by_hand or leaves_labels_out(trace.program)
            by_custom = first.varies in (OF_A_MODEL, MARKED)
            sure = Confidence.LIKELY if by_custom else Confidence.CERTAIN
            if not shown and any(is_counted(c) or is_picked(c) for c in uneven):
                shown, sure = True, Confidence.LIKELY
            yield self.at(
                first.backward,
                f"`{first.backward.loss}` weighs every micro-batch the same, although the count "
                f"behind its mean differs ({_counted(first)})",
                confidence=sure if shown else Confidence.POSSIBLE,
                severity=Severity.WARNING if by_weight else Severity.ERROR,
                window=window,
                applied=applied(window),
                expected=by_counts(window),
            )


def by_counts(window: Window) -> str:
    """What the large batch would apply: each micro-batch by its share of what is counted, n together."""
    numbers = range(1, len(window.microbatches) + 1)
    return " + ".join(f"n{number}/n g{number}" for number in numbers) + " (n together)"


def _counted(c: Contribution) -> str:
    """What tells that the count differs: the count itself, where it is written."""
    return f"`{c.divisor.text}`" if c.divisor is not None and c.divisor.text else c.varies


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

    A divisor that counts padding is ACC108, one that counts all ranks ACC106, and as many rows are in every batch.
    """
    elsewhere = c.divisor is not None and (c.divisor.kind in ("elements", "rows") or c.divisor.over)
    return c.reduction == "mean" and bool(c.varies) and not elsewhere
