"""Outputs of fake networks: logits, a loss, or several losses by name, as the loop reads them."""
# pyright: reportPrivateUsage=false, reportIncompatibleVariableOverride=false

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from accumlint.confirming.harness.fakes.batches import OPERATORS, Batch, Plain, operator, plain
from accumlint.confirming.harness.rewriting.unpacking import names_of

# Figures that are computed from predictions have no graph.
_FIGURE = re.compile(
    r"(^|_)acc(uracy)?\d*(_|$)|correct|metric|perplex|(^|_)ppl|precision|recall|^num_"
)


# What an encoder returns in the place of values, as diffusers' does.
_DISTRIBUTION = re.compile(r"(^|_)dist(ribution)?$|posterior")
# Names of the total loss where a network returns several.
_WHOLE = {"loss", "losses", "total_loss", "loss_total"}


class Losses(dict[str, torch.Tensor], Plain):
    """Several losses by name; used as a tensor, the first of them."""

    def plain_(self) -> torch.Tensor:
        return next(iter(self.values()))

    def __missing__(self, _: str) -> torch.Tensor:
        return self.plain_()

    def __getattr__(self, name: str) -> Any:
        if "loss" in name:
            return self[name]
        if name.startswith("_") or not hasattr(torch.Tensor, name):
            raise AttributeError(name)
        return getattr(self.plain_(), name)


def _distribution(mean: torch.Tensor) -> SimpleNamespace:
    """A distribution that has one value."""
    return SimpleNamespace(mean=mean, **dict.fromkeys(("sample", "rsample", "mode"), lambda: mean))


class Output(Plain):
    """The output of a fake model, usable as logits, loss, tuple or mapping."""

    def __init__(
        self, logits: torch.Tensor, loss: Callable[[], torch.Tensor], has_loss: bool
    ) -> None:
        self._logits = logits
        self._make = loss
        self.has_loss = has_loss
        # The name of the network that returned it.
        self.network = ""
        self._loss: torch.Tensor | None = None
        # Losses by name: each of several is a loss of its own.
        self._each: dict[str, torch.Tensor] = {}
        # Whether the labels are classes.
        self.of_classes = False

    @property
    def logits(self) -> torch.Tensor:
        return self._logits

    @property
    def loss(self) -> torch.Tensor:
        if self._loss is None:
            self._loss = self._make()
        return self._loss

    @property
    def zero_loss(self) -> torch.Tensor:
        """An auxiliary loss of 0."""
        return torch.zeros((), dtype=self.logits.dtype, device=self.logits.device)

    def named(self, name: str) -> Any:
        """Its value under a name."""
        low = name.rpartition(".")[2].lower()
        if "aux" in low:
            return self.zero_loss
        if re.search(r"loss(es)?_?(dict|map)$|^losses$|loss_dict", low):
            return Losses({"loss": self.loss})
        if re.search(r"loss(es)?_(metrics|info|outputs?)$", low):
            # A group of losses, from which the source takes one by name.
            return self
        if re.search(r"loss|^nll|^elbo|^objective", low):
            return self._loss_of(low)
        return _distribution(self.logits) if _DISTRIBUTION.search(low) else self

    def keyed(self, name: str, keys: Iterable[str]) -> Any:
        """Its value under a name that the source indexes by these keys: of losses, one for each key."""
        if not re.search(r"loss", name.lower()):
            return self.named(name)
        return Losses({key: self._loss_of(key.lower()) for key in keys})

    def chances(self, arguments: Iterable[Any]) -> torch.Tensor:
        """The log-probability of each token in the arguments, or of each target."""
        known = [t for t in tensors([*arguments]) if not t.is_floating_point()]
        wanted = next((t for t in known if t.shape == self.logits.shape[:-1]), None)
        if wanted is None:
            return self.logits.log_softmax(-1).amax(-1)
        picked = wanted.clamp(0, self.logits.shape[-1] - 1).unsqueeze(-1)
        return self.logits.log_softmax(-1).gather(-1, picked).squeeze(-1)

    def _loss_of(self, name: str) -> torch.Tensor:
        if name not in self._each:
            is_whole = name in _WHOLE or not self._each
            self._each[name] = self.loss if is_whole else self._make()
        return self._each[name]

    def parts(self, names: tuple[Any, ...]) -> tuple[Any, ...]:
        flat = [n if isinstance(n, str) else "" for n in names]
        made: list[Any] = []
        for name in flat:
            low = name.lower()
            if re.search(r"loss|^nll|elbo", low) and "aux" not in low:
                made.append(self.named(low))
            elif re.search(r"weights?$", low):
                made.append(None)
            elif name == "_" or re.search(r"log(s|ger|_?var|_dict)?$|stat|metric|acc|info", low):
                made.append({})
            elif "aux" in low:
                made.append(self.zero_loss)
            elif re.fullmatch(r"(model_)?(out|outputs?|results?|res)", low):
                # The source reads attributes of it.
                made.append(self)
            else:
                made.append(self.logits)
        return tuple(made)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._part(key)
        if isinstance(key, int):
            return self.loss if self.has_loss and key == 0 else self.logits
        return self.logits[key]

    def __iter__(self) -> Iterator[Any]:
        if names := names_of(sys._getframe(1)):
            return iter(self.parts(names))
        if self.has_loss:
            return iter((self.loss, self.logits))
        if self.of_classes and self.logits.dim() == 2:
            # Rows have no target of their own: a loop that iterates expects the outputs of several heads.
            return iter((self.logits, self.logits))
        return iter(self.logits)

    def __len__(self) -> int:
        return len(self.logits)

    def __contains__(self, key: object) -> bool:
        return key in ("loss", "logits")

    def get(self, key: str, default: Any = None) -> Any:
        return self[key]

    def keys(self) -> list[str]:
        return ["loss"]

    def values(self) -> list[torch.Tensor]:
        return [self.loss]

    def items(self) -> list[tuple[str, torch.Tensor]]:
        return [("loss", self.loss)]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if "loss" not in name and hasattr(torch.Tensor, name):
            return getattr(self.logits, name)
        return self._part(name)

    def _part(self, name: str) -> Any:
        """A loss, a figure without a graph, or logits."""
        if "loss" in name.lower() or _DISTRIBUTION.search(name):
            return self.named(name)
        return self.logits.detach() if _FIGURE.search(name.lower()) else self.logits

    def plain_(self) -> torch.Tensor:
        return self.logits


def _operator(name: str) -> Callable[..., Any]:
    def operate(self: Output, *others: Any) -> Any:
        if "truediv" in name and (self.has_loss or isinstance(others[0], int)):
            # A loop divides losses by counts; an output for labels is a loss, too.
            return getattr(self.loss, name)(*plain(others))
        other = plain(others[0]) if others else None
        if isinstance(other, torch.Tensor) and other.is_floating_point():
            if "sub" in name and other.shape == self.logits.shape[:-1]:
                # Compared with one number for each target, it is the log-probabilities.
                return getattr(self.chances(()), name)(other)
        return getattr(self.logits, name)(*plain(others))

    return operate


for _name in OPERATORS:
    setattr(Output, f"__{_name}__", _operator(f"__{_name}__"))
    if _name in ("mul", "rmul", "truediv", "add", "radd"):
        setattr(Losses, f"__{_name}__", operator(f"__{_name}__"))


def tensors(values: list[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, Output):
            yield value.logits
        elif isinstance(value, Batch):
            value.use()
            yield value.inputs
            yield value.labels
        elif isinstance(value, list | tuple):
            yield from tensors(list(value))
        elif type(value) is dict:
            yield from tensors(list(value.values()))
