"""The loss does not come through the DDP wrapper."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.editing import Replace
from accumlint.reading.ir import (
    Argument,
    Assign,
    Attr,
    Call,
    Function,
    Name,
    Node,
    Return,
    With,
    called,
    dotted,
    walk,
    walk_expr,
)
from accumlint.reading.program import Program
from accumlint.rule import (
    Applicability,
    Claim,
    Confidence,
    Finding,
    Fix,
    Observed,
    Rule,
    Severity,
    unsafe,
)
from accumlint.tracing.trace import Run, Trace, Window

from ._boundaries import under_no_sync

# Modules that hold layers of a model and are not called themselves; diffusers' own holds those of its LoRA.
_CONTAINERS = frozenset({"AttnProcsLayers", "ModuleList", "ModuleDict"})


class DdpWrapperBypassed(Rule):
    """The loss comes from a forward past the DDP wrapper, so its gradients are never reduced.

    DDP arms its reducer in its own `forward`. A forward that goes past the wrapper trains as if there were one process:
    every rank applies the gradient of its own N micro-batches. With 2 ranks the applied gradient is off by 23 %, with 4
    ranks by 28 %, nothing raises, and the checkpoint of rank 0 is what one process alone has learned.

    Bad:

    ```python
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel


    def train(model, loader, optimizer, accumulation_steps):
        ddp = DistributedDataParallel(model)
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            optimizer.zero_grad()
            for _ in range(accumulation_steps):
                inputs, targets = next(batches)
                loss = F.cross_entropy(ddp.module(inputs), targets)  # error: ACC305
                (loss / accumulation_steps).backward()
            optimizer.step()
    ```

    Good:

    ```diff
    +from contextlib import nullcontext
    +
     import torch.nn.functional as F
    @@
             optimizer.zero_grad()
    -        for _ in range(accumulation_steps):
    +        for micro_step in range(accumulation_steps):
                 inputs, targets = next(batches)
    -            loss = F.cross_entropy(ddp.module(inputs), targets)
    -            (loss / accumulation_steps).backward()
    +            with nullcontext() if micro_step + 1 == accumulation_steps else ddp.no_sync():
    +                loss = F.cross_entropy(ddp(inputs), targets)
    +                (loss / accumulation_steps).backward()
             optimizer.step()
    ```

    A Trainer of Hugging Face's hands the wrapped model to `compute_loss`; one that calls `self.model`
    instead goes past the wrapper as well, which is likely where it runs on several ranks.

    Accelerate wraps what it prepares in the same way: a loss that is asked of
    `accelerator.unwrap_model(model)` is *likely*, since one process alone has nothing to reduce. So is the forward of a
    model that was never prepared, where a container of its layers was: `AttnProcsLayers(unet.attn_processors)` shares
    the parameters, and the loss never comes through it.

    When it stays silent: when `.module` serves for saving, generating, evaluating or a method
    without a loss; when only the earlier micro-batches of a window go past the wrapper, since the
    last reduction covers what they left in `.grad`; when the gradients are reduced by hand before
    the step; under Accelerate, when the prepared model is called as well or given to a helper.

    When the fix is not offered: where a method of the inner model is called, which the wrapper does not have.

    Measured: no all-reduce call at all. Relative error .23 (2 ranks) and .28 (4 ranks), spread between ranks .25 of the
    distance trained. With only the last micro-batch past the wrapper: .13, spread .11. With a `ModuleList` of the
    model's layers inside DDP: two ranks hold different gradients.

    See: [`DistributedDataParallel`][ddp], where gradients are reduced only for forwards through the wrapper.
    """

    severity = Severity.ERROR
    observed = Observed.BYPASSED
    claim = Claim.RANKS
    ranks = 2
    fix = Applicability.UNSAFE

    def check(self, trace: Trace) -> Iterator[Finding]:
        run = trace.main
        ever_synced = any(c.synced for w in run.windows for c in w.contributions)
        for window in run.windows:
            last = window.unshared
            forward = window.forward_of(last) if last is not None else None
            if forward is None:
                yield from self.past_a_prepared_model(run, window)
            if forward is None or not forward.bypassed:
                continue
            if ever_synced or not run.hides("model", "optimizer"):
                yield self.at(
                    forward,
                    f"the forward through `{forward.subject}` bypasses the DDP wrapper, "
                    "so its gradients are never reduced over ranks",
                    window=window,
                    fixes=through_wrapper(trace.program, window, forward.node),
                )

    def past_a_prepared_model(self, run: Run, window: Window) -> Iterator[Finding]:
        """The last forward of a window through what Accelerate took out of the wrapper that it had put on."""
        if window.reduced_by_hand:
            return
        last = {c.network: c for c in window.contributions}
        forwards = [window.forward_of(c) for c in last.values() if c.wrapper == "accelerate"]
        past = next((f for f in forwards if f is not None and f.bypassed), None)
        if past is not None and not run.hides("model", "optimizer"):
            # A part of the model that is asked by itself is often asked on purpose: the wrapper has no such method.
            sure = Confidence.LIKELY if is_call_of_model(past.node) else Confidence.POSSIBLE
            yield self.at(
                past,
                f"the forward through `{past.subject}` bypasses the DDP wrapper, so its gradients are "
                "never reduced over ranks (where Accelerate runs several processes)",
                confidence=sure,
                window=window,
            )

    def check_program(self, program: Program) -> Iterator[Finding]:
        for forward, layers in past_prepared_layers(program):
            yield self.at(
                forward,
                f"`{layers}` was prepared and `{dotted(forward.func)}`, which holds them, was not: its forward "
                "bypasses their DDP wrapper, so their gradients are never reduced over ranks (where Accelerate runs "
                "several processes)",
                confidence=Confidence.LIKELY,
            )
        for function in program.methods_of("Trainer", "compute_loss"):
            past = call_past_wrapper(program, function)
            if past is not None:
                yield self.at(
                    past,
                    f"`{function.owner}.compute_loss` calls `self.model`, which the Trainer has wrapped as the "
                    "`model` that it gives: on several ranks gradients are never reduced",
                    confidence=Confidence.LIKELY,
                    fixes=[unsafe("Call the `model` that is given", Replace(past.func, "model"))],
                )


def past_prepared_layers(program: Program) -> Iterator[tuple[Call, str]]:
    """The forward of a model that is not prepared, of which Accelerate was given layers in a container of their own."""
    prepares = (c for c in program.calls.get("prepare", ()) if "accelerator" in dotted(c.func))
    prepared = {dotted(argument.value) for call in prepares for argument in call.args}
    asked = {dotted(call.func) for call in program.of(Call)} if prepared else set[str]()
    for node in program.of(Assign):
        match node:
            case Assign(
                targets=[target], value=Call(args=[Argument(value=Attr(base=base)), *_]) as made
            ) if (layers := dotted(target)) in prepared - asked:
                model = dotted(base)
                if called(made) in _CONTAINERS and model not in prepared:
                    forwards = (c for c in program.of(Call) if dotted(c.func) == model)
                    trained = next((c for c in forwards if goes_backward_after(program, c)), None)
                    if trained is not None:
                        yield trained, layers
            case _:
                pass


def goes_backward_after(program: Program, forward: Call) -> bool:
    """True for a forward with a graph in a loop that goes backward."""
    loop = program.loop_around(forward)
    goes = loop is not None and any(called(n) == "backward" for n in walk(loop.body))
    return goes and not any(map(is_silent, program.above(forward)))


def is_call_of_model(forward: Node) -> bool:
    """True for a call of the model itself, and for a method that gives its loss."""
    func = forward.func if isinstance(forward, Call) else None
    return not isinstance(func, Attr) or func.name == "module" or "loss" in func.name


def call_past_wrapper(program: Program, function: Function) -> Call | None:
    """The forward of `self.model` that a Trainer's loss is made of, beside the model that it is given."""
    given = [param.name for param in function.params[1:2]]
    if given != ["model"] or "model" in function.names_read:
        return None
    made: dict[str, Call] = {}
    for node in walk(function.body):
        value = node.value if isinstance(node, Assign | Return) else None
        if value is None:
            continue
        parts = list(walk_expr(value))
        calls = [n for n in parts if isinstance(n, Call) and dotted(n.func) == "self.model"]
        calls += [made[n.id] for n in parts if isinstance(n, Name) and n.id in made]
        # What a reference gives, without a graph, is no loss.
        trained = [c for c in calls if not any(is_silent(outer) for outer in program.above(c))]
        if isinstance(node, Return) and trained:
            return trained[0]
        if isinstance(node, Assign) and trained:
            made.update((dotted(target), trained[0]) for target in node.targets)
    return None


