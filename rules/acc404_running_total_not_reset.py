"""A reported mean is taken over more than it was divided by."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import Sink
from accumlint.reading.ir import Attr, Binary, Name, called, dotted, names_in, render, walk_expr
from accumlint.reading.program import Program
from accumlint.rule import Applicability, Claim, Finding, Fix, Rule, Severity, safe
from accumlint.tracing.trace import Add, Read, Trace


class RunningTotalNotReset(Rule):
    """A total that is reported as an epoch's mean is never set back: it holds earlier epochs too.

    The gradients are untouched. What is printed, logged or handed to early stopping is wrong: the sum of E epochs
    divided by the length of one is E times the mean, so a loss that falls looks like one that rises.

    Bad:

    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer, epochs):
        total_loss = 0.0
        for epoch in range(epochs):
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(inputs), targets)
                loss.backward()
                optimizer.step()
                total_loss += loss.item()
            print(epoch, total_loss / len(loader))  # error: ACC404
    ```

    Good:

    ```diff
     def train(model, loader, optimizer, epochs):
    -    total_loss = 0.0
         for epoch in range(epochs):
    +        total_loss = 0.0
             for inputs, targets in loader:
    ```

    When it stays silent: when the total is divided by a count that grows with it, reported as a
    total, or divided by anything but `len(...)`: then it may be a mean over the whole run. A total
    that divides the loss or the gradients is the business of ACC406.

    When the fix is not offered: where the total starts in another function than the loop over epochs, or is read
    after it.

    Measured: the gradients agree exactly; only the log differs, by the factor E.
    """

    severity = Severity.INFO
    claim = Claim.LOG
    fix = Applicability.SAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        averaged = divided_by_length(trace.program)
        for run in trace.runs:
            # What an evaluation adds bears the number of the last micro-batch that trained.
            epoch = {add.microbatch: add.epoch for add in reversed(run.of(Add))}
            for read in run.of(Read):
                epochs = {epoch[m] for m in read.added if m in epoch}
                if not read.divides and read.total in averaged and len(epochs) > 1:
                    yield self.at(
                        read,
                        f"`{read.total}` is reported as the mean of one epoch and still holds "
                        "the epochs before",
                        fixes=reset_per_epoch(trace.program, read),
                    )


def divided_by_length(program: Program) -> frozenset[str]:
    """What the program divides by `len(...)`, as written; a list whose mean is taken by its own length is no total."""
    return frozenset(
        render(part)
        for node in program.of(Binary)
        if node.op == "/"
        if called(node.right) == "len"
        for part in walk_expr(node.left)
        if isinstance(part, Attr | Name) and dotted(part) not in names_in(node.right)
    )


def reset_per_epoch(program: Program, read: Read) -> Iterator[Fix]:
    """Takes the first value into the loop over epochs at whose end the total is read."""
    loop = program.loop_around(read.node)
    for start in program.first_values(read.total) if loop is not None else ():
        if loop is not None:
            yield safe("Start every epoch from nothing", Sink(start, loop))
