"""The average of the weights moves on every micro-batch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from accumlint.reading.ir import Assign, Call, Node, dotted, render
from accumlint.reading.program import Program
from accumlint.rule import (
    Applicability,
    Claim,
    Confidence,
    Finding,
    Observed,
    Rule,
    Severity,
    Symptom,
    unsafe,
)
from accumlint.tracing.trace import Average, Trace

from ._calls import once_per_update

# An argument that lets the average count its own calls, or that fits its decay to the window.
_COUNTED = re.compile(r"every|freq|interval|accum|micro|steps_per")


class EmaEveryMicrobatch(Rule):
    """The average of the weights is updated on every micro-batch, while the weights move once per window.

    An exponential average is written for one update per step of the optimizer. Called N times between two steps, it
    takes the same weights in N times: its decay is d^N instead of d. An average with d = .999 then looks back over 250
    steps instead of 1000 when N is 4, and a warm-up of the decay that counts calls is over after 1/N of its time.

    Bad:

    ```python
    import torch.nn.functional as F


    def train(model, ema, loader, optimizer, accumulation_steps):
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            optimizer.zero_grad()
            for _ in range(accumulation_steps):
                inputs, targets = next(batches)
                loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
                loss.backward()
                ema.update(model)  # error: ACC508
            optimizer.step()
    ```

    Good:

    ```diff
                 loss.backward()
    -            ema.update(model)
             optimizer.step()
    +        ema.update(model)
    ```

    When it stays silent: when the average is given how often to act (`update_every=`, a decay made
    of the accumulation steps), when its own code counts its calls, and outside windows of several
    micro-batches. An average that is known by its name only makes the finding likely.

    When the fix is not offered: without `--unsafe-fixes`, since the decay was perhaps tuned with the defect.

    Measured (N = 4, d = .9): at the end the average is off by .33 of the distance trained. The
    weights themselves are not touched.

    See: [`AveragedModel`][swa], [timm's `ModelEmaV3`][timm].

    [swa]: https://docs.pytorch.org/docs/stable/optim.html#weight-averaging-swa-and-ema
    [timm]: https://github.com/huggingface/pytorch-image-models/blob/main/timm/utils/model_ema.py
    """

    severity = Severity.WARNING
    observed = Observed.AVERAGED_EACH_TIME
    claim = Claim.SCHEDULE
    symptom = Symptom.AVERAGES
    of_losses = True
    fix = Applicability.UNSAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        for window in run.accumulating_windows():
            for average in {e.node: e for e in window.of(Average)}.values():
                moves = {e.microbatch for e in run.of(Average) if e.node is average.node}
                if moves >= set(window.backwarded) and not counts_by_itself(trace.program, average):
                    yield self.at(
                        average,
                        f"`{average.subject}` averages the weights on every micro-batch, "
                        f"{run.in_file(window.backward_count())} times for each step",
                        confidence=Confidence.CERTAIN if average.certain else Confidence.LIKELY,
                        window=window,
                        # Where no model is seen, an average of losses goes by the same names.
                        fixes=once_per_update(trace, window, average.node, "Average", unsafe)
                        if average.certain or is_of_a_model(trace.program, average.node)
                        else (),
                    )


def counts_by_itself(program: Program, average: Average) -> bool:
    """True when the average is made, or called, with something that has to do with how often it is called."""
    name = average.subject.rpartition(".")[2]
    made = (
        n for n in program.of(Assign) if name in {dotted(t).rpartition(".")[2] for t in n.targets}
    )
    calls = [n for n in (average.node, *(m.value for m in made)) if isinstance(n, Call)]
    given = (argument for call in calls for argument in call.args)
    return any(_COUNTED.search(f"{a.keyword} {render(a.value)}") for a in given)


def is_of_a_model(program: Program, node: Node) -> bool:
    """True for a call that is given nothing, or a model or its parameters by their names."""
    given = [a.value for a in node.args] if isinstance(node, Call) else []
    words = [word for value in given for word in re.findall(r"\w+", render(value))]
    return not given or any(program.roles.of(w) == "model" or "param" in w for w in words)
