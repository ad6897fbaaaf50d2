"""The first window has another size than the rest."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import Replace
from accumlint.reading.ir import (
    Assign,
    Attr,
    Augment,
    Binary,
    Bool,
    Call,
    Compare,
    Const,
    Expr,
    For,
    Name,
    Node,
    While,
    dotted,
    names_in,
    render,
    target_names,
    walk,
    walk_expr,
)
from accumlint.reading.program import Program
from accumlint.rule import (
    Applicability,
    Finding,
    Fix,
    Observed,
    Rule,
    Severity,
    Symptom,
    safe,
    unsafe,
)
from accumlint.tracing.trace import Accumulate, Clear, EpochEnd, Step, Trace, Window

from ._boundaries import boundary_of, remainders


class WindowOffByOne(Rule):
    """The boundary test is off by one, so the first window has 1, N - 1 or N + 1 micro-batches.

    `i % N == 0` counted from 0 is true at once: the first step applies one micro-batch divided by
    N, and all later windows are shifted by one. `i > 0 and i % N == 0` waits for N + 1, `(i + 1) %
    N` counted from 1 for N - 1. The divisor stays N, so that step is wrong in length as well, and
    the shift leaves a partial window at the end of an epoch that N divides.

    Bad:

    ```python
    from itertools import cycle

    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps, max_steps):
        batches = cycle(loader)
        for step in range(max_steps):
            inputs, targets = next(batches)
            loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
            loss.backward()
            if step % accumulation_steps == 0:
                optimizer.step()  # error: ACC503
                optimizer.zero_grad()
    ```

    Good:

    ```diff
             loss.backward()
    -        if step % accumulation_steps == 0:
    +        if (step + 1) % accumulation_steps == 0:
                 optimizer.step()
    ```

    When it stays silent: when the count fits its test (`enumerate(loader, 1)` with `i % N`, a counter raised before the
    test, a wrapped counter whose 0 means last), when the first window is divided by its own length, when it is stepped
    by another line than the rest (a warm-up), and when it is short because the epoch is, and when the loop changes the
    window's size as it goes on.

    When the fix is not offered: where the boundary is decided by something other than a counter modulo the accumulation
    steps. It is unsafe where the same remainder is asked for elsewhere, by an evaluation after the step, say.

    Measured (N = 4): relative error of the first update .77 with one micro-batch, .275 with N - 1, .305 with N + 1;
    after 6 windows the parameters are off by .135, .046 and .136 of the distance trained.

    See: [gradient accumulation in the AMP examples][amp], with `(i + 1) % iters_to_accumulate`.
    """

    severity = Severity.ERROR
    observed = Observed.OFF_BY_ONE
    symptom = Symptom.SIZES
    fix = Applicability.SAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        for optimizer in run.optimizers:
            first, steady = run.windows_of(optimizer)[0], run.steady(optimizer)
            if (
                steady is None
                or steady.is_entangled
                or first.step.node is not steady.step.node
                or first.of(EpochEnd)
                # Accelerate counts, not the script.
                or first.of(Accumulate)
                or _wiped(first)
            ):
                continue
            # Another optimizer's loss may reach these parameters as well, from the second window on.
            others = any(e.optimizer is not optimizer for e in steady.of(Step))
            size, full = (
                first.backward_count(),
                steady.backward_count(like=first if others else None),
            )
            if (
                first.sources <= steady.sources
                and full > 1
                and size in {1, full - 1, full + 1}
                and (first.total is None or first.total != steady.total or _wiped(steady))
                and not grows(trace.program, first.step.node)
            ):
                # What is near a full window is as near to the file's own.
                told, later = (run.in_file(n) if n > 1 else n for n in (size, full))
                yield self.at(
                    first.step,
                    f"the first `{first.step.subject}.step()` comes after {told} "
                    f"micro-batch{'es' if told > 1 else ''}, every later one after {later}",
                    window=first,
                    fixes=counted_rightly(trace.program, first.step.node, 1 < size < full),
                )


def _wiped(window: Window) -> bool:
    """True when something before the first step was cleared unapplied: a probe, or another defect."""
    return any(clear.wiped for clear in window.of(Clear))


def grows(program: Program, step: Node) -> bool:
    """True where the window's size is set anew in the loop that steps: windows are of many sizes on purpose."""
    asked = boundary_of(program, step)
    sizes = {dotted(r.right) for r in remainders(asked)} if asked is not None else set[str]()
    loops = (n for n in program.above(step) if isinstance(n, For | While))
    return any(_is_set_anew(sizes, loop) for loop in loops)


def _is_set_anew(sizes: set[str], loop: For | While) -> bool:
    """True where one of the sizes is assigned in the rounds, and not the same of settings alone in each of them."""
    inside = list(walk(loop.body))
    assigned = [node for node in inside if isinstance(node, Assign)]
    targets = [t for node in assigned for t in node.targets]
    targets += [n.target for n in (loop, *inside) if isinstance(n, Augment | For)]
    bound = {name for t in targets for name in (dotted(t), *target_names(t))}
    plain = [s for n in (loop, *inside) if isinstance(n, For | While) for s in n.body]
    return any(
        sizes & {dotted(target) for target in node.targets}
        and not (node in plain and _is_fixed(node.value, bound))
        for node in assigned
    )


def _is_fixed(value: Expr, bound: set[str]) -> bool:
    """True for what is worked out from numbers and settings, none of which is among the `bound`."""
    calls = any(isinstance(n, Call) for n in walk_expr(value))
    return not calls and names_in(value).isdisjoint(bound)


def counted_rightly(program: Program, step: Node, is_short: bool) -> Iterator[Fix]:
    """Counts the micro-batch that is being worked on: one more than an index from 0, no more than a number from 1.

    Where the first window `is_short` of one, its first micro-batch has the number 2.
    """
    asked = boundary_of(program, step)
    for remainder in remainders(asked) if asked is not None else ():
        # An evaluation that asks the same would no longer come right behind the step.
        same = (n for n in program.of(Binary) if n.op == "%" and n is not remainder)
        make = unsafe if any(render(n) == render(remainder) for n in same) else safe
        match remainder.left:
            case Binary(op="+", left=counter, right=Const(value=1)):
                yield make("Count from one", Replace(remainder.left, program.code(counter)))
            case Name() | Attr():
                told = "Count from one" if is_short else "Count the present micro-batch"
                sign, steps = "-" if is_short else "+", program.code(remainder.right)
                moved = f"({program.code(remainder.left)} {sign} 1) % {steps}"
                if asked is not None and leaves_zero_out(asked, remainder.left):
                    yield make(told, Replace(asked, f"{moved} == 0"))
                yield make(told, Replace(remainder, moved))
            case _:
                pass


def leaves_zero_out(test: Expr, counter: Expr) -> bool:
    """True for `counter > 0 and counter % steps == 0`, in which the first part is not needed once one is added."""
    match test:
        case Bool(op="and", left=Compare(left=left, rest=[(">" | "!=", Const(value=0))])):
            return dotted(left) == dotted(counter) and isinstance(test.right, Compare)
        case _:
            return False
