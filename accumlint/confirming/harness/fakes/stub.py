"""A value that stands for anything unknown: it can be called, indexed, entered and compared, and says when it mattered.

A stub knows the text that it came from ("args.trainer.amp"). What a name tells (accumulation steps, a role, a setting
that every training run has) is answered by the `Answers` given to it; all else is another stub.
"""
# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

from accumlint.confirming.harness.fakes.steps_number import tells_window
from accumlint.confirming.harness.parameters import parameters_of
from accumlint.confirming.harness.rewriting.unpacking import names_of
from accumlint.reading import names
from accumlint.reading.frameworks import WRAPPERS, WRAPPING_ITERABLES


@dataclass
class Answers:
    """What stubs ask: values for known names, choices for flags, and a place to say that a stub was computed with."""

    value: Callable[[str], Any]
    choice: Callable[[str], bool]
    touched: Callable[[str], None]
    told: Callable[[str, str], None]
    backward: Callable[[str], None]
    trained: Callable[[str], Any]
    handed: Callable[[str], None]
    took: Callable[[str], None]
    items: Callable[[str], Iterator[Any]]
    windowed: Callable[[str], None]

    def known(self, text: str) -> Any:
        """What a name means, or a stub where it says nothing."""
        found = self.value(text)
        return Stub(text, self) if found is UNKNOWN else found


UNKNOWN = object()
_LOSSES = re.compile(r"loss|^returned$")
_CHANCES = re.compile(r"log_?p(rob)?s?($|_)|logps?($|_)")
_BOOSTER = re.compile(r"(^|[._])[bB]ooster(\(\))?$")
# What it gives back, in this order.
_BOOSTED = ("model", "optimizer", "criterion", "dataloader", "lr_scheduler")
# Functions of Apex's that are known here.
_APEX = {"initialize", "master_params", "scale_loss"}
_STEPS = re.compile(
    r"^((train|training|forward)_)?step$|^(compute|get|calc|calculate|forward)_\w*loss(es)?$"
)
# What gives micro-batches when it is gone through.
_DATA = re.compile(r"load|batches|iter(ator|able|ate)?(_|$)|_ds_data$")
# Methods of data that take a function and give other data.
_SIFTING = {"filter", "map", "flat_map", "shuffle", "sort", "batch_map"}
# What gets one of these may step, scale or clear as it likes.
_STEPPING = (torch.optim.Optimizer, torch.amp.GradScaler)
# What may stand beside a loss, and mostly does not.
_PENALTY = re.compile(r"regulari[sz]|(^|_)aux(iliary)?_|balanc|commit")
# How the text of a stub ends that an unknown iterable gave.
ITEM = "[…]"


# What is large takes long to be written out.
_LARGE = (torch.Tensor, torch.nn.Module, list, dict)


def _text(value: object) -> str:
    if isinstance(value, Stub):
        return value._text
    return type(value).__name__ if isinstance(value, _LARGE) else repr(value)[:30]


