"""`accelerator.accumulate` is entered twice per micro-batch, outside the loop, never, or without its steps."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from accumlint.reading.ir import Attr, Name, dotted, text_of
from accumlint.reading.program import Program
from accumlint.rule import Confidence, Finding, Observed, Rule, Severity, Symptom
from accumlint.tracing.trace import (
    Accumulate,
    Backward,
    Event,
    Forward,
    Run,
    Step,
    Trace,
    TrainingObject,
)


class AccelerateAccumulateMisused(Rule):
    """`accelerator.accumulate` does not see each micro-batch once, or was never given the number of steps.

    Accelerate counts its entries into `accumulate`: every N-th one synchronises and lets the optimizers step. Entered
    twice for one micro-batch, as in `with accelerator.accumulate(generator)` and then `with
    accelerator.accumulate(discriminator)`, the count runs twice as fast; when N is even the first of the two never
    synchronises, and its optimizer never steps. Entered once, outside the loop, it counts to one. Never entered, it
    counts nothing: the optimizer steps on every micro-batch, whose loss is divided by N all the same. And when the
    Accelerator is built without `gradient_accumulation_steps`, N is 1.

    Bad:

    ```python
    from accelerate import Accelerator


    def train(generator, discriminator, g_optimizer, d_optimizer, loader, losses, args):
        accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
        generator, discriminator, g_optimizer, d_optimizer, loader = accelerator.prepare(
            generator, discriminator, g_optimizer, d_optimizer, loader
        )
        for noise, real in loader:
            with accelerator.accumulate(discriminator):
                fake = generator(noise).detach()
                accelerator.backward(losses.tell(discriminator(real), discriminator(fake)))
                d_optimizer.step()
                d_optimizer.zero_grad()
            with accelerator.accumulate(generator):  # error: ACC603
                accelerator.backward(losses.fool(discriminator(generator(noise))))
                g_optimizer.step()
                g_optimizer.zero_grad()
    ```

    Good:

    ```diff
         for noise, real in loader:
    -        with accelerator.accumulate(discriminator):
    +        with accelerator.accumulate(generator, discriminator):
                 fake = generator(noise).detach()
    @@
                 d_optimizer.zero_grad()
    -        with accelerator.accumulate(generator):
                 accelerator.backward(losses.fool(discriminator(generator(noise))))
    ```

    When it stays silent: when the Accelerator is given one step or built elsewhere, when each batch of an epoch has an
    entry of its own and comes in parts, when two entries stand in branches of which one is taken, when a plugin or
    keyword arguments that cannot be read may hold the steps. That the steps were never given is likely at most, since
    `accelerate launch` can set them in the environment; it is reported only where the file speaks of steps.

    When the fix is not offered: always; what belongs into one context is for its author.

    Measured (Accelerate 1.15, N = 4): without `accumulate`, relative error .77 at the first update
    and four times as many updates; without the steps, .43.

    See: [gradient accumulation with Accelerate][accelerate]; `_do_sync` and `accumulate` in
    `accelerate/accelerator.py`.
    """

    severity = Severity.ERROR
    observed = Observed.ACCUMULATE_UNUSED
    symptom = Symptom.MISSED

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        entries = [e for e in run.of(Accumulate) if e.entered]
        # A few lines without a step are a demonstration or a test.
        again = entered_again(run) if run.of(Step) else None
        if again is not None:
            yield self.at(
                again,
                f"`{again.subject}.accumulate` is entered twice for one micro-batch, and counts two",
            )
        for entry in entries:
            if entry.steps > 1 and len(inside(run, entry)) > run.steps and is_alone(entries, entry):
                yield self.at(
                    entry,
                    f"`{entry.subject}.accumulate` is entered once for {len(inside(run, entry))} "
                    "micro-batches, and counts one",
                )
        for entry in entries[:1]:
            built_without = entry.steps == 1 and entry.accelerator.certain
            if built_without and speaks_of_steps(trace.program):
                yield self.at(
                    entry.accelerator.node,
                    f"`{entry.subject}` is built without `gradient_accumulation_steps`, so "
                    "`accumulate` accumulates nothing (unless the launcher sets them)",
                    confidence=Confidence.LIKELY,
                )
        step = stepping_without(run)
        if step is not None and not entries and gives_steps(trace.program):
            yield self.at(
                step,
                f"`{step.subject}.step()` runs on every micro-batch: "
                "`accumulate` is never entered, and `backward` divides all the same",
            )


def is_alone(entries: list[Accumulate], entry: Accumulate) -> bool:
    """False where an epoch enters it again and again: what it holds are the parts of one batch."""
    return [e for e in entries if e.node is entry.node and e.epoch == entry.epoch] == [entry]


def within(run: Run, entry: Accumulate) -> Iterator[Event]:
    """What happens between an entry and its exit."""
    depth = 0
    for event in run.events[entry.index :]:
        if isinstance(event, Accumulate):
            depth += 1 if event.entered else -1
            if depth == 0:
                return
        yield event


def inside(run: Run, entry: Accumulate) -> frozenset[int]:
    """The micro-batches that go backward between an entry and its exit."""
    backwards = (e for e in within(run, entry) if isinstance(e, Backward))
    return frozenset(number for backward in backwards for number in backward.microbatches)


def holds_the_forward_alone(run: Run, entry: Accumulate) -> bool:
    """True when the model is called between an entry and its exit, and the loss goes backward in another."""
    events = list(within(run, entry))
    forwards = {e for e in events if isinstance(e, Forward)}
    if not forwards or any(isinstance(e, Backward) for e in events):
        return False
    return any(b.accumulating and not forwards.isdisjoint(b.forwards) for b in run.of(Backward))


def entered_again(run: Run) -> Event | None:
    """One of two entries of an accelerator for the same micro-batch, nested or one after the other.

    Two entries for one model, each with a backward of its own, make two micro-batches of one batch.
    """
    open_: list[Accumulate] = []
    seen: dict[tuple[TrainingObject, int], Accumulate] = {}
    for event in (e for e in run.of(Accumulate) if e.steps > 1):
        if not event.entered:
            del open_[-1:]
            continue
        nested = any(e.accelerator is event.accelerator for e in open_)
        if nested or holds_the_forward_alone(run, event):
            return event
        open_.append(event)
        for microbatch in inside(run, event):
            before = seen.setdefault((event.accelerator, microbatch), event)
            if before.node is not event.node and text_of(before.node) != text_of(event.node):
                return event
    return None


def stepping_without(run: Run) -> Step | None:
    """A gated step that is taken on every micro-batch, of which each was divided by the steps."""
    for window in run.steady_of_each():
        if len(window.backwarded) != 1 or not window.step.gated:
            continue
        # A loss may have a weight, but no other divisor.
        shares = all(
            c.weight == Fraction(1, c.backward.divided or 1) < 1
            and not any(symbol.startswith("/") for symbol in c.symbols)
            for c in window.contributions
        )
        if shares and all(b.via == "accelerator" for b in window.backwards):
            return window.step
    return None


def gives_steps(program: Program) -> bool:
    """True when the file builds Accelerators, and gives each its steps, and no plugin that counts by itself."""
    built = program.calls.get("Accelerator", ())
    given = [{argument.keyword for argument in call.args} for call in built]
    return bool(built) and all(
        "gradient_accumulation_steps" in g and "deepspeed_plugin" not in g for g in given
    )


def speaks_of_steps(program: Program) -> bool:
    """True when the file reads a number of accumulation steps that is not the Accelerator's own."""
    asked = "gradient_accumulation_steps"
    return any(asked in name.id for name in program.of(Name)) or any(
        asked in attr.name and "accelerator" not in dotted(attr.base) for attr in program.of(Attr)
    )
