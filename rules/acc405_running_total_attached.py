"""A total keeps the graphs of what it adds up."""

from __future__ import annotations

import re
from collections.abc import Iterator

from accumlint.editing import Append
from accumlint.reading.ir import (
    Assign,
    Augment,
    Binary,
    Const,
    Do,
    Expr,
    For,
    Item,
    Node,
    While,
    dotted,
    names_in,
)
from accumlint.reading.names import is_count, is_score
from accumlint.rule import (
    Applicability,
    Claim,
    Confidence,
    Finding,
    Fix,
    Observed,
    Rule,
    Severity,
    safe,
)
from accumlint.tracing.trace import Add, EpochEnd, Put, Reset, Run, Step, Trace


class RunningTotalAttached(Rule):
    """A total of losses is kept with its graph, and with it the graph of every micro-batch.

    The gradients are right. After a backward the saved activations are gone and only the nodes of
    the graph stay, a slow leak; without a backward, or with `retain_graph=True`, the activations of
    every micro-batch stay as well. The total then also needs the device each time it is printed.

    Bad:

    ```python
    import torch.nn.functional as F


    def train_epoch(model, loader, optimizer):
        total_loss = 0.0
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            total_loss += loss  # error: ACC405
        return total_loss / len(loader)
    ```

    Good:

    ```diff
             optimizer.step()
    -        total_loss += loss
    +        total_loss += loss.detach()
         return total_loss / len(loader)
    ```

    When it stays silent: when the total itself goes backward (one backward for the whole window is right, though it
    saves no memory: ACC407), when it is set back or restarted in every window, when it reads like something counted
    from predictions (an accuracy), and under `torch.no_grad()`. Where what is added is not known to be a loss, or comes
    of a function that cannot be read, the finding is only *possible*: it may be a number without a graph.

    When the fix is not offered: where the total is not written as a sum, as with a list that losses are appended to.

    Measured: 18.4 KiB and 14 graph nodes per micro-batch are kept, against 3.4 KiB with
    `.detach()`; 496 to 522 KiB with `retain_graph=True` or without a backward. The gradients agree
    exactly. `.detach()` is better than `.item()`, which waits for the device on every micro-batch.

    See: [the PyTorch FAQ][faq] ("Don't accumulate history across your training loop"), transformers#6999, ray#40940.
    """

    severity = Severity.INFO
    observed = Observed.TOTAL_ATTACHED
    claim = Claim.MEMORY
    fix = Applicability.SAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        bounded = {e.total for window in run.steady_of_each() for e in window.of(Reset)}
        backwards = [b for window in run.windows for b in window.backwards]
        losses = {w for b in backwards for w in re.findall(r"[\w.]+", f"{b.subject} {b.loss}")}
        joint = any(len({c.microbatch for c in b.contributions}) > 1 for b in backwards)
        lasting = outliving_a_step(run)
        for add in run.of(Add):
            backwarded = joint or add.total in losses
            if not add.attached or backwarded or add.total in bounded:
                continue
            # What counts (`self.examples += batch_size`) or measures has no graph wherever it comes from.
            named = add.total.rpartition(".")[2], key_of(add.total)
            counts = any(is_score(n) or is_count(n) or n.endswith("examples") for n in named)
            if counts or add.total not in lasting:
                continue
            if not any(lasts(trace, add) for lasts in (is_local, is_of_one_update, is_of_one_call)):
                yield self.at(
                    add,
                    f"`{add.total}` keeps the graph of every micro-batch that it adds up",
                    confidence=Confidence.POSSIBLE if add.unread else Confidence.CERTAIN,
                    fixes=detached(add.node, "Add the value without its graph"),
                )
        for put in {e.node: e for e in run.of(Put) if e.attached}.values():
            if put.subject not in losses and goes_on(trace, put):
                yield self.at(
                    put,
                    f"`{put.subject}` keeps the graph of every loss that is put into it",
                    fixes=detached(put.node, "Put the value in without its graph"),
                )


