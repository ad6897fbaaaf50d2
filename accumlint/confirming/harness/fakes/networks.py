"""Tiny networks that accept any input and return what networks return, and the criterion for them."""
# pyright: reportPrivateUsage=false, reportIncompatibleVariableOverride=false

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from accumlint.confirming.harness.fakes.batches import Batch, Data
from accumlint.confirming.harness.fakes.name_words import TARGET
from accumlint.confirming.harness.fakes.outputs import Output, tensors
from accumlint.confirming.harness.fakes.steps_number import passes_steps
from accumlint.confirming.harness.fakes.stub import UNKNOWN
from accumlint.confirming.harness.fakes.usual_settings import CLASSES, VOCABULARY, WIDTH, setting
from accumlint.confirming.harness.source_files import is_library

# A model has at most this many wrappers.
_MOST_WRAPPERS = 100


def seed_with(number: int) -> None:
    """Seeds the default generators; `torch.manual_seed` records a traceback for every kind of device."""
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)


class PermissiveModule(nn.Module):
    """A module that has every attribute for user code, and only real ones for libraries, which probe modules."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or is_library(sys._getframe(1)):
                raise
        return self.missing_attribute(name)

    def missing_attribute(self, name: str) -> Any:
        """A value for an undefined attribute; subclasses override it."""
        raise AttributeError(name)


class Wrapper(nn.Module):
    """A module around another that forwards undefined attributes to it."""

    def __init__(self, module: nn.Module, *_: Any, **__: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


class Model(PermissiveModule):
    """A network of about a hundred parameters that accepts any input and returns a flexible output."""

    def __init__(self, data: Data, seed: int) -> None:
        super().__init__()
        self.data_ = [data]
        self.unwraps_ = [0, 0]
        # Its name in the source, and whether it was built with the accumulation steps.
        self.name_ = ""
        self.window_aware_ = False
        with torch.random.fork_rng(devices=[]):
            seed_with(seed)
            if data.kind == "tokens":
                self.embedding = nn.Embedding(VOCABULARY, WIDTH)
                self.head = nn.Linear(WIDTH, VOCABULARY)
            else:
                out = CLASSES if data.kind == "rows" else data.width
                self.embedding = nn.Linear(data.width, WIDTH)
                self.head = nn.Linear(WIDTH, out)
        super().to(device=data.device, dtype=data.dtype)

    def forward(self, *args: Any, **kwargs: Any) -> Output:
        data = self.data_[0]
        data.thaw(self)
        window_aware = self.window_aware_ or passes_steps(args, kwargs)
        arguments = list(tensors([*args, *(v for k, v in kwargs.items() if "mask" not in k)]))
        source = self._source(arguments)
        data.unfed = data.unfed or ("" if arguments else self.name_ or "model")
        inputs = data.now().inputs if source is None else source
        data.cut(inputs)
        if not inputs.is_floating_point():
            inputs = inputs.clamp(0, VOCABULARY - 1)
        if data.kind == "tokens" and inputs.is_floating_point():
            hidden = torch.tanh(inputs @ self.embedding.weight)
        else:
            hidden = torch.tanh(self.embedding(inputs))
        logits = self.head(hidden)
        if data.poisoned and data.current == data.poisoned and torch.is_grad_enabled():
            data.struck = True
            if data.exhausts:
                # Only once, so that a retry succeeds.
                data.poisoned = 0
                raise torch.cuda.OutOfMemoryError("CUDA out of memory, says accumlint")
            logits = logits * float("nan")
        named = (v for k, v in kwargs.items() if TARGET.search(k) and isinstance(v, torch.Tensor))
        labels = next(named, None)
        if labels is None and len(arguments) > 1:
            others = [t for t in arguments if t is not source and t is not data.now().mask]
            labels = next((t for t in others if _fits(t, logits, data.kind)), None)
        if data.outputs is not None and logits.requires_grad:
            data.outputs[id(self)] = logits
        has_loss = labels is not None
        is_given = has_loss and any(value is labels for value in (*args, *kwargs.values()))
        items = kwargs.get("num_items_in_batch")
        targets = data.labels_of(inputs) if labels is None else labels

        def loss() -> torch.Tensor:
            if window_aware:
                data.note_window_aware(self.name_)
            if not is_given:
                data.note_own_loss(self.name_)
            return self._loss(logits, targets, items)

        output = Output(logits, loss, has_loss)
        output.of_classes = data.kind == "rows"
        output.network = self.name_
        data.last = output
        return output

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Does nothing: device and precision are those of the run."""
        return self

    half = bfloat16 = float = double = cuda = cpu = to

    def _unwrapped(self, name: str) -> Model:
        """Itself; unwrapping loops that strip `.module` repeatedly come to an end.

        Raises:
            AttributeError: after many accesses without a new micro-batch.
        """
        fetched, times = self.unwraps_
        now = self.data_[0].fetched
        self.unwraps_[:] = [now, times + 1 if fetched == now else 0]
        if times > _MOST_WRAPPERS:
            raise AttributeError(name)
        return self

    def _source(self, arguments: list[torch.Tensor]) -> torch.Tensor | None:
        """The argument that it computes from, None where none fits."""
        data = self.data_[0]
        tokens = data.kind == "tokens"
        wide = [t for t in arguments if t.shape[-1:] == (VOCABULARY if tokens else data.width,)]
        if tokens:
            whole = [t for t in arguments if not t.is_floating_point() and t.dim() >= 2]
        else:
            whole = [t for t in wide if t.is_floating_point()]
        fitting = [t for t in wide if t.requires_grad] or whole
        if not fitting:
            return None
        # A decoder's output has the length of its last input.
        same = all(t.shape == fitting[0].shape for t in fitting)
        return fitting[0] if same else fitting[-1]

    def _loss(self, logits: torch.Tensor, target: torch.Tensor, items: Any) -> torch.Tensor:
        data = self.data_[0]
        if items is None:
            return Criterion(data)(logits, target)
        flat = logits.flatten(0, -2), target.flatten()
        return F.cross_entropy(*flat, ignore_index=data.ignored, reduction="sum") / items

    def missing_attribute(self, name: str) -> Any:
        """A submodule, a setting, or an attribute of the usual wrappers."""
        if name == "module":
            return self._unwrapped(name)
        if name == "no_sync":
            return nullcontext
        if name in ("device", "dtype"):
            return getattr(self.data_[0], name)
        return _member(self, name)