def is_silent(outer: Node) -> bool:
    """True for a context in which nothing keeps a graph."""
    items = [item for item, _ in outer.items] if isinstance(outer, With) else []
    names = (dotted(item.func if isinstance(item, Call) else item) for item in items)
    return any(name.endswith(("no_grad", "inference_mode")) for name in names)


def through_wrapper(program: Program, window: Window, forward: Node) -> Iterator[Fix]:
    """Calls the wrapper: what `.module` is asked of, or what wraps or gives the alias that is called."""
    if not isinstance(forward, Call):
        return
    if isinstance(forward.func, Attr) and forward.func.name == "module":
        wrappers = [program.code(forward.func.base)]
    else:
        wrappers = list(dict.fromkeys(wrappers_of(program, dotted(forward.func))))
    for wrapper in wrappers:
        call = Replace(forward.func, wrapper)
        yield unsafe(f"Call `{wrapper}`", call)
        for verbs in under_no_sync(program, window, wrapper):
            yield unsafe(f"Call `{wrapper}`, and reduce at the boundary only", call, *verbs)


def wrappers_of(program: Program, alias: str) -> Iterator[str]:
    """The names of what is built from an alias, or of what the alias is the module of."""
    for node in program.of(Assign):
        match node:
            case Assign(targets=[target], value=Call(func=func, args=[model, *_])):
                if dotted(model.value) == alias and "Parallel" in dotted(func):
                    yield program.code(target)
            case Assign(targets=[target], value=Attr(base=base, name="module")):
                if dotted(target) == alias:
                    yield program.code(base)
            case _:
                pass