class Stub:
    """Stands for `text`; `answers` is shared by all stubs of a run."""

    _text: str
    _answers: Answers
    _made: dict[str, Any]
    _counted: bool
    # Whether an unknown function has made it of data, or was given the accumulation steps.
    _of_data: bool
    _told: bool

    def __init__(self, text: str, answers: Answers) -> None:
        # Past what notes the attributes that a script sets.
        vars(self).update(
            _text=text, _answers=answers, _made={}, _counted=False, _of_data=False, _told=False
        )

    def _other(self, text: str) -> Any:
        if text not in self._made:
            self._made[text] = self._answers.known(text)
        return self._made[text]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self._other(f"{self._text}.{name}")

    def __setattr__(self, name: str, value: object) -> None:
        self._made[f"{self._text}.{name}"] = value

    def __getitem__(self, key: object) -> Any:
        if isinstance(key, str):
            return self._other(f"{self._text}.{key}")
        place = _text(key) if isinstance(key, int | Stub) else "..."
        return self._other(f"{self._text}[{place}]")

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
            return self._other(f"{source}.{args[0]}")
        if method in _SIFTING and source and args:
            return self._other(source)
        # A decorator of a library that is not here leaves what it decorates alone.
        if len(args) == 1 and not kwargs and (isinstance(args[0], type) or _is_function(args[0])):
            return args[0]
        model = next((a for a in args if isinstance(a, torch.nn.Module)), None)
        given = (*args, *kwargs.values())
        if not (method in _APEX or _BOOSTER.search(source)):
            if any(isinstance(a, _STEPPING) for a in given):
                self._answers.handed(self._text)
        if (found := self._by_library(model, args, kwargs)) is not UNKNOWN:
            return found
        told = self._told or tells_window(args, kwargs)
        if told and args and (_LOSSES.search(method) or _STEPS.search(method)):
            self._answers.windowed(self._text)
        if (found := self._by_model(model, args, kwargs)) is not UNKNOWN:
            return found
        if method == "backward":
            if args:
                self._answers.handed(self._text)
            # What goes backward is not the user's loss.
            self._answers.backward(source or method)
        made = self._other(f"{self._text}()")
        if isinstance(made, Stub):
            vars(made).update(_of_data=any(map(_is_data, given)), _told=told)
        return made

    def _by_library(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What functions of libraries that are not here give, by what is known of them; `UNKNOWN` for others."""
        answers = self._answers
        source, _, method = self._text.rpartition(".")
        first = args[0] if args else None
        if method == "scale_loss" and args:
            # Apex's, which gives the loss to go backward from.
            return nullcontext(first)
        if method == "master_params" and args:
            return parameters_of(first)
        if model is not None and WRAPPERS.get(method) != "ddp":
            answers.took(self._text)
        elif model is not None and distributed.is_initialized():
            # Apex's and others of its kind.
            answers.told(self._text, "torch's own DistributedDataParallel")
            return torch.nn.parallel.DistributedDataParallel(model)
        if method == "initialize":
            if "deepspeed" in source and {"optimizer", "model_parameters"} & {*kwargs}:
                engine = answers.value("model_engine")
                schedule = kwargs.get("lr_scheduler") or answers.value("lr_scheduler")
                return engine, engine.optimizer, kwargs.get("training_data"), schedule
            if model is not None:
                return first if len(args) == 1 else args[:2]
        if args and names.is_rescaling(method):
            answers.told(self._text, "gradients multiplied by the factor that it is given")
            return _rescaled(*args)
        if "zero_grad" in method and (held := parameters_of(first)):
            # Without it, a loop that clears by a helper would look like one that never does.
            answers.told(self._text, "gradients set to None")
            for p in held:
                p.grad = None
            return None
        if not _BOOSTER.search(source):
            return UNKNOWN
        # Colossal-AI's: what it is given is trained as it is.
        if method == "boost":
            answers.told(source, "what it promises about the gradient")
            return (*args, *(kwargs.get(name) for name in _BOOSTED[len(args) :]))
        loss: Any = next(iter((*args, *kwargs.values())), None)
        if method == "backward" and hasattr(loss, "backward") and not isinstance(loss, Stub):
            answers.told(source, "what it promises about the gradient")
            return loss.backward()
        return UNKNOWN

    def _by_model(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What is computed from the model that is given or held: the model's own loss; `UNKNOWN` for anything else."""
        answers = self._answers
        source, _, method = self._text.rpartition(".")
        if model is not None and _CHANCES.search(method):
            answers.told(self._text, "the probabilities that the fake model returns")
            return model(*args[1:]).chances(args[1:])
        if model is not None and _LOSSES.search(method):
            # What a library computes from the model it is given is the model's own loss.
            answers.told(self._text, "the fake model's own loss")
            return model(*args[1:])
        makes = _STEPS.search(method) and args and source
        if not makes or (found := answers.trained(source)) is None:
            return UNKNOWN
        # What an object makes of a micro-batch is the loss of the model that it holds.
        answers.told(self._text, "the loss of the model that it holds")
        return found(*args, **kwargs)

    def __mro_entries__(self, _: tuple[object, ...]) -> tuple[type, ...]:
        answers, text = self._answers, self._text
        return (type("Absent", (Absent,), {"_answers": answers, "_text": text, "absent": text}),)

    def __instancecheck__(self, _: object) -> bool:
        """Nothing that is here is of a class that is not."""
        return False

    def __iter__(self) -> Iterator[Any]:
        last = self._text.removesuffix("()").rpartition(".")[2].lower()
        if _DATA.search(last):
            return self._answers.items(self._text)
        if taken := names_of(sys._getframe(1)):
            return iter([self[place] for place in range(len(taken))])
        # Enough for any window, and an end for whoever makes a list of it.
        return iter([self._other(f"{self._text}{ITEM}") for _ in range(64)])

    def __next__(self) -> Any:
        return self._other(f"{self._text}{ITEM}")

    def keys(self) -> list[str]:
        """None that anybody knows: `**stub` gives nothing."""
        return []

    def __len__(self) -> int:
        # As many as there are micro-batches in an epoch of windows of four, when each takes two.
        return 16

    def __contains__(self, item: object) -> bool:
        return self._answers.choice(f"{_text(item)} in {self._text}")

    def __bool__(self) -> bool:
        return self._answers.choice(self._text)

    def __enter__(self) -> Stub:
        if "sync" in self._text.lower():
            self._answers.handed(self._text)
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __index__(self) -> int:
        # What has been a number of rounds stays that number.
        vars(self)["_counted"] = True
        return 1

    def __int__(self) -> int:
        return 1

    def __float__(self) -> float:
        return 1.0

    def __array__(self, *_: Any, **__: Any) -> Any:
        """A number, for numpy, which would look for numbers in the items of its items for ever."""
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
        given = [*args, *(kwargs or {}).values()]
        stubs = [a for a in given if isinstance(a, Stub)]
        tensors = [a for a in given if isinstance(a, torch.Tensor)]
        if not stubs:
            return NotImplemented
        if any(t.requires_grad for t in tensors) and not stubs[0]._adds(func.__name__):
            stubs[0]._answers.touched(stubs[0]._text)
        return tensors[0] if tensors else stubs[0]

    def _adds(self, operation: str) -> bool:
        """Whether this is a term beside the loss, and added to it: what is not here has none."""
        last = self._text.removesuffix("()").rpartition(".")[2].lower()
        if "add" not in operation or not _PENALTY.search(last):
            return False
        self._answers.told(self._text, "no such term beside the loss")
        return True

    def _operated(self, other: object, operation: str = "") -> Any:
        if isinstance(other, torch.Tensor):
            if other.requires_grad and not self._adds(operation):
                self._answers.touched(self._text)
            return other
        if isinstance(other, int | float) and not isinstance(other, bool):
            # A loss stays one, whatever divides it; so does what a function that failed would have returned.
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
    setattr(Stub, f"__{_name}__", lambda self, other: self._operated(other))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(Stub, f"__{_name}__", lambda self: self)


def _comparison(sign: str) -> Callable[[Stub, object], bool]:
    return lambda stub, other: stub._answers.choice(f"{stub._text} {sign} {_text(other)}")


for _name, _sign in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
    setattr(Stub, f"__{_name}__", _comparison(_sign))


def _rescaled(parameters: Any, factor: Any = 1.0, *_: object) -> None:
    """Multiplies the gradients of what a helper of a library's is given."""
    if isinstance(parameters, torch.nn.Module):
        parameters = parameters.parameters()
    for p in [parameters] if isinstance(parameters, torch.Tensor) else parameters:
        if p.grad is not None:
            p.grad.mul_(factor)


def _is_data(value: object) -> bool:
    """True for data that no network has given."""
    if isinstance(value, dict):
        return hasattr(value, "plain_")
    return isinstance(value, torch.Tensor) and value.dim() > 1 and not value.requires_grad


def _is_function(value: object) -> bool:
    return type(value).__name__ == "function"


class Absent:
    """The base class of classes whose own base is a stub: what it would have brought is a stub too."""

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
    """The base class of modules whose own base is not here: what their forward reads of it are parameters."""

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