def key_of(total: str) -> str:
    """`accuracy` for `info['accuracy']`, "" where nobody wrote a key."""
    return total[:-1].rpartition("[")[2].strip("'\"") if total.endswith("]") else ""


def is_local(trace: Trace, add: Add) -> bool:
    """True for a sum over the parts of one result: it begins with a value in a loop around the one that adds."""
    inner = trace.program.loop_around(add.node)
    outer = trace.program.loop_around(inner) if inner is not None else None
    if inner is None or outer is None or any(isinstance(n, Do | For | While) for n in inner.body):
        return False
    return any(
        not isinstance(value, Const)
        and add.total not in names_in(value)
        and trace.program.loop_around(value) is outer
        for value in trace.program.assigned.get(add.total, ())
    )


def is_of_one_update(trace: Trace, add: Add) -> bool:
    """True for a sum that begins and ends in a function which steps once, behind the loop that adds."""
    program = trace.program
    inner = program.loop_around(add.node)
    function = program.function_around(add.node)
    if inner is None or function is None or "." in add.total or program.loop_around(inner):
        return False
    begins = [v for v in program.assigned.get(add.total, ()) if function in program.above(v)]
    steps = [list(program.above(e.node)) for e in trace.main.of(Step)]
    behind = all(function in above and inner not in above for above in steps)
    return bool(begins) and bool(steps) and behind


def is_of_one_call(trace: Trace, add: Add) -> bool:
    """True for what a function is given or begins with a value, where it adds and steps nowhere, or cuts its graph."""
    program = trace.program
    function = program.function_around(add.node)
    if function is None or "." in add.total or function is trace.entry.function:
        return False
    if any(function in program.above(node) for node in {e.node for e in trace.main.of(Step)}):
        return False
    begins = [v for v in program.assigned.get(add.total, ()) if function in program.above(v)]
    fresh = any(not isinstance(v, Const) and add.total not in names_in(v) for v in begins)
    return fresh or any(param.name == add.total for param in function.params)


def goes_on(trace: Trace, put: Put) -> bool:
    """True for a tensor that is made outside the loop that steps, and filled inside."""
    program = trace.program
    made = program.assigned.get(put.subject, ())
    for loop in {program.loop_around(step.node) for step in trace.main.of(Step)}:
        if loop is not None and loop in program.above(put.node):
            return not any(loop in program.above(value) for value in made)
    return False


def outliving_a_step(run: Run) -> set[str]:
    """The totals that go on after a step; one that is begun anew before its next addition ends with it."""
    if not run.of(Step):
        return outliving_a_microbatch(run) if run.of(EpochEnd) else set()
    found: set[str] = set()
    # The totals that were added to since the last step, and before it.
    added: set[str] = set()
    stepped: set[str] = set()
    for event in run.events:
        match event:
            case Add(total=total):
                if total in stepped:
                    found.add(total)
                stepped.discard(total)
                added.add(total)
            case Reset(total=total):
                added.discard(total)
                stepped.discard(total)
            case Step():
                stepped |= added
                added.clear()
            case _:
                pass
    return found


def outliving_a_microbatch(run: Run) -> set[str]:
    """The totals that are not begun anew for each micro-batch."""
    found: set[str] = set()
    last: dict[str, int] = {}
    for event in run.events:
        if isinstance(event, Reset):
            last.pop(event.total, None)
        elif isinstance(event, Add):
            if last.setdefault(event.total, event.microbatch) != event.microbatch:
                found.add(event.total)
    return found


def detached(node: Node, told: str) -> Iterator[Fix]:
    """Detaches what `total += value` or `total = total + value` adds, and `totals[i] = value` puts in."""
    for value in added(node):
        yield safe(told, Append(value, ".detach()"))


def added(node: Node) -> Iterator[Expr]:
    match node:
        case Assign(targets=[Item()], value=value):
            yield value
        case Augment(op="+", value=value):
            yield value
        case Assign(targets=[target], value=Binary(op="+", left=left, right=right)):
            if dotted(target) == dotted(left):
                yield right
        case _:
            pass
