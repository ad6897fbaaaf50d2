"""An optimizer that Accelerate was never given steps on every micro-batch."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.rule import Finding, Observed, Related, Rule, Severity
from accumlint.tracing.trace import Trace, mean


class AccelerateObjectUnprepared(Rule):
    """An optimizer was never given to `accelerator.prepare`, so nothing keeps it from stepping on every micro-batch.

    Under `accelerator.accumulate` the script calls `step` and `zero_grad` on every micro-batch, and
    the prepared wrappers leave out all calls but the last of a window. An optimizer without the
    wrapper takes each of them seriously: N updates of 1/N the length, each with the noise of a small
    batch, and with fp16 its gradients are never unscaled.

    Bad:

    ```python
    import torch
    import torch.nn.functional as F
    from accelerate import Accelerator


    def train(model, loader, args):
        accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
        model, loader = accelerator.prepare(model, loader)
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(inputs), targets))
                optimizer.step()  # error: ACC604
                optimizer.zero_grad()
    ```

    Good:

    ```diff
         optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    -    model, loader = accelerator.prepare(model, loader)
    +    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
         for inputs, targets in loader:
    ```

    When it stays silent: when the optimizer is not built in the file, or is handed to something that
    could not be followed and may prepare it; when its step is guarded by `accelerator.sync_gradients`.
    A scheduler that was never prepared and runs on every micro-batch is ACC506.

    When the fix is not offered: always; the order of what `prepare` returns matters.

    Measured (Accelerate 1.15, N = 4): relative error .77 at the first update, four times as many
    updates. The parameters end within .03 of the right place with SGD, since N short steps are
    nearly one long one: the number of updates shows it, the loss curve does not.

    See: [gradient accumulation with Accelerate][accelerate]; `step` and `zero_grad` in `accelerate/optimizer.py`.
    """

    severity = Severity.WARNING
    observed = Observed.UNPREPARED

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        for window in run.steady_of_each():
            optimizer = window.step.optimizer
            if len(window.backwarded) != 1 or not optimizer.certain:
                continue
            accumulating = all(b.accumulating and b.divided != 1 for b in window.backwards)
            if (
                accumulating
                and not window.step.gated
                and len(run.windows_of(optimizer)) > run.steps
            ):
                yield self.at(
                    window.step,
                    f"`{window.step.subject}` was never prepared: it steps on every micro-batch "
                    "under `accumulate`",
                    window=window,
                    expected=mean(range(1, run.steps + 1)),
                    related=(Related(optimizer.node, "built here"),),
                )
