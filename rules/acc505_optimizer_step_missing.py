"""Gradients are accumulated and never applied, or applied on all micro-batches of a window but the last."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from accumlint.reading.ir import Attr, Call, For, If, While, dotted, render, walk
from accumlint.reading.names import role_of
from accumlint.reading.program import Program
from accumlint.rule import Finding, Observed, Rule, Severity, Symptom
from accumlint.tracing.trace import Clear, Event, Run, Step, Trace

# `step_and_update_lr` and the like are a step, too.
TELLING = re.compile("^step($|_and)|^grad$|optimizer_step$|^register_post_accumulate_grad_hook$")


class OptimizerStepMissing(Rule):
    """Gradients are accumulated, and the step that should apply them never comes or comes at the wrong micro-batches.

    Three slips lead here. The guard of the step can never hold (`step % N == N`), so the model stays what it was. The
    optimizer is cleared round by round, and no line of the file steps it. Or the guard is inverted: of N micro-batches
    all but one step by themselves, and the last one's gradient waits for the next window's first.

    Bad:

    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps):
        optimizer.zero_grad()
        for step, (inputs, targets) in enumerate(loader):
            loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
            loss.backward()
            if step % accumulation_steps == accumulation_steps:  # error: ACC505
                optimizer.step()
                optimizer.zero_grad()
    ```

    Good:

    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps):
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            for _ in range(accumulation_steps):
                inputs, targets = next(batches)
                loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    ```

    When it stays silent: when the guard could not be worked out, when the step may be elsewhere (the file does not
    build the optimizer, unless every window of the accumulation steps ends by clearing it; something but a schedule in
    it is called `step`; a method of the optimizer has it in its name; gradients are read from `.grad`; a hook steps),
    and when the steps are a number so large that no window was completed.

    When the fix is not offered: always; the line that is missing or inverted is for its author.

    Measured: without a step the parameters do not move (relative error 1). A window that steps on
    every micro-batch does N small steps: 24 instead of 6 (N = 4), which the loss curve hardly shows.

    See: [gradient accumulation in the AMP examples][amp], accelerate#1232.
    """

    severity = Severity.ERROR
    needs_followed = ("optimizer", "model", "scaler", "engine")
    observed = Observed.NEVER_STEPPED
    symptom = Symptom.MISSED

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        if run.guessed:
            return
        if all(never_steps(r) for r in trace.runs):
            for guard in run.barred:
                if is_free(run) and isinstance(guard, If) and is_evaluated_again(trace, guard):
                    yield self.at(
                        guard.test,
                        f"`{render(guard.test)}` never holds, so `{stepped_in(guard)}` is never reached",
                    )
            forgotten = cleared_only(run)
            if forgotten is not None and not is_stepped_elsewhere(trace.program, forgotten):
                yield self.at(
                    forgotten,
                    f"`{forgotten.subject}` is cleared and never stepped: accumulated gradients "
                    "are never applied",
                )
        for step in all_but_one(run):
            yield self.at(
                step,
                f"`{step.subject}.step()` runs on all micro-batches of a window but one: its guard "
                "is inverted",
                window=next(w for w in run.windows if w.step is step),
            )


def never_steps(run: Run) -> bool:
    """True when several windows went backward, one of them whole before anything ended, and nothing stepped."""
    if run.of(Step) or run.stopped or len(accumulated(run.events)) < 2 * run.steps:
        return False
    return any(len(accumulated(stretch)) >= run.steps for stretch in stretches(run))


def is_evaluated_again(trace: Trace, guard: If) -> bool:
    """False for a guard that is asked once for all micro-batches: after the loop, or where the function is made."""
    entry, module = trace.entry, trace.program.body
    body = module if entry.function is None else entry.function.body
    inside = guard in walk(body, into_functions=False)
    if entry.maker is not None:
        return inside
    if guard in walk(module, into_functions=False):
        body = module
    elif not inside or entry.calls != "once":
        return True
    loops = (n for n in walk(body, into_functions=False) if isinstance(n, For | While))
    return any(guard in walk(n.body) for n in loops)


def stretches(run: Run) -> Iterator[list[Event]]:
    """The events between clears and ends of epochs: who leaves a loop early may never come to a window's end."""
    stretch: list[Event] = []
    for event in run.events:
        if stretch and (isinstance(event, Clear) or event.epoch != stretch[-1].epoch):
            yield stretch
            stretch = []
        stretch.append(event)
    yield stretch


def accumulated(events: Iterable[Event]) -> frozenset[int]:
    """The micro-batches that some events tell of."""
    return frozenset(n for e in events for n in getattr(e, "microbatches", ()))


def is_free(run: Run) -> bool:
    """True when the window's size is the accumulation steps of the run, not a number of the code's own."""
    return run.asked and run.literal is None


def stepped_in(guard: If) -> str:
    """The call of a step that a guard holds."""
    calls = (dotted(n.func) for n in walk(guard.body) if isinstance(n, Call))
    return next((f"{callee}()" for callee in calls if callee.endswith("step")), "the step")


def cleared_only(run: Run) -> Clear | None:
    """The clear of an optimizer of this file that throws gradients away which no step applied."""
    lost = [
        clear
        for clear in run.of(Clear)
        if clear.optimizer is not None and clear.wiped
        # One that others built may be none; who counts accumulation steps and clears at their end has it for stepping.
        if clear.optimizer.certain
        or (is_free(run) and len({c.microbatch for c in clear.wiped}) == run.steps)
    ]
    return lost[0] if len(lost) > 1 and not run.unread else None


def is_stepped_elsewhere(program: Program, forgotten: Clear) -> bool:
    """True when the file holds something that may step after all, or that only looks at gradients.

    A method of the optimizer itself may have another name (`optimizer.managed_step()`).
    """
    cleared = forgotten.subject.rpartition(".")[2]
    for node in program.of(Attr):
        owner = dotted(node.base).rpartition(".")[2]
        if TELLING.search(node.name) and role_of(owner) != "scheduler":
            return True
        if owner == cleared and "step" in node.name:
            return True
    return False


def all_but_one(run: Run) -> Iterator[Step]:
    """The steps of an optimizer that leaves out one micro-batch of each window, always the same one."""
    if not is_free(run) or run.steps < 3:
        return
    for optimizer in run.optimizers:
        windows = [w for w in run.windows_of(optimizer) if w.step.epoch <= 1]
        stepping = {w.step.microbatch for w in windows}
        through = {n for w in windows for n in w.backwarded}
        left_out = sorted(through - stepping)
        alone = all(len(w.step.applied) <= 2 for w in windows)
        regular = {n % run.steps for n in left_out}
        if len(left_out) > 1 and len(regular) == 1 and alone:
            if len(through) - len(left_out) >= (run.steps - 1) * (len(left_out) - 1):
                yield windows[1].step
                return
