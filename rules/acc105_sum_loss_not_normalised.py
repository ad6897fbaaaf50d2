"""A sum-reduced loss is divided by the accumulation steps only."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.rule import Confidence, Finding, Observed, Rule, Severity, Symptom
from accumlint.tracing.trace import Trace


class SumLossNotNormalised(Rule):
    """A loss that sums over its elements is divided by the accumulation steps and by nothing else.

    The accumulation steps turn N means into one mean. They do not turn N sums into anything: the result is the sum
    over the window divided by N, which is neither the sum nor the mean that the large batch has. Its direction is right
    and its length is the number of elements of an average micro-batch, so the learning rate depends on the batch size,
    on the sequence lengths and, where these vary, on the window. With 512 tokens in a window of 4 the gradient is
    128 times that of the mean, on uneven rows 505 times.

    Bad:

    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps):
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            optimizer.zero_grad()
            for _ in range(accumulation_steps):
                images, labels = next(batches)
                loss = F.cross_entropy(model(images), labels, reduction="sum")
                (loss / accumulation_steps).backward()  # error: ACC105
            optimizer.step()
    ```

    Good:

    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps):
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            window = [next(batches) for _ in range(accumulation_steps)]
            rows = sum(len(labels) for _, labels in window)
            optimizer.zero_grad()
            for images, labels in window:
                loss = F.cross_entropy(model(images), labels, reduction="sum")
                (loss / rows).backward()
            optimizer.step()
    ```

    When it stays silent: when the sum is also divided by a count, of the window or of the micro-batch, or by anything
    that could not be followed, when it is one of several parts of a loss and not all of them are sums (a penalty that
    its author weighed against the rest), and when the gradients are divided before the step. A sum that nothing
    divides is what the large batch would have if its loss is meant to be a sum; it is reported as `possible` only.

    When the fix is not offered: always. Which count belongs under the sum (rows, tokens, pixels) is for its author.

    Measured (N = 4): cosine 1; length of the first applied gradient 128 on equal rows and 505 on rows of 10 and 1000
    tokens, divided by the steps; 512 and 2020 with no division. A run on many ranks that also sums and divides by the
    steps agrees with this one: both are wrong together, so comparing them proves nothing.

    See: `reduction` of [`torch.nn.CrossEntropyLoss`][loss]; `fixed_cross_entropy` in
    `transformers/loss/loss_utils.py`, which sums and divides by the window's count.
    """

    severity = Severity.WARNING
    needs_followed = ("loss", "optimizer")
    observed = Observed.SUMMED
    symptom = Symptom.SCALE
    of_losses = True

    def check(self, trace: Trace) -> Iterator[Finding]:
        for window in trace.steady_windows():
            # A sum among means is a part (a penalty) that its author weighed against them.
            parts = {c.backward for c in window.contributions if c.reduction != "sum"}
            sums = [
                c
                for c in window.contributions
                if c.reduction == "sum" and not c.symbols and c.backward not in parts
            ]
            times = trace.divisions(window)
            if sums and times in (0, 1):
                backward = sums[0].backward
                yield self.at(
                    backward,
                    f"`{backward.loss}` is a sum over each micro-batch and is divided by "
                    + ("the accumulation steps only" if times else "nothing"),
                    confidence=Confidence.CERTAIN if times else Confidence.POSSIBLE,
                    window=window,
                    applied=window.applied,
                    expected="the sum of all gradients, divided by the elements of the window",
                )
