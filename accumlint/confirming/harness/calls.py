"""Calls that the harness makes: functions with fakes for their parameters, instances of the project's classes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

from torch import nn

from accumlint.confirming.harness.binding import Binding
from accumlint.confirming.harness.fakes.name_words import DATA
from accumlint.confirming.harness.fakes.role_stubs import literal
from accumlint.confirming.harness.fakes.stub import UNKNOWN, AbsentModule
from accumlint.confirming.harness.fakes.usual_settings import CLASSES, VOCABULARY
from accumlint.reading import names

_CONFIGURATION = re.compile(r"^(\w+_)?(args|config|cfg|hparams|options|opts)$")
# A factory of an optimizer, which is None where the optimizer itself is passed.
_MAKES_OPTIMIZER = re.compile(r"^opt(im(izer)?)?_(class|cls|fn|func|factory|type)$")
_ROUNDS = (
    "batch_idx", "batch_index", "batch_id", "step", "step_id", "i", "idx", "it", "iteration", "n_iter", "iter_num",
    "iter_id", "global_step",
)  # fmt: skip

_LATE_ROLES = ("model", "optimizer", "scheduler", "criterion")


def arguments(binding: Binding, function: Any, skip: int = 0) -> tuple[list[Any], dict[str, Any]]:
    """Fakes for the parameters of a function, chosen by name."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    # Models first: a fake optimizer holds their parameters.
    order = sorted(
        parameters, key=lambda p: (binding.roles.get(p.name) or names.role_of(p.name)) != "model"
    )
    values = {
        p.name: _parameter(binding, p)
        for p in order
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    for p in parameters:
        if p.name not in values or values[p.name] is UNKNOWN:
            continue
        if p.kind is p.POSITIONAL_ONLY:
            args.append(values[p.name])
        else:
            kwargs[p.name] = values[p.name]
    return args, kwargs


def epoch_arguments(binding: Binding, parameters: Iterable[str], number: int) -> dict[str, int]:
    """The epoch number under the names by which a function's parameters ask for it; `number` counts calls from zero."""
    from_one = binding.source.from_one
    return {
        name: number + (name in from_one)
        for name in parameters
        if names.is_epoch(name) and name not in binding.provided and name not in binding.choices
    }


def instance(binding: Binding, cls: type) -> Any:
    """An instance of a class of the project."""
    made: Any = object.__new__(cls)
    if isinstance(made, nn.Module):
        nn.Module.__init__(made)
    start = cls.__init__
    if start is not object.__init__:
        args, kwargs = arguments(binding, start, 1)
        start(made, *args, **kwargs)
        _set_late_attributes(binding, made)
    if isinstance(made, AbsentModule):
        binding.register_module(made)
    return made


def _set_late_attributes(binding: Binding, made: Any) -> None:
    """Sets attributes with a role that are None after `__init__`, since another method would set them."""
    for name, value in list(vars(made).items()):
        text = f"self.{name}"
        role = binding.roles.get(text) or names.role_of(name)
        known = text in binding.roles or role != "model"
        if value is None and known and role in _LATE_ROLES:
            found = binding.value(text)
            if found is not None and found is not UNKNOWN:
                setattr(made, name, found)


def _parameter(binding: Binding, p: inspect.Parameter) -> Any:
    if p.name in binding.provided:
        return binding.take(p.name)
    if p.name in binding.choices:
        return literal(binding.choices[p.name])
    if binding.choices.get(f"{p.name} is None") == "true":
        return None
    found = binding.value(p.name)
    if found is not UNKNOWN:
        return found
    if p.default is False and binding.requests_scaler(p.name):
        return True
    if p.default is None and (_CONFIGURATION.search(p.name) or _MAKES_OPTIMIZER.search(p.name)):
        return binding.stub(p.name)
    if p.default is not p.empty and not (
        p.default is None and binding.choices.get(f"{p.name} is None") == "false"
    ):
        return UNKNOWN
    if re.search(r"(class|label)_weights?$", p.name):
        return [1.0] * (VOCABULARY if binding.data.kind == "tokens" else CLASSES)
    return binding.stub(p.name)


def microbatch_arguments(
    binding: Binding, function: Any, place: int
) -> tuple[list[Any], dict[str, Any]]:
    """As `arguments`, with new data for parameters named like data and `place` for those named like a counter."""
    args, kwargs = arguments(binding, function)
    batch = binding.data.fetch().use()
    for p in inspect.signature(function).parameters.values():
        low = p.name.lower()
        if low == "engine" and {"state", "iteration"} <= binding.source.read:
            # Ignite's engine, which only counts.
            kwargs[p.name] = binding.stub(p.name)
        elif low in _ROUNDS:
            kwargs[p.name] = place
        elif "batch" in low or low in ("data", "inputs", "samples", "sample"):
            kwargs[p.name] = batch
        elif DATA.search(low) and not binding.roles.get(p.name) and not names.role_of(p.name):
            kwargs[p.name] = batch.tensor(p.name)
    return args, kwargs
