"""The calls that the run makes itself: functions with stand-ins for their parameters, objects of the user's classes."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# torch's own annotations are partial.

from __future__ import annotations

import inspect
import re
from typing import Any

from torch import nn

from accumlint.confirming.harness.binding import Binding
from accumlint.confirming.harness.fakes.name_words import DATA
from accumlint.confirming.harness.fakes.role_stubs import literal
from accumlint.confirming.harness.fakes.stub import UNKNOWN, AbsentModule
from accumlint.confirming.harness.fakes.usual_settings import CLASSES, VOCABULARY
from accumlint.reading import names

_CONFIGURATION = re.compile(r"^(\w+_)?(args|config|cfg|hparams|options|opts)$")
# What makes an optimizer where it is given, and is None for those who give another.
_MAKES_OPTIMIZER = re.compile(r"^opt(im(izer)?)?_(class|cls|fn|func|factory|type)$")
_ROUNDS = (
    "batch_idx", "batch_index", "batch_id", "step", "step_id", "i", "idx", "it", "iteration", "n_iter", "iter_num",
    "iter_id", "global_step",
)  # fmt: skip

_PUT_LATER = ("model", "optimizer", "scheduler", "criterion")


class _Parameters(list[Any]):
    """The parameters of the networks; or settings of that name, where one is asked for."""

    def __init__(self, name: str, binding: Binding) -> None:
        super().__init__(q for m in binding.models.values() for q in m.parameters())
        self._name = name
        self._binding = binding

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        text = f"{self._name}.{name}"
        return self._binding.known(text)


def arguments(binding: Binding, function: Any, skip: int = 0) -> tuple[list[Any], dict[str, Any]]:
    """Stand-ins for the parameters of a function, by their names."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    # Models first: an optimizer's stand-in holds their parameters.
    order = sorted(
        parameters, key=lambda p: (binding.roles.get(p.name) or names.role_of(p.name)) != "model"
    )
    values = {
        p.name: _parameter(binding, p, _trainer(function, p.annotation))
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


def instance(binding: Binding, cls: type) -> Any:
    """An object of a class of the user's."""
    made: Any = object.__new__(cls)
    if isinstance(made, nn.Module):
        nn.Module.__init__(made)
    start = cls.__init__
    if start is not object.__init__:
        args, kwargs = arguments(binding, start, 1)
        start(made, *args, **kwargs)
        _put_later(binding, made)
    if isinstance(made, AbsentModule):
        binding.own(made)
    elif isinstance(made, nn.Module) and _is_abstract(made):
        network = binding.model("model")
        binding.tell(
            cls.__name__, "a subclass whose forward is a network of about a hundred parameters"
        )
        made.add_module("stand_in", network)
        made.forward = network.forward
    return made


def _put_later(binding: Binding, made: Any) -> None:
    """Things with roles that are None at first, and that another method puts there."""
    for name, value in list(vars(made).items()):
        text = f"self.{name}"
        role = binding.roles.get(text) or names.role_of(name)
        known = text in binding.roles or role != "model"
        if value is None and known and role in _PUT_LATER:
            found = binding.value(text)
            if found is not None and found is not UNKNOWN:
                setattr(made, name, found)


def instance_of_any(binding: Binding, cls: type) -> Any:
    """As `instance`; what its `__init__`, or another class, would have given it is told by its name."""
    binding.complete(cls)
    return instance(binding, cls)


def _trainer(function: Any, annotation: object) -> type | None:
    """The class of the user's that a parameter is said to be of, where its methods train; a network is none."""
    if annotation is inspect.Parameter.empty:
        return None
    space = getattr(function, "__globals__", {})
    words = re.findall(r"\w+", annotation) if isinstance(annotation, str) else []
    for cls in (annotation, *map(space.get, words)):
        if isinstance(cls, type) and cls.__module__ == space.get("__name__"):
            codes = (getattr(member, "__code__", None) for member in vars(cls).values())
            called = {name for code in codes if code for name in code.co_names}
            if not issubclass(cls, nn.Module) and called >= {"backward", "step"}:
                return cls
    return None


def _is_abstract(made: nn.Module) -> bool:
    """True for an object of a class that leaves its parameters and its forward to others."""
    code = getattr(type(made).forward, "__code__", None)
    left = code is None or {"NotImplementedError", "_forward_unimplemented"} & {
        *code.co_names, code.co_name,
    }  # fmt: skip
    return bool(left) and next(made.parameters(), None) is None


def _parameter(binding: Binding, p: inspect.Parameter, cls: type | None) -> Any:
    if p.name in binding.given:
        return binding.take(p.name)
    if cls is not None:
        binding.tell(p.name, f"an object of `{cls.__name__}`")
        return instance_of_any(binding, cls)
    if p.name in binding.choices:
        choice = binding.choices[p.name]
        return choice == "true" if choice in ("true", "false") else literal(choice)
    if binding.choices.get(f"{p.name} is None") == "true":
        return None
    found = binding.value(p.name)
    if found is not UNKNOWN:
        return found
    if p.default is False and binding.asks_for_scaler(p.name):
        return True
    if p.default is None and (_CONFIGURATION.search(p.name) or _MAKES_OPTIMIZER.search(p.name)):
        return binding.stub(p.name)
    if p.default is not p.empty and not (
        p.default is None and binding.choices.get(f"{p.name} is None") == "false"
    ):
        return UNKNOWN
    if re.search(r"(class|label)_weights?$", p.name):
        return [1.0] * (VOCABULARY if binding.data.kind == "tokens" else CLASSES)
    if re.search(r"^params$|parameters$", p.name):
        if not binding.models:
            binding.model("model")
        return _Parameters(p.name, binding)
    return binding.stub(p.name)


def microbatch_arguments(
    binding: Binding, function: Any, skip: int, place: int
) -> tuple[list[Any], dict[str, Any]]:
    """As `arguments`, with fresh data for what reads like data and its `place` for what reads like a count."""
    args, kwargs = arguments(binding, function, skip)
    batch = binding.data.fetch().use()
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    for p in parameters:
        low = p.name.lower()
        if isinstance(p.default, bool) and names.is_steps(p.name):
            # Whether this one is added to others.
            kwargs[p.name] = batch.number % binding.steps_ != 0
        elif low == "engine" and {"state", "iteration"} <= binding.source.read:
            # Ignite's, which counts and does nothing to a gradient.
            kwargs[p.name] = binding.stub(p.name)
        elif low in _ROUNDS:
            kwargs[p.name] = place
        elif "batch" in low or low in ("data", "inputs", "samples", "sample"):
            kwargs[p.name] = batch
        elif DATA.search(low) and not binding.roles.get(p.name) and not names.role_of(p.name):
            kwargs[p.name] = batch.tensor(p.name)
    return args, kwargs
