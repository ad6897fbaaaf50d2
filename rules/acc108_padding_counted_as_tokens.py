"""A loss that leaves positions out is divided by a count of all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from accumlint.reading.targets import leaves_labels_out
from accumlint.rule import Confidence, Finding, Observed, Rule, Severity, Symptom
from accumlint.tracing.trace import Divisor, Trace

# A mask of this name leaves tokens out; any other one may be a weight that the loss is meant to have.
_OF_TOKENS = re.compile(
    r"pad|atten|attn|loss_mask|label|token|valid|response|completion|target_mask|seq", re.IGNORECASE
)


class PaddingCountedAsTokens(Rule):
    """A loss that leaves padding out is divided by a count that includes it.

    Ignored positions add nothing to the sum, and `labels.numel()`, batch times length or a plain `.mean()` count them
    all the same. The gradient is too short by the share of tokens that are left in, and this share is another one for
    each micro-batch: the effective learning rate goes up and down with the padding, and in a window of N micro-batches
    the padded ones count for less. With rows of 10 and 1000 tokens in one batch the applied gradient has .29 of its
    length.

    Bad:

    ```python
    import torch.nn.functional as F
    from torch.nn.utils.rnn import pad_sequence


    def train(model, loader, optimizer, accumulation_steps):
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            optimizer.zero_grad()
            for _ in range(accumulation_steps):
                rows, targets = next(batches)
                labels = pad_sequence(targets, batch_first=True, padding_value=-100)
                logits = model(pad_sequence(rows, batch_first=True)).flatten(0, 1)
                loss = F.cross_entropy(
                    logits, labels.flatten(), ignore_index=-100, reduction="sum"
                )
                (loss / labels.numel() / accumulation_steps).backward()  # error: ACC108
            optimizer.step()
    ```

    Good:

    ```diff
         for _ in range(len(loader) // accumulation_steps):
    +        window = [next(batches) for _ in range(accumulation_steps)]
    +        tokens = sum(len(target) for _, targets in window for target in targets)
             optimizer.zero_grad()
    -        for _ in range(accumulation_steps):
    -            rows, targets = next(batches)
    +        for rows, targets in window:
                 labels = pad_sequence(targets, batch_first=True, padding_value=-100)
    @@
                 )
    -            (loss / labels.numel() / accumulation_steps).backward()
    +            (loss / tokens).backward()
             optimizer.step()
    ```

    When it stays silent: on a sum divided by the rows of a batch, which is a loss per sequence; on a constant, such as
    a longest length that all windows share; on counts that were not seen being counted; and on losses that leave
    nothing out.

    The finding is `certain` when the file shows that labels are left out (it pads, or writes or looks for the ignored
    value), `likely` when a mask says so by its name, and `possible` otherwise: an `ignore_index` alone is named by many
    models that train on full rows, and a mask may be a weight. Tokens that are counted before the labels are shifted
    are `possible`, too: when the first label of each row is ignored anyway, the count is the same.

    When the fix is not offered: without `--unsafe-fixes`, because the learning rate was tuned with the shorter
    gradient.

    Measured (N = 4): length .29, cosine 1 with `numel()` on rows of 10 and 1000 tokens, for masks and ignored labels
    alike. Tokens counted before the shift: length .9 on rows of 10 tokens, .984 on 64, .998 on 10 and 1000.

    See: `num_items_in_batch` in `transformers/trainer.py`, which counts `labels[..., 1:] != -100`;
    [`torch.nn.CrossEntropyLoss`][loss], whose mean leaves `ignore_index` out of the count as well.
    """

    severity = Severity.WARNING
    observed = Observed.PADDING_COUNTED
    symptom = Symptom.SCALE

    def check(self, trace: Trace) -> Iterator[Finding]:
        for window in trace.typical_windows():
            for c in window.contributions:
                divisor = c.divisor
                if divisor is None or c.weight is None or c.is_mean_of_picked:
                    continue
                loss = f"`{c.backward.loss}`"
                if divisor.kind == "elements" and divisor.leaves_out:
                    yield self.at(
                        c.backward,
                        f"{loss} ignores positions ({divisor.leaves_out}), and its divisor `{divisor.text}` "
                        "counts all of them",
                        confidence=sureness(trace, divisor),
                        window=window,
                    )
                elif divisor.shifted:
                    yield self.at(
                        c.backward,
                        f"{loss} has no prediction for the first label of each row, and "
                        f"`{divisor.text}` counts it",
                        confidence=Confidence.POSSIBLE,
                        window=window,
                    )


def sureness(trace: Trace, divisor: Divisor) -> Confidence:
    """How sure it is that the loss leaves anything out."""
    if "mask" in divisor.leaves_out:
        named = _OF_TOKENS.search(divisor.leaves_out)
        return Confidence.LIKELY if named else Confidence.POSSIBLE
    return Confidence.CERTAIN if leaves_labels_out(trace.program.evidence) else Confidence.POSSIBLE
