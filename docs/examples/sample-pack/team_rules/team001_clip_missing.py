"""Steps are taken without a norm clip."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.rule import Finding, Rule, Severity
from accumlint.tracing.trace import Clip, Trace


class ClipMissing(Rule):
    """An optimizer steps without a clip in its window.

    Our runs are stable only with clipped gradients: one bad window is enough to lose a run.

    Bad:

    ```python
    def train(model, criterion, loader, optimizer):
        for images, labels in loader:
            optimizer.zero_grad()
            criterion(model(images), labels).backward()
            optimizer.step()  # error: TEAM001
    ```

    Good:

    ```python
    from torch.nn.utils import clip_grad_norm_


    def train(model, criterion, loader, optimizer):
        for images, labels in loader:
            optimizer.zero_grad()
            criterion(model(images), labels).backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    ```
    """

    severity = Severity.WARNING

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        # A call that could not be followed may clip.
        if run.hides("optimizer", "model"):
            return
        for optimizer in run.optimizers:
            window = run.steady(optimizer)
            if window and not window.of(Clip):
                yield self.at(
                    window.step, f"`{optimizer.text}` steps without a clip", window=window
                )
