"""Calls of trainers and engines that take the loss from the model and divide its mean by the accumulation steps."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.reading import ir as p
from accumlint.reading.frameworks import TRAINER_SWITCHES
from accumlint.reading.hooks import (
    COUNTING,
    HOOKS,
    METHODS,
    Division,
    is_of,
    lineage,
    named,
    set_to,
)
from accumlint.reading.pins import newest
from accumlint.reading.program import Program
from accumlint.reading.project import Project

# Since this release the Trainer gives the number of targets in the window to a model whose `forward` takes `**kwargs`,
# and divides by the accumulation steps for others only.
_COUNTING_SINCE = (4, 46)
_HOOKS = [hook for hook in HOOKS if hook.division is Division.UNLESS_COUNTED]
# How a model tells the Trainer, whatever its `forward` takes.
_OF_MODELS = "accepts_loss_kwargs"


def dividing(program: Program, project: Project) -> Iterator[tuple[p.Call, str]]:
    """The calls that make such a trainer or let an engine train, and why the mean of each micro-batch is divided."""
    if any(
        p.dotted(made.func) == "deepspeed.initialize"
        for made in program.calls.get("initialize", ())
    ):
        for call in program.calls.get("train_batch", ()):
            yield call, "DeepSpeed's pipeline averages the losses of the micro-batches"
    for call in program.of(p.Call):
        name = p.dotted(call.func)
        known = "Trainer" in name or name in program.classes
        if not known or call.keyword(COUNTING) is not None:
            continue
        classes, outside = _lineage(name, program, project)
        if not any(is_of(hook, path) for hook in _HOOKS for path in outside):
            continue
        if any(
            not METHODS.isdisjoint(cls.methods) or COUNTING in cls.attributes for cls in classes
        ):
            continue
        switched = {set_to(switch, classes) for switch in TRAINER_SWITCHES} - {None}
        if switched:
            if switched == {False}:
                yield call, f"`{classes[0].name}` says that its loss counts no window"
        elif why := _reason(call, program, project):
            yield call, why


def _reason(call: p.Call, program: Program, project: Project) -> str:
    """Why a trainer divides for its model, "" where it does not, or where that is not known."""
    model = call.keyword("model") or (call.args[0].value if call.args else None)
    for value in program.assigned.get(p.render(model), ()) if model is not None else ():
        made = p.dotted(value.func) if isinstance(value, p.Call) else ""
        classes, _ = _lineage(made.removesuffix(".from_pretrained"), program, project)
        forward = next((c.methods["forward"] for c in classes if "forward" in c.methods), None)
        if set_to(_OF_MODELS, classes) is False:
            return f"`{classes[0].name}` sets `{_OF_MODELS}` to False"
        if forward is not None and not any(param.star == "**" for param in forward.params):
            return f"`{classes[0].name}.forward` takes no `**kwargs`"
    pinned = newest("transformers", program.path, project)
    if pinned is not None and pinned < _COUNTING_SINCE:
        return f"the project pins transformers {pinned[0]}.{pinned[1]}"
    return ""


def _lineage(
    name: str, program: Program, project: Project
) -> tuple[tuple[p.Class, ...], tuple[str, ...]]:
    """The class that a name of a file means, with those of the project above it, and what these come from outside."""
    found, outside = named(name, program.source, program, project)
    return lineage(found[0], program, project) if found else ((), outside)