class Engine(Model):
    """A fake DeepSpeed engine that keeps its contract: divides, steps at the boundary, clears."""

    def __init__(self, data: Data, seed: int, steps: int) -> None:
        super().__init__(data, seed)
        self.steps_ = steps
        self.micro_steps = 0
        self.boundary: bool | None = None
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.05)

    def backward(self, loss: Any, scale_wrt_gas: bool = True, **_: Any) -> Any:
        """Goes backward through the loss, divided by the accumulation steps unless disabled."""
        loss = loss.loss if isinstance(loss, Output) else loss
        (loss / self.steps_ if scale_wrt_gas else loss).backward()
        return loss

    def is_gradient_accumulation_boundary(self) -> bool:
        """True where the next step is real."""
        if self.boundary is not None:
            return self.boundary
        return (self.micro_steps + 1) % self.steps_ == 0

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Sets the boundary explicitly."""
        self.boundary = is_boundary

    def step(self, *_: Any, **__: Any) -> None:
        """Steps and clears at a boundary; counts calls."""
        if self.is_gradient_accumulation_boundary():
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.micro_steps += 1

    def gradient_accumulation_steps(self) -> int:
        """The configured accumulation steps."""
        return self.steps_


def _member(model: Model, name: str) -> Any:
    """An undefined attribute of a fake model: a number where the name is a setting, else a member."""
    found = setting(name.lower())
    return Member(model, name) if found is UNKNOWN else found


_MODULE_METHODS = {
    "parameters", "named_parameters", "state_dict", "train", "eval", "modules", "zero_grad",
}  # fmt: skip
_MADE = re.compile(r"^(?!load_|save_|set_|init_).*(optim|sched|loader|dataset)")
_SET_UP = re.compile(r"checkpoint|freeze|enable|disable|set_|init|resize|save|load|push|tie")


class Member:
    """An undefined attribute of a fake model: a submodule, or a method that leads to a loss."""

    def __init__(self, model: Model, name: str) -> None:
        self._model = model
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _MADE.search(self._name):
            # The name that receives the result decides its kind.
            return self._model.data_[0].unknown(f"model.{self._name}()")
        if _SET_UP.search(self._name):
            return self._model
        network = next((a for a in (*args, *kwargs.values()) if isinstance(a, nn.Module)), None)
        if network is not None and "loss" in self._name:
            # Computes a loss from the network that it receives; the name of the result decides its kind.
            return network(*(a for a in args if a is not network))
        output = self._model(*args, **kwargs)
        return output.named(self._name)

    @property
    def network(self) -> str:
        """The name of the model."""
        return self._model.name_

    def __repr__(self) -> str:
        return f"model.{self._name}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _MODULE_METHODS:
            return getattr(self._model, name)
        return _member(self._model, name)

    def __getitem__(self, key: Any) -> Any:
        # Settings that belong to the model.
        text = f"model.{self._name}.{key}"
        return self._model.data_[0].setting(text) if isinstance(key, str) else self

    def __iter__(self) -> Iterator[Any]:
        # An empty list of layers.
        return iter(())

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __bool__(self) -> bool:
        return False

    def __index__(self) -> int:
        return VOCABULARY if "vocab" in self._name else 1


def _fits(target: torch.Tensor, logits: torch.Tensor, kind: str) -> bool:
    if kind in ("values", "frames"):
        return target.shape == logits.shape
    return not target.is_floating_point() and target.shape == logits.shape[:-1]


class Criterion(PermissiveModule):
    """The usual loss for the kind of data, a mean over the targets."""

    def __init__(self, data: Data, name: str = "criterion") -> None:
        super().__init__()
        self.data_ = [data]
        # Its name in the source, and whether it was built with the accumulation steps.
        self.name_ = name
        self.window_aware_ = False

    def forward(
        self, output: Any = None, target: Any = None, *others: Any, **named: Any
    ) -> torch.Tensor:
        data = self.data_[0]
        if self.window_aware_ or passes_steps((output, target, *others), named):
            data.note_window_aware(self.name_)
        if output is None:
            output = next((v for k, v in named.items() if not TARGET.search(k)), None)
        if target is None:
            target = next((v for k, v in named.items() if TARGET.search(k)), None)
        logits = output.logits if isinstance(output, Output) else output
        if isinstance(target, Batch):
            target = target.use().labels
        if not isinstance(target, torch.Tensor):
            target = data.now().labels
        if data.kind in ("values", "frames"):
            return F.mse_loss(logits, target)
        if logits.dim() == target.dim() + 1 and logits.shape[:-1] == target.shape:
            logits, target = logits.flatten(0, -2), target.flatten()
        return F.cross_entropy(logits, target, ignore_index=data.ignored)

    def missing_attribute(self, name: str) -> Any:
        """A method that computes the loss, or another attribute."""
        return self if "loss" in name else self.data_[0].unknown(f"criterion.{name}")


def regression(network: nn.Module, batch: Batch) -> torch.Tensor:
    """A loss that depends on all parameters of a network, whatever it computes: a mean over the targets."""
    weights = torch.cat([p.flatten() for p in network.parameters()])
    generator = torch.Generator().manual_seed(batch.number)
    features = batch.data_.normal((len(batch), len(weights) + 1), generator)
    features = features.to(weights.device, weights.dtype)
    return F.mse_loss(features[:, 1:] @ weights, features[:, 0])
