"""Gradients are clipped while a GradScaler's scale is still on them."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import Before, Insert, Move
from accumlint.reading.ir import If
from accumlint.reading.program import Program
from accumlint.rule import Applicability, Finding, Fix, Observed, Rule, Severity, Symptom, safe
from accumlint.tracing.trace import Clip, Run, Step, Trace, Unscale

from ._calls import argument_of, receiver_of


class ClipBeforeUnscale(Rule):
    """Gradients are clipped while they are still multiplied by the GradScaler's scale.

    The norm that the threshold meets is the scale times the true norm, so the clip is active in every window and leaves
    `max_norm`, from which `scaler.step` then takes the scale: the optimizer applies a gradient of length
    `max_norm` over the scale. With the initial scale of 65536 that is 1.5e-5 of the intended length. Nothing raises and
    nothing is NaN; the parameters do not move and the loss curve is flat. It needs no accumulation: one micro-batch per
    step is enough. Clipping by value is no better.

    Bad:

    ```python
    import torch
    import torch.nn.functional as F


    def train(model, loader, optimizer, max_norm):
        scaler = torch.amp.GradScaler("cuda")
        for images, labels in loader:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)  # error: ACC201
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    ```

    Good:

    ```diff
             scaler.scale(loss).backward()
    +        scaler.unscale_(optimizer)
             torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    ```

    When it stays silent: with `GradScaler(enabled=False)`, whose scale is 1, and where the flag that switches it on is
    off; on Accelerate's and Fabric's own clipping, which unscale first; and where the window was unscaled too early,
    which is ACC203.

    When the fix is not offered: where no step of the scaler follows the clip in reach, so that its optimizer is not
    known, and where the step is on one side of a guard, so that there may be no scaler on the other.

    Measured (N = 4, scale 65536): relative error 1.0, cosine 1, length 1.5e-5, both with `unscale_` after the clip
    and without any; the parameters move by less than 1 % of the distance trained. Once the scale has fallen below
    the threshold over the norm, the clip does nothing at all.

    See: [working with unscaled gradients][amp] in PyTorch's AMP examples; [Pytorch-UNet #468][unet] and
    [pytorch/examples #1196][examples].

    [amp]: https://docs.pytorch.org/docs/stable/notes/amp_examples.html#working-with-unscaled-gradients
    [unet]: https://github.com/milesial/Pytorch-UNet/issues/468
    [examples]: https://github.com/pytorch/examples/issues/1196
    """

    severity = Severity.ERROR
    needs_followed = ("scaler",)
    observed = Observed.CLIPPED_SCALED
    symptom = Symptom.CLIPPED
    fix = Applicability.SAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        for clip in run.of(Clip):
            if clip.scaled and clip.via == "torch" and not unscaled_too_early(run, clip):
                scaler = next((c.backward.scaler for c in clip.pending if c.scaled), None)
                yield self.at(
                    clip,
                    "gradients are clipped while they are still multiplied by the scale of "
                    f"`{scaler.text if scaler else 'the scaler'}`",
                    # One that nobody is seen to build may be disabled where another path unscales.
                    everywhere="unscale_" in trace.program.calls and not (scaler and scaler.kind),
                    fixes=unscale_first(trace.program, run, clip),
                )


def unscale_first(program: Program, run: Run, clip: Clip) -> Iterator[Fix]:
    """Takes the scale off in front of the clip, by the call that comes later where there is one."""
    step = next((s for s in run.of(Step) if s.index > clip.index and s.scaler), None)
    if step is None or may_be_without_scaler(program, step, clip):
        return
    later = [u for u in run.of(Unscale) if clip.index < u.index < step.index]
    for unscale in later[:1]:
        yield safe("Unscale before clipping", Move(unscale.node, Before(clip.node)))
    scaler, optimizer = receiver_of(step.node), argument_of(step.node)
    if scaler and optimizer and not later:
        call = f"{scaler}.unscale_({optimizer})"
        yield safe(f"Call `{call}` before clipping", Insert(call, Before(clip.node)))


def may_be_without_scaler(program: Program, step: Step, clip: Clip) -> bool:
    """True where the step stands on one side of a guard, and the clip on neither: the other may have no scaler."""
    around = set(program.above(clip.node))
    guards = [n for n in program.above(step.node) if isinstance(n, If) and n not in around]
    return any(guard.orelse for guard in guards)


def unscaled_too_early(run: Run, clip: Clip) -> bool:
    """True when some of what is clipped was unscaled and the rest was added afterwards."""
    clipped = {(c.microbatch, c.network) for c in clip.pending}
    return any(
        (c.microbatch, c.network) in clipped
        for unscale in run.of(Unscale)
        if unscale.index < clip.index
        for c in unscale.pending
    )
