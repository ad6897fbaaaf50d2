"""A stub for an unknown value: it can be called, indexed, entered and compared, and records when it affects a loss.

A stub knows its source text ("args.trainer.amp"). Attributes with a meaning (accumulation steps, a role, a usual
setting) are resolved by the shared `Answers`; all others are stubs.
"""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import distributed

from accumlint.confirming.harness.fakes.steps_number import passes_steps
from accumlint.confirming.harness.parameters import parameters_of
from accumlint.confirming.harness.rewriting.unpacking import names_of
from accumlint.reading import names
from accumlint.reading.frameworks import WRAPPERS, WRAPPING_ITERABLES


@dataclass
class Answers:
    """Callbacks of stubs: values for known names, choices for flags, and records of how stubs are used."""

    value: Callable[[str], Any]
    choice: Callable[[str], bool]
    touched: Callable[[str, bool], None]
    note_fake: Callable[[str, str], None]
    backward: Callable[[str], None]
    trained: Callable[[str], Any]
    note_opaque_call: Callable[[str], None]
    note_model_receiver: Callable[[str], None]
    items: Callable[[str], Iterator[Any]]
    note_window_aware: Callable[[str], None]

    def known(self, text: str) -> Any:
        """The value of a name, or a stub."""
        found = self.value(text)
        return Stub(text, self) if found is UNKNOWN else found


UNKNOWN = object()
_LOSSES = re.compile(r"loss|^returned$")
_CHANCES = re.compile(r"log_?p(rob)?s?($|_)|logps?($|_)")
_BOOSTER = re.compile(r"(^|[._])[bB]ooster(\(\))?$")
# The return values of Booster.boost, in order.
_BOOSTED = ("model", "optimizer", "criterion", "dataloader", "lr_scheduler")
# Functions of Apex that are emulated.
_APEX = {"initialize", "master_params", "scale_loss"}
_STEPS = re.compile(
    r"^((train|training|forward)_)?step$|^(compute|get|calc|calculate|forward)_\w*loss(es)?$"
)
# Iterables of micro-batches.
_DATA = re.compile(r"load|batches|iter(ator|able|ate)?(_|$)|_ds_data$")
# Methods of datasets that return datasets.
_TRANSFORMS = {"filter", "map", "flat_map", "shuffle", "sort", "batch_map"}
# Code that receives one of these may step, scale or clear.
_STEPPING = (torch.optim.Optimizer, torch.amp.GradScaler)
# Terms added to a loss that are usually absent.
_PENALTY = re.compile(r"regulari[sz]|(^|_)aux(iliary)?_|balanc|commit")
# The suffix of a stub that an unknown iterable yields.
ITEM = "[…]"


# Types with a long repr.
_LARGE = (torch.Tensor, torch.nn.Module, list, dict)


def _text(value: object) -> str:
    if isinstance(value, Stub):
        return value._text
    return type(value).__name__ if isinstance(value, _LARGE) else repr(value)[:30]


