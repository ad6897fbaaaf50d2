"""The partial window at the end of an epoch is never stepped."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.rule import Applicability, Finding, Observed, Rule, Severity, Symptom, unsafe
from accumlint.tracing.trace import Backward, EpochEnd, Run, Tail, Trace, Window, mean

from ._partial import own_lengths

WHAT_HAPPENS = {
    "leaked": "leaks into the first window of the next epoch",
    "cleared": "is cleared without a step",
    "lost": "is never applied",
}


class TrailingWindowDropped(Rule):
    """The partial window at the end of an epoch is never stepped: it is lost or leaks.

    When N does not divide the number of micro-batches, the last few of an epoch make no full window. If they are
    cleared or left behind, that share of the data is computed and thrown away, in an epoch shorter than N all of it. If
    nothing clears them (then this is an error), they are added to the first window of the next epoch, whose gradient
    has N + r micro-batches and is too long.

    Bad:

    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps, epochs):
        for _ in range(epochs):
            for index, (inputs, targets) in enumerate(loader):
                loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
                loss.backward()
                if (index + 1) % accumulation_steps == 0:
                    optimizer.step()  # error: ACC501
                    optimizer.zero_grad()
    ```

    Good:

    ```diff
             for index, (inputs, targets) in enumerate(loader):
    -            loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
    +            start = index - index % accumulation_steps
    +            window = min(accumulation_steps, len(loader) - start)
    +            loss = F.cross_entropy(model(inputs), targets) / window
                 loss.backward()
    -            if (index + 1) % accumulation_steps == 0:
    +            if index + 1 == start + window:
                     optimizer.step()
    ```

    When it stays silent: when no partial window can come (an inner loop over N, an endless stream, data that is skipped
    instead of its gradients), when the counter runs on across epochs, so that windows cross them at full size, when the
    framework steps at the end (Accelerate, Lightning, the HF Trainer) or carries the window on (DeepSpeed), and when a
    call that could not be followed received the optimizer.

    When the fix is not offered: it is unsafe, since the number of updates changes and with it the schedule.

    Measured (10 micro-batches, N = 4, 3 epochs): the parameters are off by .35 of the distance trained when the partial
    window is dropped and by .24 when it leaks; there the first gradient of epoch 2 is 1.5 times too long. A counter
    that runs on across epochs loses only the end of the run. Stepped and divided by its own length: 2e-16.

    See: transformers#22098 and #14309, ms-swift#10084, Lightning#19987.
    """

    severity = Severity.WARNING
    observed = Observed.LEFT_OVER
    symptom = Symptom.LEFT
    fix = Applicability.UNSAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        # Only a second epoch shows whether a window crosses into it.
        runs = [run for run in trace.runs if len(run.of(EpochEnd)) > 1] or trace.runs
        dropped = [(run, *pair) for run in runs for pair in dropped_tails(run)]
        if any(tail.fate == "crossed" for run in runs for tail in run.tails):
            # The counter runs on: what an epoch leaves is lost at the end of the last one only.
            dropped = [one for one in dropped if one[2].fate != "lost"]
        # Many epochs may end alike: it is told once where a step drops what is left.
        seen: set[object] = set()
        for fate, happens in WHAT_HAPPENS.items():
            for run, window, tail in dropped:
                if tail.fate == fate and window.step.node.at not in seen:
                    seen.add(window.step.node.at)
                    shown, updates = _where_it_ends(run, window, tail)
                    yield self.at(
                        window.step,
                        f"`{window.step.subject}.step()` applies full windows only: the partial "
                        f"one at the end of an epoch {happens}",
                        severity=Severity.ERROR if fate == "leaked" else None,
                        window=shown,
                        expected=updates,
                        fixes=[
                            unsafe("Step the partial window, divided by its own length", *verbs)
                            for verbs in own_lengths(trace.program, window, stepped=False)
                        ],
                    )


def dropped_tails(run: Run) -> Iterator[tuple[Window, Tail]]:
    """Each partial window that no step of its own applies, with a full one of its optimizer."""
    if run.hides("optimizer") or any(tail.fate not in WHAT_HAPPENS for tail in run.tails):
        return
    for window in run.steady_of_each():
        known = window.sources
        passes = len({b.epoch for b in run.of(Backward)})
        # The end of the run is no epoch's end; where an earlier epoch leaves nothing, the counter runs on.
        runs_out = passes < 2 or len(run.of(EpochEnd)) > len(run.tails)
        for tail in run.tails:
            if tail.fate == "lost" and runs_out:
                continue
            left = {c.microbatch for c in tail.pending if (c.origin, c.network) in known}
            if 0 < len(left) < len(window.microbatches):
                yield window, tail


def _where_it_ends(run: Run, steady: Window, tail: Tail) -> tuple[Window, str]:
    """The window in which what is left over is cleared or applied, and the updates of the large batch instead."""
    windows = run.windows_of(steady.step.optimizer)
    shown = next((w for w in windows if w.step.index > tail.end.index), None)
    if shown is None or not shown.backwarded or tail.fate == "lost":
        return steady, ""
    left = {c.microbatch for c in tail.pending}
    first = min(shown.backwarded)
    before = [n - first + 1 for n in shown.backwarded if n in left]
    after = [n - first + 1 for n in shown.backwarded if n not in left]
    return shown, f"{mean(before)} at the epoch's end, then {mean(after)}"
