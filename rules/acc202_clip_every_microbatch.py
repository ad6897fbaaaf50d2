"""Gradients are clipped between the backwards of one window."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import Before, Guard, Move
from accumlint.reading.program import Program
from accumlint.rule import (
    Applicability,
    Finding,
    Fix,
    Observed,
    Related,
    Rule,
    Severity,
    Symptom,
    safe,
)
from accumlint.tracing.trace import Backward, Clip, Run, Step, Trace, Window, mean, weighted

from ._calls import accelerators


class ClipEveryMicrobatch(Rule):
    """Gradients are clipped between the backwards of one window, so partial sums are bounded instead of the gradient.

    `.grad` holds the sum so far. Clipping it after each of N micro-batches shrinks what came first again and again and
    leaves the last micro-batch nearly whole: the direction turns towards the end of the window, and the final clip
    makes its length look right. With N = 4 the applied gradient is off by 27 % whenever the threshold is reached;
    when it is never reached nothing happens, so the defect appears with the first unstable steps.

    Bad:

    ```python
    import torch
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps, max_norm):
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            optimizer.zero_grad()
            for _ in range(accumulation_steps):
                images, labels = next(batches)
                loss = F.cross_entropy(model(images), labels)
                (loss / accumulation_steps).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)  # error: ACC202
            optimizer.step()
    ```

    Good:

    ```diff
                 (loss / accumulation_steps).backward()
    -            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    +        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
             optimizer.step()
    ```

    Under Accelerate the clip belongs under `if accelerator.sync_gradients:`; the prepared optimizer waits for the
    boundary by itself, `accelerator.clip_grad_norm_` does not. In fp16 it also unscales, and the second call raises.

    When it stays silent: when nothing is added to the clipped gradients before the step, on a window of one
    micro-batch, on the gradients of another network, when another optimizer applies what is clipped, and on clipping by
    DeepSpeed, Lightning or the Hugging Face Trainer, which clip once. A clip of gradients that are also still
    scaled is ACC201 as well; one that stands ahead of every backward is ACC208.

    When the fix is not offered: when no test of the boundary is in reach, so that the call has nowhere to go.

    Measured (N = 4): relative error .27, cosine .963, length 1.0, parameters 13 % of the distance trained away, 0 when
    the threshold is never reached; the same under Accelerate; .19 on 2 ranks and .14 on 4 under `no_sync`.

    See: [accelerate #641][accelerate] and [diffusers #721][diffusers], where the guard was added;
    [PyTorch's AMP examples][amp], which clip only in the branch that steps.

    [accelerate]: https://github.com/huggingface/accelerate/issues/641
    [diffusers]: https://github.com/huggingface/diffusers/pull/721
    """

    severity = Severity.ERROR
    observed = Observed.CLIPPED_EARLY
    symptom = Symptom.CLIPPED
    fix = Applicability.SAFE
    of_direction = True

    def check(self, trace: Trace) -> Iterator[Finding]:
        # Ahead of every backward of some window: its first call there bounds nothing at all, which is ACC208.
        known = {c.node for w in trace.main.windows for c in trace.main.idle_clips(w)}
        for window in trace.main.windows:
            if window.is_entangled:
                continue
            for clip in window.of(Clip):
                if clip.node in known or is_for_another(trace.main, window, clip):
                    continue
                if is_partial(window, clip):
                    known.add(clip.node)
                    yield self.at(
                        clip,
                        "a partial sum is clipped: more micro-batches are added before "
                        f"`{window.step.subject}.step()`",
                        window=window,
                        applied=clipped(window),
                        expected=f"clip({mean(range(1, len(window.microbatches) + 1))})",
                        related=[
                            Related(window.step.node, "applies what is added afterwards, too")
                        ],
                        fixes=clip_once(trace.program, window, clip),
                    )


def is_for_another(run: Run, window: Window, clip: Clip) -> bool:
    """True when another optimizer applies what is clipped before anything is added to it."""
    step, backward = run.next(Step, clip.index), run.next(Backward, clip.index)
    if step is None or (backward is not None and backward.index < step.index):
        return False
    return step.optimizer is not window.step.optimizer


def is_partial(window: Window, clip: Clip) -> bool:
    """True when later micro-batches are added to the clipped gradients before these are applied."""
    networks = {c.network for c in clip.pending}
    last = max((c.microbatch for c in clip.pending), default=0)
    return any(
        c.network in networks and c.microbatch > last and c.backward.index > clip.index
        for c in window.contributions
    )


def clipped(window: Window) -> str:
    """What is applied, with each clip around the sum that it bounds."""
    text = ""
    # A loss of several parts is written once.
    factors = window.factors or [window.weight(n) for n in window.microbatches]
    numbers = enumerate(zip(window.microbatches, factors, strict=True), 1)
    waiting = {n: weighted(f, i) for i, (n, f) in numbers}
    for event in window.between:
        if isinstance(event, Backward):
            added = [waiting.pop(n) for n in event.microbatches if n in waiting]
            text = " + ".join([text, *added] if text else added)
        elif isinstance(event, Clip) and text:
            text = f"clip({text})"
    return text


def clip_once(program: Program, window: Window, clip: Clip) -> Iterator[Fix]:
    """Clips at the boundary: by Accelerate's own flag where the step waits for it, else right before the step."""
    for accelerator in accelerators(program) if window.step.gated else ():
        test = f"{accelerator}.sync_gradients"
        yield safe(f"Clip only when `{test}`", Guard(clip.node, test))
    yield safe("Clip once, right before the step", Move(clip.node, Before(window.step.node)))
