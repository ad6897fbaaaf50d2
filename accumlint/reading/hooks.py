"""Methods that a framework's trainer calls for every micro-batch: its contracts as data, and the methods of a file.

Around such a method there is no loop to read: the trainer goes backward, steps and clears. What it does is a row here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

from accumlint.common.frozen import frozen
from accumlint.files.import_index import ACCUMULATING
from accumlint.reading import ir as p
from accumlint.reading.frameworks import TRAINER_SWITCHES
from accumlint.reading.modules import Module, anything
from accumlint.reading.neighbours import accumulating
from accumlint.reading.program import Program, Source
from accumlint.reading.project import Project
from accumlint.reading.trainer_methods import (
    goes_backward,
    takes_the_count,
    undivided_backwards,
    uses_the_count,
)


class Division(str, Enum):
    """When a trainer divides the loss by the accumulation steps: always, unless the loss counts the window, never.

    Earlier releases of trl divide what `GRPOTrainer.compute_loss` returns, later ones leave it to that method.
    """

    ALWAYS = "always"
    UNLESS_ITSELF = "unless the method does"
    UNLESS_COUNTED = "unless counted"
    NEVER = "never"


@frozen
class Hook:
    """What a trainer does around a method of its user's class.

    The method is that of subclasses of `bases` out of `packages`. `goes_backward`: the trainer does, with what the
    method returns; otherwise the method does it. `steps` is the option that holds the accumulation steps, which is 1
    unless it is set; `settable` tells whether every program can be told it where it is started. `clips`: the trainer
    clips unless it is told not to. `switch` is the attribute of a class that takes the loop out of the trainer's hands.
    `source` is the file in which this was read, and `written` is what stands there (`benchmarks/hooks.py` looks).
    """

    framework: str
    packages: tuple[str, ...]
    bases: frozenset[str]
    method: str
    goes_backward: bool
    division: Division
    steps: str
    settable: bool
    clips: bool
    switch: str
    version: str
    source: str
    written: tuple[str, ...]


_TRAINERS = frozenset({"Trainer", "Seq2SeqTrainer"})
_WITH_MODEL_LOSS = frozenset({"SFTTrainer"})
# `loss_is_scaled_for_ga` and, before that, `model_accepts_loss_kwargs` are False in them.
_WITH_OWN_LOSS = frozenset(
    {"DPOTrainer", "KTOTrainer", "RewardTrainer", "RLOOTrainer", "ORPOTrainer", "CPOTrainer"}
)
_STEPS = "gradient_accumulation_steps"
HOOKS = (
    Hook(
        "lightning", ("lightning", "pytorch_lightning"), frozenset({"LightningModule"}), "training_step",
        True, Division.ALWAYS, "accumulate_grad_batches", False, False, "automatic_optimization", "2.6",
        "lightning/pytorch/loops/optimization/automatic.py",
        ("closure_loss / normalize", "trainer.accumulate_grad_batches"),
    ),
    Hook(
        "transformers", ("transformers",), _TRAINERS, "compute_loss",
        True, Division.UNLESS_COUNTED, _STEPS, True, True, "", "5.24", "transformers/trainer.py",
        (
            "loss / self.current_gradient_accumulation_steps",
            "self.model_accepts_loss_kwargs and num_items_in_batch is not None",
        ),
    ),
    Hook(
        "transformers", ("transformers",), _TRAINERS, "training_step",
        False, Division.NEVER, _STEPS, True, True, "", "5.24", "transformers/trainer.py",
        ("self.training_step(model, inputs, num_items_in_batch)", 'grad_acc_kwargs["num_steps"] = 1'),
    ),
    Hook(
        "trl", ("trl",), _WITH_OWN_LOSS, "compute_loss",
        True, Division.ALWAYS, _STEPS, True, True, "", "1.16", "trl/trainer/dpo_trainer.py",
        ("loss_is_scaled_for_ga = False",),
    ),
    Hook(
        "trl", ("trl",), _WITH_MODEL_LOSS, "compute_loss",
        True, Division.UNLESS_COUNTED, _STEPS, True, True, "", "1.16", "trl/trainer/base_trainer.py",
        ("class _BaseTrainer(Trainer)", "loss_is_scaled_for_ga = None"),
    ),
    Hook(
        "trl", ("trl",), frozenset({"GRPOTrainer"}), "compute_loss",
        True, Division.UNLESS_ITSELF, _STEPS, True, True, "", "1.16", "trl/trainer/grpo_trainer.py",
        ("loss_is_scaled_for_ga = True", "normalizer = self.current_gradient_accumulation_steps"),
    ),
    Hook(
        "trl", ("trl",), _WITH_OWN_LOSS | _WITH_MODEL_LOSS | {"GRPOTrainer"}, "training_step",
        False, Division.NEVER, _STEPS, True, True, "", "1.16", "trl/trainer/base_trainer.py",
        ("class _BaseTrainer(Trainer)",),
    ),
)  # fmt: skip
# What is given the settings of a trainer.
_OPTIONS_OF_LIGHTNING = re.compile("^Trainer$")
_OPTIONS = re.compile("TrainingArguments$|^(DPO|KTO|Reward|RLOO|ORPO|CPO|SFT|GRPO)Config$")
METHODS = frozenset(hook.method for hook in HOOKS)
# Set to anything, it tells the Trainer of transformers that the loss counts the window.
COUNTING = "compute_loss_func"
_ACCUMULATING = re.compile(ACCUMULATING)
# What a trainer calls with other things than one micro-batch, or for several optimizers in turn.
_OTHERWISE = frozenset({"dataloader_iter", "optimizer_idx"})


@frozen
class Driven:
    """A method of a file that a trainer calls.

    `divides`: the trainer divides its loss by the accumulation steps. `accumulates`: somebody sets these, or can. `end`
    is the method that Lightning, before version 2, gives what that one returns: it may make the loss out of it.
    """

    function: p.Function
    hook: Hook
    divides: bool
    accumulates: bool
    end: p.Function | None = None


def driven(program: Program, project: Project) -> tuple[Driven, ...]:
    """The methods of a file that some trainer calls for every micro-batch."""
    return tuple(_driven(program, project))


def _driven(program: Program, project: Project) -> Iterator[Driven]:
    for cls in program.classes.values():
        if cls.methods.keys().isdisjoint(METHODS):
            continue
        classes, outside = lineage(cls, program, project)
        for hook in HOOKS:
            if any(is_of(hook, path) for path in outside) and _is_called(hook, classes):
                function = cls.methods[hook.method]
                divides = _divides(hook, function, classes)
                if divides is not None:
                    accumulates = hook.settable or _speaks_of_steps(program, project)
                    accumulates = accumulates and not sets_no_steps(hook, program)
                    end = cls.methods.get("training_step_end") if hook.switch else None
                    yield Driven(function, hook, divides, accumulates, end)


def sets_no_steps(hook: Hook, program: Program) -> bool:
    """True for a script that gives its trainer all settings by name, but no accumulation steps."""
    options = _OPTIONS_OF_LIGHTNING if hook.switch else _OPTIONS
    made = [c for name, calls in program.calls.items() if options.search(name) for c in calls]
    return bool(made) and not (
        program.callers
        or hook.steps in program.words
        or any(c.keyword(hook.steps) is not None or any(a.star for a in c.args) for c in made)
    )


def lineage(
    cls: p.Class, program: Program, project: Project
) -> tuple[tuple[p.Class, ...], tuple[str, ...]]:
    """A class and those of the project that it derives from, and the dotted paths of its bases from outside of it."""
    classes, outside = [cls], list[str]()
    for current in classes:
        for base in current.bases:
            found, path = named(base.partition("[")[0], current.source, program, project)
            outside += path
            classes += [c for c in found if c not in classes]
    return tuple(classes), tuple(outside)


def named(
    name: str, source: Source, program: Program, project: Project
) -> tuple[tuple[p.Class, ...], tuple[str, ...]]:
    """The classes of the project that a name of a file may mean, and its dotted paths where it means none."""
    found = {
        path: _class(path, source, program, project)
        for path in _paths(name, source, program, project)
    }
    return tuple(c for c in found.values() if c is not None), tuple(
        q for q, c in found.items() if c is None
    )


def _paths(name: str, source: Source, program: Program, project: Project) -> list[str]:
    """What a name of a file may stand for: a class of the file by its name, or dotted paths of its imports."""
    top, dot, rest = name.partition(".")
    if source is program.source:
        own = name in program.classes
        imports = program.imports
        stars = [path for bound, path in imports.items() if bound[0] == "*"]
    else:
        module = project.module(source.path)
        own = module is not None and name in module.outline.blocks
        imports = module.outline.imports if module is not None else {}
        stars = list(module.outline.stars) if module is not None else []
    if top in imports:
        return [f"{imports[top]}{dot}{rest}"]
    return [name] if own else [f"{star}{'' if star.endswith('.') else '.'}{name}" for star in stars]


def _class(path: str, source: Source, program: Program, project: Project) -> p.Class | None:
    """The class of the project that a path means in a file."""
    if "." not in path:
        if source is program.source:
            return program.classes.get(path)
        return _part(project.module(source.path), path)
    found = project.find(path, source.path, anything)
    return _part(found.module, found.name) if found is not None and not found.attributes else None


def _part(module: Module | None, name: str) -> p.Class | None:
    if module is None or name not in module.outline.blocks:
        return None
    part = module.part(name)
    return part if isinstance(part, p.Class) else None


def is_of(hook: Hook, path: str) -> bool:
    """True for the path of a class that a contract is about."""
    return path.partition(".")[0] in hook.packages and path.rpartition(".")[2] in hook.bases


def _is_called(hook: Hook, classes: tuple[p.Class, ...]) -> bool:
    """True where the trainer calls a class's own method as the contract says."""
    cls = classes[0]
    method = cls.methods.get(hook.method)
    if method is None or not _OTHERWISE.isdisjoint(param.name for param in method.params):
        return False
    if any(hook.switch in c.attributes for c in classes) or len(method.params) < 2:
        return False
    if not hook.goes_backward:
        return goes_backward(cls, hook.method)
    if any(goes_backward(c, name) for c in classes for name in METHODS if name in c.methods):
        return False
    returned = [n.value for n in p.walk(method.body) if isinstance(n, p.Return)]
    return any(value is not None and not _hands_on(value, hook.method) for value in returned)


