"""The gradient norm that clipping returns is thrown away."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.reading.ir import Assign, Do, Expr, Name, dotted
from accumlint.reading.program import Program
from accumlint.rule import Claim, Finding, Rule, Severity
from accumlint.tracing.trace import Clip, Norm, Trace


class GradNormNotLogged(Rule):
    """The window's gradient norm is computed for clipping, and nobody looks at it.

    `clip_grad_norm_` returns the norm of the whole window's gradient before it was clipped. It is
    the one number that shows most defects of accumulation at once: a loss that is not divided is N
    times too long, gradients that are not cleared grow with every update, a NaN shows up before the
    loss does. Logging it once per update costs nothing, for the norm is there already.

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
                loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # error: ACC704
            optimizer.step()
    ```

    Good:

    ```diff
    -def train(model, loader, optimizer, accumulation_steps):
    +def train(model, loader, optimizer, accumulation_steps, writer):
         batches = iter(loader)
    -    for _ in range(len(loader) // accumulation_steps):
    +    for update in range(len(loader) // accumulation_steps):
             optimizer.zero_grad()
    @@
                 loss.backward()
    -        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    +        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    +        writer.add_scalar("gradient norm", norm, update)
             optimizer.step()
    ```

    When it stays silent: where the value is read, stored in an attribute or handed on, where the norm is measured
    in another way, and for clipping by value, which has no norm.

    See: [`clip_grad_norm_`][clip].
    """

    severity = Severity.INFO
    claim = Claim.LOG
    unmeasured = "no run tells what is not shown"
    opt_in = True

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        if run.of(Norm):
            return
        thrown_away = discarded_norms(trace.program)
        for clip in run.of(Clip):
            if clip.node in thrown_away and clip.pending:
                yield self.at(
                    clip, f"`{thrown_away[clip.node]}` returns the gradient norm, and it is dropped"
                )


def discarded_norms(program: Program) -> dict[object, str]:
    """The calls that return a gradient norm to nobody, with their names."""
    return {
        call: last
        for call in _unread(program)
        if (last := dotted(getattr(call, "func", call)).rpartition(".")[2])
        in ("clip_grad_norm_", "clip_grad_norm")
    }


def _unread(program: Program) -> Iterator[Expr]:
    """What stands alone as a statement, or behind a name that is never read."""
    assigned = program.of(Assign)
    targets = {target for node in assigned for target in node.targets}
    read = {n.id for n in program.of(Name) if n not in targets}
    yield from (node.value for node in program.of(Do))
    for node in assigned:
        if all(isinstance(target, Name) and target.id not in read for target in node.targets):
            yield node.value
