"""The backward runs inside `autocast`."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import After, Move
from accumlint.reading.ir import Attr, Name, With, dotted, walk_expr
from accumlint.rule import Applicability, Confidence, Finding, Rule, Severity, safe
from accumlint.tracing.trace import Backward, Trace


class AutocastAroundBackward(Rule):
    """The backward runs inside the `autocast` context of its forward.

    Autocast chooses a precision for each operation of the forward; the backward runs each operation in the precision
    that its forward had, inside the context or outside. PyTorch advises against a backward under autocast. No
    difference was measured, so this is a matter of habit: the rule is asked for by name.

    Bad:

    ```python
    import torch
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps):
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            optimizer.zero_grad()
            for _ in range(accumulation_steps):
                inputs, targets = next(batches)
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
                    loss.backward()  # error: ACC703
            optimizer.step()
    ```

    Good:

    ```diff
                     loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
    -                loss.backward()
    +            loss.backward()
             optimizer.step()
    ```

    When it stays silent: where the context is switched off by a literal `enabled=False`.

    When the fix is not offered: when something after the backward stands in the context too.

    Measured: on a CPU, with bfloat16 and with float16, the gradients inside and outside are equal
    to the last bit. A GPU was not measured.

    See: [automatic mixed precision][amp] ("Backward passes under autocast are not recommended").

    [amp]: https://docs.pytorch.org/docs/stable/amp.html#autocasting
    """

    severity = Severity.INFO
    unmeasured = "no difference exists that could be measured"
    opt_in = True
    fix = Applicability.SAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        for backward in trace.main.of(Backward):
            if backward.autocast:
                yield self.at(
                    backward,
                    f"`{backward.loss}` goes backward inside `autocast`",
                    confidence=Confidence.CERTAIN,
                    fixes=[
                        safe("Go backward after `autocast`", Move(backward.node, After(context)))
                        for context in trace.program.above(backward.node)
                        if isinstance(context, With) and is_autocast(context)
                    ],
                )


def is_autocast(context: With) -> bool:
    called = (
        n for value, _ in context.items for n in walk_expr(value) if isinstance(n, Attr | Name)
    )
    return any("autocast" in dotted(n).rpartition(".")[2] for n in called)