class Stub:
    """An unknown value with its source `text`; all stubs of a run share `answers`."""

    _text: str
    _answers: Answers
    _made: dict[str, Any]
    _counted: bool
    # Whether it was computed from data, or received the accumulation steps.
    _from_data: bool
    _window_aware: bool

    def __init__(self, text: str, answers: Answers) -> None:
        # Bypasses `__setattr__`, which records attributes of the script.
        vars(self).update(
            _text=text,
            _answers=answers,
            _made={},
            _counted=False,
            _from_data=False,
            _window_aware=False,
        )

    def _derived(self, text: str) -> Any:
        if text not in self._made:
            self._made[text] = self._answers.known(text)
        return self._made[text]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self._derived(f"{self._text}.{name}")

    def __setattr__(self, name: str, value: object) -> None:
        self._made[f"{self._text}.{name}"] = value

    def __getitem__(self, key: object) -> Any:
        if isinstance(key, str):
            return self._derived(f"{self._text}.{key}")
        place = _text(key) if isinstance(key, int | Stub) else "..."
        return self._derived(f"{self._text}[{place}]")

    def __setitem__(self, key: object, value: object) -> None:
        if isinstance(key, str):
            self._made[f"{self._text}.{key}"] = value

    def __delitem__(self, key: object) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        source, _, method = self._text.rpartition(".")
        if args and method in WRAPPING_ITERABLES and isinstance(args[0], Iterable):
            return args[0]
        if method == "get" and source and args and isinstance(args[0], str):
            return self._derived(f"{source}.{args[0]}")
        if method in _TRANSFORMS and source and args:
            return self._derived(source)
        # An unknown decorator returns its argument.
        if len(args) == 1 and not kwargs and isinstance(args[0], type | FunctionType):
            return args[0]
        model = next((a for a in args if isinstance(a, torch.nn.Module)), None)
        arguments = (*args, *kwargs.values())
        if not (method in _APEX or _BOOSTER.search(source)):
            if any(isinstance(a, _STEPPING) for a in arguments):
                self._answers.note_opaque_call(self._text)
        if (found := self._by_library(model, args, kwargs)) is not UNKNOWN:
            return found
        window_aware = self._window_aware or passes_steps(args, kwargs)
        if window_aware and args and (_LOSSES.search(method) or _STEPS.search(method)):
            self._answers.note_window_aware(self._text)
        if (found := self._by_model(model, args, kwargs)) is not UNKNOWN:
            return found
        if method == "backward":
            if args:
                self._answers.note_opaque_call(self._text)
            # The root of this backward is not the user's loss.
            self._answers.backward(source or method)
        made = self._derived(f"{self._text}()")
        if isinstance(made, Stub):
            vars(made).update(_from_data=any(map(_is_data, arguments)), _window_aware=window_aware)
        return made

    def _by_library(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a known function of an absent library; `UNKNOWN` for others."""
        answers = self._answers
        source, _, method = self._text.rpartition(".")
        first = args[0] if args else None
        if method == "scale_loss" and args:
            # Apex yields the scaled loss.
            return nullcontext(first)
        if method == "master_params" and args:
            return parameters_of(first)
        if model is not None and WRAPPERS.get(method) != "ddp":
            answers.note_model_receiver(self._text)
        elif model is not None and distributed.is_initialized():
            # Apex's DDP and similar wrappers.
            answers.note_fake(self._text, "torch's own DistributedDataParallel")
            return torch.nn.parallel.DistributedDataParallel(model)
        if method == "initialize":
            if "deepspeed" in source and {"optimizer", "model_parameters"} & {*kwargs}:
                engine = answers.value("model_engine")
                schedule = kwargs.get("lr_scheduler") or answers.value("lr_scheduler")
                return engine, engine.optimizer, kwargs.get("training_data"), schedule
            if model is not None:
                return first if len(args) == 1 else args[:2]
        if args and names.is_rescaling(method):
            answers.note_fake(self._text, "gradients multiplied by the factor that it is given")
            return _rescaled(*args)
        if "zero_grad" in method and (parameters := parameters_of(first)):
            # Without it, a loop that clears by a helper would seem never to clear.
            answers.note_fake(self._text, "gradients set to None")
            for p in parameters:
                p.grad = None
            return None
        if not _BOOSTER.search(source):
            return UNKNOWN
        # Colossal-AI's Booster returns its arguments.
        if method == "boost":
            answers.note_fake(source, "what it promises about the gradient")
            return (*args, *(kwargs.get(name) for name in _BOOSTED[len(args) :]))
        loss: Any = next(iter((*args, *kwargs.values())), None)
        if method == "backward" and hasattr(loss, "backward") and not isinstance(loss, Stub):
            answers.note_fake(source, "what it promises about the gradient")
            return loss.backward()
        return UNKNOWN

    def _by_model(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A loss computed from a model that is passed or held; `UNKNOWN` for anything else."""
        answers = self._answers
        source, _, method = self._text.rpartition(".")
        if model is not None and _CHANCES.search(method):
            answers.note_fake(self._text, "the probabilities that the fake model returns")
            return model(*args[1:]).chances(args[1:])
        if model is not None and _LOSSES.search(method):
            # A library that computes a loss from a model returns the model's own loss.
            answers.note_fake(self._text, "the fake model's own loss")
            return model(*args[1:])
        is_step = _STEPS.search(method) and args and source
        if not is_step or (found := answers.trained(source)) is None:
            return UNKNOWN
        # A step of an object on a micro-batch returns the loss of its model.
        answers.note_fake(self._text, "the loss of the model that it holds")
        return found(*args, **kwargs)

    def __mro_entries__(self, _: tuple[object, ...]) -> tuple[type, ...]:
        answers, text = self._answers, self._text
        return (type("Absent", (Absent,), {"_answers": answers, "_text": text, "absent": text}),)

    def __instancecheck__(self, _: object) -> bool:
        """False: no real object has an absent class."""
        return False

    __subclasscheck__ = __instancecheck__

    def __iter__(self) -> Iterator[Any]:
        last = self._text.removesuffix("()").rpartition(".")[2].lower()
        if _DATA.search(last):
            return self._answers.items(self._text)
        if targets := names_of(sys._getframe(1)):
            return iter([self[place] for place in range(len(targets))])
        # Enough for any window, and finite for `list`.
        return iter([self._derived(f"{self._text}{ITEM}") for _ in range(64)])

    def __next__(self) -> Any:
        return self._derived(f"{self._text}{ITEM}")

    def keys(self) -> list[str]:
        """Empty, so that `**stub` passes nothing."""
        return []

    def __len__(self) -> int:
        # An epoch of windows of four, if each micro-batch takes two.
        return 16

    def __contains__(self, item: object) -> bool:
        return self._answers.choice(f"{_text(item)} in {self._text}")

    def __bool__(self) -> bool:
        return self._answers.choice(self._text)

    def __enter__(self) -> Stub:
        if "sync" in self._text.lower():
            self._answers.note_opaque_call(self._text)
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __index__(self) -> int:
        # A stub that has been used as an iteration count stays that number.
        vars(self)["_counted"] = True
        return 1

    def __int__(self) -> int:
        return 1

    def __float__(self) -> float:
        return 1.0

    def __array__(self, *_: Any, **__: Any) -> Any:
        """A number for numpy, which would otherwise recurse into items endlessly."""
        import numpy

        return numpy.float64(1.0)

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__

    def __format__(self, _: str) -> str:
        return self._text

    def __fspath__(self) -> str:
        return "stub"

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> Any:
        return self is other or self._answers.choice(f"{self._text} == {_text(other)}")

    def __ne__(self, other: object) -> Any:
        return not self == other

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        arguments = [*args, *(kwargs or {}).values()]
        stubs = [a for a in arguments if isinstance(a, Stub)]
        tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
        if not stubs:
            return NotImplemented
        if any(t.requires_grad for t in tensors) and not stubs[0]._adds(func.__name__):
            stubs[0]._answers.touched(stubs[0]._text, False)
        return tensors[0] if tensors else stubs[0]

    def _adds(self, operation: str) -> bool:
        """Whether this is an auxiliary term that is added to the loss; absent terms are 0."""
        last = self._text.removesuffix("()").rpartition(".")[2].lower()
        if "add" not in operation or not _PENALTY.search(last):
            return False
        self._answers.note_fake(self._text, "no such term beside the loss")
        return True

    def _operated(self, other: object, operation: str = "") -> Any:
        if isinstance(other, torch.Tensor):
            if other.requires_grad and not self._adds(operation):
                multiplies = operation in ("mul", "rmul") and "(" not in self._text
                is_factor = multiplies and names.is_configuration(self._text)
                self._answers.touched(self._text, is_factor)
            return other
        if isinstance(other, int | float) and not isinstance(other, bool):
            # A divided loss is a loss, and so is the result of a function that failed.
            return self if _LOSSES.search(self._text.rpartition(".")[2].lower()) else other
        return self

    def __sub__(self, other: object) -> Any:
        if self._counted and type(other) is int:
            return int(self) - other
        return self._operated(other)

    def __add__(self, other: object) -> Any:
        if self._counted and type(other) is int:
            return int(self) + other
        return self._operated(other, "add")

    __radd__ = __add__


for _name in (
    "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod",
    "pow", "rpow", "matmul", "rmatmul", "and", "rand", "or", "ror", "xor", "rxor", "lshift", "rlshift", "rshift",
    "rrshift", "iadd", "isub", "imul", "itruediv", "ilshift",
):  # fmt: skip
    setattr(Stub, f"__{_name}__", lambda self, other, name=_name: self._operated(other, name))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(Stub, f"__{_name}__", lambda self: self)


def _comparison(sign: str) -> Callable[[Stub, object], bool]:
    return lambda stub, other: stub._answers.choice(f"{stub._text} {sign} {_text(other)}")


for _name, _sign in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
    setattr(Stub, f"__{_name}__", _comparison(_sign))


def _rescaled(parameters: Any, factor: Any = 1.0, *_: object) -> None:
    """Multiplies the gradients of parameters in place."""
    if isinstance(parameters, torch.nn.Module):
        parameters = parameters.parameters()
    for p in [parameters] if isinstance(parameters, torch.Tensor) else parameters:
        if p.grad is not None:
            p.grad.mul_(factor)


def _is_data(value: object) -> bool:
    """True for data that no network has computed."""
    if isinstance(value, dict):
        return hasattr(value, "plain_")
    return isinstance(value, torch.Tensor) and value.dim() > 1 and not value.requires_grad


class Absent:
    """A base class in place of an absent one; its attributes are stubs."""

    _answers: Answers
    _text: str

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        found = self._answers.known(f"self.{name}")
        object.__setattr__(self, name, found)
        return found


class AbsentModule(torch.nn.Module):
    """A base class in place of an absent module; unknown attributes that `forward` reads are parameters."""

    _answers: Answers
    _text: str

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__()
        cls: Any = type(self)
        for name in cls.forward.__code__.co_names:
            if name.startswith("_") or hasattr(torch.Tensor, name) or hasattr(cls, name):
                continue
            found = self._answers.value(f"self.{name}")
            if isinstance(found, torch.nn.Module):
                self._modules[name] = found
            elif found is UNKNOWN:
                self._parameters[name] = torch.nn.Parameter(torch.tensor(0.5))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_"):
                raise
        return self._answers.known(f"self.{name}")
