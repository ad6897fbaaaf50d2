"""What a fake network gives, as the loop takes it: logits, a loss, several losses by their names."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false, reportIncompatibleVariableOverride=false
# torch's own annotations are partial.

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from accumlint.confirming.harness.fakes.batches import OPERATORS, Batch, Plain, operator, plain
from accumlint.confirming.harness.rewriting.unpacking import names_of

# What is counted from a network's predictions has no graph.
_FIGURE = re.compile(
    r"(^|_)acc(uracy)?\d*(_|$)|correct|metric|perplex|(^|_)ppl|precision|recall|^num_"
)


# Names of what is the loss where a network gives several.
_WHOLE = {"loss", "losses", "total_loss", "loss_total"}


class Losses(dict[str, torch.Tensor], Plain):
    """What goes by the name of several losses: one by its name, or a tensor of them."""

    def plain_(self) -> torch.Tensor:
        return next(iter(self.values()))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(torch.Tensor, name):
            raise AttributeError(name)
        return getattr(self.plain_(), name)


class Output(Plain):
    """What the fake model gives: logits, a loss, a tuple or a mapping, as the loop takes it."""

    def __init__(
        self, logits: torch.Tensor, loss: Callable[[], torch.Tensor], has_loss: bool
    ) -> None:
        self._logits = logits
        self._make = loss
        self.has_loss = has_loss
        # The name of what has given it.
        self.network = ""
        self._loss: torch.Tensor | None = None
        # Losses by their names: of several, each is one of its own.
        self._each: dict[str, torch.Tensor] = {}
        # Whether they are to tell classes from each other.
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
    def nothing(self) -> torch.Tensor:
        """An auxiliary loss, which added to the loss changes nothing."""
        return torch.zeros((), dtype=self.logits.dtype, device=self.logits.device)

    def named(self, name: str) -> Any:
        """What a name makes of it."""
        low = name.rpartition(".")[2].lower()
        if "aux" in low:
            return self.nothing
        if re.search(r"loss(es)?_?(dict|map)$|^losses$|loss_dict", low):
            return Losses({"loss": self.loss})
        if re.search(r"loss(es)?_(metrics|info|outputs?)$", low):
            # A group of losses, of which one is taken by its name.
            return self
        if re.search(r"loss|^nll|^elbo|^objective", low):
            return self._loss_of(low)
        return self

    def keyed(self, name: str, keys: Iterable[str]) -> Any:
        """What a name makes of it where the source takes parts of that by these keys: of losses, one for each."""
        if not re.search(r"loss", name.lower()):
            return self.named(name)
        return Losses({key: self._loss_of(key.lower()) for key in keys})

    def chances(self, given: Iterable[Any]) -> torch.Tensor:
        """The logarithm of the chance of each thing that it was given, or of each target."""
        known = [t for t in tensors([*given]) if not t.is_floating_point()]
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
                made.append(self.nothing)
            elif re.fullmatch(r"(model_)?(out|outputs?|results?|res)", low):
                # Of which a part is asked for.
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
            # A row of them has no target of its own: they are those of several heads.
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
        """A loss, a figure that is only looked at, or logits."""
        if "loss" in name.lower():
            return self.named(name)
        return self.logits.detach() if _FIGURE.search(name.lower()) else self.logits

    def plain_(self) -> torch.Tensor:
        return self.logits


def _operator(name: str) -> Callable[..., Any]:
    def operate(self: Output, *others: Any) -> Any:
        if "truediv" in name and (self.has_loss or isinstance(others[0], int)):
            # What is divided by a count is a loss, and so is what a model gives for labels.
            return getattr(self.loss, name)(*plain(others))
        other = plain(others[0]) if others else None
        if isinstance(other, torch.Tensor) and other.is_floating_point():
            if "sub" in name and other.shape == self.logits.shape[:-1]:
                # What is compared with a number for each target is one.
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