def _hands_on(value: p.Expr, method: str) -> bool:
    """True for `super().training_step(...)`: what a base class returns is read there."""
    return isinstance(value, p.Call) and p.dotted(value.func) == f"super().{method}"


def _divides(hook: Hook, function: p.Function, classes: tuple[p.Class, ...]) -> bool | None:
    """Whether the trainer divides by the accumulation steps, None where that is not known."""
    takes = takes_the_count(function)
    if hook.division is Division.NEVER:
        # Until the method was given a count, the Trainer's Accelerator knew the steps and divided.
        return None if undivided_backwards(function, classes[0]) else not takes
    if uses_the_count(function) or any(map(_sets_loss_function, classes)):
        return None
    if hook.division is Division.UNLESS_ITSELF:
        # Either way, all micro-batches weigh the same.
        called = {n.partition("self.")[2] for n in function.calls}
        bodies = (m.body for m in classes[0].methods.values() if m is function or m.name in called)
        named = (n.name for body in bodies for n in p.walk(body) if isinstance(n, p.Attr))
        return None if any(map(_ACCUMULATING.search, named)) else True
    switched = {set_to(switch, classes) for switch in TRAINER_SWITCHES} - {None}
    if switched or takes:
        return True if switched == {False} or hook.division is Division.ALWAYS else None
    return True


def _sets_loss_function(cls: p.Class) -> bool:
    """True where a class gives the Trainer a `compute_loss_func`, which takes the division away from it."""
    calls = (n for n in p.walk(cls.body) if isinstance(n, p.Call))
    return COUNTING in cls.attributes or any(call.keyword(COUNTING) for call in calls)


def set_to(name: str, classes: tuple[p.Class, ...]) -> object:
    """What the classes set an attribute to: a constant, the name itself for anything else, None where they do not."""
    found: set[object] = set()
    for cls in classes:
        always = {*cls.body, *(s for method in cls.methods.values() for s in method.body)}
        for node in p.walk(cls.body):
            match node:
                case p.Assign(targets=targets, value=value) if any(
                    p.dotted(target).rpartition(".")[2] == name for target in targets
                ):
                    sure = isinstance(value, p.Const) and node in always
                    found.add(value.value if isinstance(value, p.Const) and sure else name)
                case _:
                    pass
    return found.pop() if len(found) == 1 else name if found else None


def _speaks_of_steps(program: Program, project: Project) -> bool:
    """True where a file, or another one of its project, names the accumulation steps."""
    return bool(_ACCUMULATING.search(program.text) or accumulating(program.path, project))
