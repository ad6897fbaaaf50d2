"""DeepSpeed's `engine.step()` is guarded by the script's own boundary."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import Before, Move
from accumlint.reading.ir import Attr, Call, Node, called, render, walk_expr
from accumlint.reading.program import Program
from accumlint.rule import (
    Applicability,
    Confidence,
    Finding,
    Fix,
    Observed,
    Rule,
    Severity,
    Symptom,
    safe,
)
from accumlint.tracing.trace import Backward, EngineCall, Run, Trace, TrainingObject


class DeepspeedStepAtBoundary(Rule):
    """`engine.step()` runs at the script's own boundary, while DeepSpeed counts the micro-batches in it.

    DeepSpeed advances its counter in `engine.step()`, which steps on every N-th call. Called on
    every N-th micro-batch only, it steps after N x N of them, and until then every call merely
    counts: most runs end before the first update. `engine.is_gradient_accumulation_boundary()` as
    the guard is no better, because the counter that it looks at never moves.

    Bad:

    ```python
    import deepspeed


    def train(model, loader, args):
        engine, _, _, _ = deepspeed.initialize(args=args, model=model)
        for _ in range(args.epochs):
            for step, (inputs, targets) in enumerate(loader):
                loss = engine(inputs, targets)
                engine.backward(loss)
                if (step + 1) % args.gradient_accumulation_steps == 0:
                    engine.step()  # error: ACC605
    ```

    Good:

    ```diff
                 engine.backward(loss)
    -            if (step + 1) % args.gradient_accumulation_steps == 0:
    -                engine.step()
    +            engine.step()
    ```

    When it stays silent: when the configuration in the file has one accumulation step, when the
    script divides the loss by its own steps (then the engine's are taken to be 1), when it calls
    `set_gradient_accumulation_boundary`, and when the engine was not seen being built by
    `deepspeed.initialize`. Where the configuration cannot be read, the finding is likely.

    When the fix is not offered: where the guard computes something on the way. What else stands under it, such as a
    log, stays there.

    Measured (DeepSpeed 0.19, N = 4, stages 0 and 1): no optimizer step in 12 micro-batches. With
    one accumulation step in the configuration and the script's own boundary, the gradient is N
    times too long instead. `set_gradient_accumulation_boundary` and one step per window: exact.

    See: [`DeepSpeedEngine.step`][training]; `is_gradient_accumulation_boundary` in `deepspeed/runtime/engine.py`.

    [training]: https://deepspeed.readthedocs.io/en/latest/training.html
    """

    severity = Severity.ERROR
    observed = Observed.ENGINE_BOUNDARY
    symptom = Symptom.MISSED
    fix = Applicability.SAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        if run.guessed or sets_the_boundary(trace.program):
            return
        for guard in run.barred:
            test = getattr(guard, "test", None)
            asked = [n.name for n in walk_expr(test) if isinstance(n, Attr)] if test else []
            if test is not None and "is_gradient_accumulation_boundary" in asked:
                yield self.at(
                    test,
                    f"`{render(test)}` never holds: DeepSpeed counts in the `step()` that it guards",
                    fixes=[unguarded(step, guard) for step in steps_in(guard)],
                )
        for call in {c.engine: c for c in run.of(EngineCall)}.values():
            guard = trace.program.guard_around(call.node)
            if call.engine.kind == "deepspeed" and is_rarer(run, call.engine):
                yield self.at(
                    call,
                    f"`{call.subject}.step()` runs on every {run.steps}th micro-batch, and DeepSpeed steps on every "
                    f"{f'{run.steps}th' if call.steps else 'N-th'} of its calls",
                    confidence=Confidence.CERTAIN if call.steps else Confidence.LIKELY,
                    fixes=[unguarded(call.node, guard)] if guard is not None else (),
                )


def unguarded(step: Node, guard: Node) -> Fix:
    """Calls the engine's step on every micro-batch: it counts by itself."""
    return safe("Step on every micro-batch: the engine counts by itself", Move(step, Before(guard)))


def steps_in(guard: Node) -> list[Node]:
    """The calls of a `step` under a guard."""
    calls = (n for n in walk_expr(guard) if isinstance(n, Call) and isinstance(n.func, Attr))
    return [call for call in calls if called(call) == "step"]


def is_rarer(run: Run, engine: TrainingObject) -> bool:
    """True when micro-batches that the script does not divide go backward without a call of the engine's step."""
    calls = [c for c in run.of(EngineCall) if c.engine is engine]
    # Engines that are made one after the other may share a name.
    calls = [c for c in calls if c.subject == calls[0].subject]
    backwards = [b for b in run.of(Backward) if b.via == "engine" and b.subject == calls[0].subject]
    undivided = all(
        c.weight in (None, 1) or b.divided == 1 / c.weight
        for b in backwards
        for c in b.contributions
    )
    through = {n for b in backwards for n in b.microbatches}
    if any(c.steps == 1 for c in calls) or not undivided:
        return False
    return len({c.microbatch for c in calls}) * run.steps <= len(through) > run.steps


def sets_the_boundary(program: Program) -> bool:
    """True when the script tells DeepSpeed where its windows end."""
    name = "set_gradient_accumulation_boundary"
    return any(n.name == name for n in program.of(Attr))
