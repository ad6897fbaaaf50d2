"""Tiny stand-ins for what a training loop works on: a model, batches, a loader, a criterion."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false, reportIncompatibleVariableOverride=false
# torch's own annotations are partial.

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from accumlint.confirming.child.settings import CLASSES, LENGTH, VOCABULARY, WIDTH, setting
from accumlint.confirming.child.stub import UNKNOWN

_TARGET = re.compile(
    r"label|target|tgt|^tags?$|^gts?$|ground|^ys?$|^y_|^yb|_y$|class(es)?$|answer|truth|^next_|^l$|lbl"
)
_INPUT = re.compile(
    r"input|image|img|pixel|feature|token|source|src|^xs?$|^x_|^xb|_x$|text|audio|wave|data|ids$"
)
_MASK = re.compile(r"mask")
# One of a pair that a loss compares.
_OPPOSITE = re.compile(r"rejected_?|negative_?|loser_?")
_LENGTH = re.compile(r"len|num_|n_tok|count|ntokens")


@dataclass
class Data:
    """What a pass feeds: its kind ("tokens", "rows" or "values"), and for each micro-batch the number of targets.

    `counts(microbatch)` gives this rank's counted targets of a micro-batch (from 1); `ignored` is the label that the
    loss leaves out; `length` micro-batches make an epoch.
    """

    kind: str
    counts: Callable[[int], int]
    length: int
    seed: int
    rank: int
    device: torch.device
    dtype: torch.dtype
    ignored: int = -100
    fetched: int = 0
    current: int = 0
    poisoned: int = 0
    limit: int = 1000
    batches: dict[int, Batch] = field(default_factory=dict)
    models: list[nn.Module] = field(default_factory=list)
    unknown: Callable[[str], Any] = lambda text: None

    def fetch(self) -> Batch:
        """The next micro-batch.

        Raises:
            Enough: when the pass has seen as many as it needs.
        """
        if self.fetched >= self.limit:
            raise Enough
        self.fetched += 1
        batch = Batch(self, self.fetched)
        self.batches[self.fetched] = batch
        return batch

    def begin(self) -> None:
        """A micro-batch that the user's own loader gives.

        Raises:
            Enough: when the pass has seen as many as it needs.
        """
        if self.fetched >= self.limit:
            raise Enough
        self.fetched += 1
        self.current = self.fetched

    def thaw(self) -> None:
        """Where every parameter has been frozen, as all but a few by their names are, stand-ins train whole."""
        parameters = [p for model in self.models for p in model.parameters()]
        if torch.is_grad_enabled() and not any(p.requires_grad for p in parameters):
            for p in parameters:
                p.requires_grad_(True)

    def now(self) -> Batch:
        """The micro-batch being worked on."""
        if self.current not in self.batches:
            self.current = self.fetch().number
        return self.batches[self.current]


class Enough(BaseException):
    """Ends a pass from within: everything that is to be measured has been seen."""


class Batch(dict[Any, Any]):
    """One micro-batch, in whatever shape the loop takes it apart."""

    def __init__(self, data: Data, number: int) -> None:
        self.data_ = data
        self.number = number
        generator = torch.Generator().manual_seed(data.seed * 7919 + data.rank * 104729 + number)
        count = data.counts(number)
        if data.kind == "tokens":
            rows = 2
            inputs = torch.randint(1, VOCABULARY, (rows, LENGTH), generator=generator)
            labels = torch.randint(1, VOCABULARY, (rows, LENGTH), generator=generator)
            # The targets that count stand at the end of the rows, so that a shift by one loses none of them.
            order = [(r, c) for c in range(LENGTH - 1, -1, -1) for r in range(rows)]
            ignored = torch.zeros(rows, LENGTH, dtype=torch.bool)
            for r, c in order[min(count, rows * (LENGTH - 1)) :]:
                ignored[r, c] = True
            mask = (~ignored).long()
            labels = labels.masked_fill(ignored, data.ignored)
        else:
            rows = max(1, count)
            inputs = torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64)
            inputs = inputs.to(data.dtype)
            if data.kind == "rows":
                # A loss that compares rows with each other has as many classes as rows.
                labels = torch.randint(0, min(CLASSES, rows), (rows,), generator=generator)
            else:
                labels = torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64)
                labels = labels.to(data.dtype)
            mask = torch.ones(rows, dtype=torch.long)
        self.inputs = inputs.to(data.device)
        self.labels = labels.to(data.device)
        self.mask = mask.to(data.device)
        self.rows = rows
        usual = (
            {"input_ids": self.inputs, "attention_mask": self.mask, "labels": self.labels}
            if data.kind == "tokens"
            else {"pixel_values": self.inputs, "labels": self.labels}
        )
        super().__init__(usual)

    def use(self) -> Batch:
        self.data_.current = self.number
        return self

    def tensor(self, name: str, position: int | None = None) -> Any:
        """What a name means in this batch; where it says nothing, the second of several is the target."""
        self.use()
        low = name.rpartition(".")[2].lower().lstrip("*")
        if low in ("_", "__"):
            return self.labels
        if _MASK.search(low):
            return self.mask
        if _OPPOSITE.search(low):
            return self.tensor(_OPPOSITE.sub("", low)).flip(0)
        if _TARGET.search(low):
            return self.labels
        if _INPUT.search(low):
            return self.inputs
        if _LENGTH.search(low):
            return self.mask.sum(-1) if self.mask.dim() > 1 else self.mask
        return self.labels if position == 1 else self.inputs

    def parts(self, names: tuple[Any, ...]) -> tuple[Any, ...]:
        """The batch taken apart into as many names as there are."""
        flat = [n for n in names if isinstance(n, str)]
        targets = [n for n in flat if _TARGET.search(n.lower()) and not _MASK.search(n.lower())]
        made: list[Any] = []
        for position, name in enumerate(names):
            if isinstance(name, tuple):
                made.append(self.parts(name))
            elif name.startswith("*"):
                made.append([self.tensor(name, 1)])
            else:
                made.append(self.tensor(name, None if targets else position))
        return tuple(made)

    def __getitem__(self, key: Any) -> Any:
        self.use()
        if isinstance(key, str):
            return super().__getitem__(key) if key in self else self.tensor(key)
        if isinstance(key, int):
            return (self.inputs, self.labels, self.mask)[key % 3] if key >= 0 else self.labels
        return self.inputs[key]

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key] if isinstance(key, str) else default

    def pop(self, key: Any, default: Any = None) -> Any:
        value = self[key]
        super().pop(key, default)
        return value

    def keys(self) -> Any:
        self.use()
        return super().keys()

    def items(self) -> Any:
        self.use()
        return super().items()

    def values(self) -> Any:
        self.use()
        return super().values()

    def __len__(self) -> int:
        return self.rows

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        self.use()
        return super().__iter__()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("to", "cuda", "cpu", "pin_memory", "copy", "convert_to_tensors"):
            return lambda *_, **__: self.use()
        if hasattr(torch.Tensor, name):
            return getattr(self.use().inputs, name)
        return self.tensor(name)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: object, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """A batch given where a tensor is wanted is its inputs."""
        return func(*_plain(args), **_plain(dict(kwargs or {})))

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.number


def _is_library(frame: Any) -> bool:
    name = frame.f_code.co_filename
    return "site-packages" in name or "dist-packages" in name


class _Collate:
    def __init__(self, data: Data) -> None:
        self.data = data

    def __call__(self, _: object) -> Batch:
        return self.data.fetch()


class Loader(DataLoader[Any]):
    """A real `DataLoader` over micro-batches made on the spot; as an iterator, it starts again at its end."""

    def __init__(self, data: Data, copies: int) -> None:
        super().__init__(range(data.length * copies), batch_size=1, collate_fn=_Collate(data))  # pyright: ignore[reportArgumentType]
        self.data_ = data
        self.endless_: Iterator[Any] | None = None

    def __next__(self) -> Any:
        while True:
            self.endless_ = self.endless_ or iter(self)
            try:
                return next(self.endless_)
            except StopIteration:
                self.endless_ = None

    def __call__(self, *_: Any, **__: Any) -> Loader:
        """Itself, where what gives micro-batches is a method."""
        return self

    def __getattr__(self, name: str) -> Any:
        return _unknown(self, name, self.data_.unknown)


def _unknown(owner: object, name: str, unknown: Callable[[str], Any]) -> Any:
    """An attribute of the user's class that a stand-in does not have; libraries, which ask what there is, get none."""
    if re.match(r"_|is_|has_", name) or _is_library(sys._getframe(2)):
        raise AttributeError(name)
    return unknown(f"{type(owner).__name__.lower()}.{name}")


class Optimizer(torch.optim.SGD):
    """Stochastic gradient descent, so that a step shows the gradient as it is."""

    def __init__(self, params: Any, unknown: Callable[[str], Any]) -> None:
        self._unknown = unknown
        super().__init__(params, lr=0.05)

    def __getattr__(self, name: str) -> Any:
        return _unknown(self, name, self._unknown)

    def __call__(self, *_: Any) -> Any:
        return self


class Scheduler(torch.optim.lr_scheduler.LambdaLR):
    """A schedule that never changes the learning rate; as a function of the step, it is the constant 1."""

    def __init__(self, optimizer: torch.optim.Optimizer, unknown: Callable[[str], Any]) -> None:
        self._unknown = unknown
        super().__init__(optimizer, lambda _: 1.0)

    def step(self, *_: Any, **__: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().step()

    step_update = step

    def __call__(self, _: Any = 0) -> float:
        return 1.0

    def __getattr__(self, name: str) -> Any:
        return _unknown(self, name, self._unknown)


def scaler() -> torch.amp.GradScaler:
    """A GradScaler that can also be called as timm's `NativeScaler` is."""

    class Scaler(torch.amp.GradScaler):
        def __call__(
            self, loss: Any, optimizer: Any, clip_grad: Any = None, clip_mode: str = "norm",
            parameters: Any = None, create_graph: bool = False, need_update: bool = True, update_grad: bool = True,
        ) -> Any:  # fmt: skip
            loss = loss.loss if isinstance(loss, Output) else loss
            self.scale(loss).backward(create_graph=create_graph)
            if not (need_update and update_grad):
                return None
            norm = None
            if isinstance(clip_grad, int | float) and clip_grad:
                self.unscale_(optimizer)
                norm = torch.nn.utils.clip_grad_norm_(list(parameters), clip_grad)
            self.step(optimizer)
            self.update()
            return norm

    return Scaler("cuda")


class Output:
    """What the stand-in model gives: logits, a loss, a tuple or a mapping, as the loop takes it."""

    def __init__(self, logits: torch.Tensor, loss: Callable[[], torch.Tensor], has_loss: bool):
        self._logits = logits
        self._make = loss
        self.has_loss = has_loss
        self._loss: torch.Tensor | None = None

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
            return {"loss": self.loss}
        if re.search(r"loss|^nll|^elbo|^objective", low):
            return self.loss
        return self

    def parts(self, names: tuple[Any, ...]) -> tuple[Any, ...]:
        flat = [n if isinstance(n, str) else "" for n in names]
        made: list[Any] = []
        for name in flat:
            low = name.lower()
            if re.search(r"loss|^nll|elbo", low) and "aux" not in low:
                made.append(self.named(low))
            elif name == "_" or re.search(
                r"log(s|ger|_?var|_dict)?$|stat|metric|weight|acc|info", low
            ):
                made.append({})
            elif "aux" in low:
                made.append(self.nothing)
            else:
                made.append(self.logits)
        return tuple(made)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self.named(key) if "loss" in key.lower() else self.logits
        if isinstance(key, int):
            return self.loss if self.has_loss and key == 0 else self.logits
        return self.logits[key]

    def __iter__(self) -> Iterator[Any]:
        if self.has_loss:
            return iter((self.loss, self.logits))
        return iter(self.logits)

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

    def backward(self, *args: Any, **kwargs: Any) -> None:
        self.loss.backward(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if "loss" in name:
            return self.named(name)
        if hasattr(torch.Tensor, name):
            return getattr(self.logits, name)
        return self.logits

    @classmethod
    def __torch_function__(
        cls, func: Any, types: object, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return func(*_plain(args), **_plain(dict(kwargs or {})))


def _plain(value: Any) -> Any:
    if isinstance(value, Output):
        return value.logits
    if isinstance(value, Batch):
        return value.use().inputs
    if type(value) in (list, tuple):
        return type(value)(_plain(v) for v in value)
    if type(value) is dict:
        return {k: _plain(v) for k, v in value.items()}
    return value


def _operator(name: str) -> Callable[..., Any]:
    def operate(self: Any, *others: Any) -> Any:
        divided = "truediv" in name and isinstance(self, Output)
        if divided and (self.has_loss or isinstance(others[0], int)):
            # What is divided by a count is a loss, and so is what a model gives for labels.
            return getattr(self.loss, name)(*_plain(others))
        return getattr(_plain(self), name)(*_plain(others))

    return operate


for _name in (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "matmul", "neg", "gt", "lt",
    "ge", "le",
):  # fmt: skip
    setattr(Output, f"__{_name}__", _operator(f"__{_name}__"))
    setattr(Batch, f"__{_name}__", _operator(f"__{_name}__"))


class Model(nn.Module):
    """A network of about a hundred parameters that takes what any network takes and gives what any network gives."""

    def __init__(self, data: Data, seed: int) -> None:
        super().__init__()
        self.data_ = [data]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if data.kind == "tokens":
                self.embedding = nn.Embedding(VOCABULARY, WIDTH)
                self.head = nn.Linear(WIDTH, VOCABULARY)
            else:
                out = CLASSES if data.kind == "rows" else WIDTH
                self.embedding = nn.Linear(WIDTH, WIDTH)
                self.head = nn.Linear(WIDTH, out)
        super().to(device=data.device, dtype=data.dtype)

    def forward(self, *args: Any, **kwargs: Any) -> Output:
        data = self.data_[0]
        data.thaw()
        given = list(_tensors([*args, *kwargs.values()]))
        inputs = self._inputs(given)
        if data.kind == "tokens" and inputs.is_floating_point():
            hidden = torch.tanh(inputs @ self.embedding.weight)
        else:
            hidden = torch.tanh(self.embedding(inputs))
        logits = self.head(hidden)
        if data.poisoned and data.current == data.poisoned:
            logits = logits * float("nan")
        labels = next(
            (v for k, v in kwargs.items() if _TARGET.search(k) and isinstance(v, torch.Tensor)),
            None,
        )
        if labels is None and len(given) > 1:
            others = [t for t in given if t is not inputs]
            labels = next((t for t in others if _fits(t, logits, data.kind)), None)
        has_loss = labels is not None
        items = kwargs.get("num_items_in_batch")
        return Output(logits, lambda: self._loss(logits, labels, items), has_loss)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Where it stands is settled: on the device of the run, in its precision."""
        return self

    half = bfloat16 = float = double = cuda = cpu = to

    def _inputs(self, given: list[torch.Tensor]) -> torch.Tensor:
        data = self.data_[0]
        if data.kind == "tokens":
            fitting = [t for t in given if not t.is_floating_point() and t.dim() >= 2]
            fitting = [
                t for t in given if t.requires_grad and t.shape[-1:] == (VOCABULARY,)
            ] or fitting
        else:
            fitting = [t for t in given if t.is_floating_point() and t.shape[-1:] == (WIDTH,)]
            fitting = [t for t in fitting if t.requires_grad] or fitting
        if fitting:
            # A decoder's output is as long as what it was given last.
            same = all(t.shape == fitting[0].shape for t in fitting)
            chosen = fitting[0] if same else fitting[-1]
            return chosen if chosen.is_floating_point() else chosen.clamp(0, VOCABULARY - 1)
        return data.now().inputs

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor | None, items: Any) -> torch.Tensor:
        data = self.data_[0]
        target = data.now().labels if labels is None else labels
        if items is None:
            return Criterion(data)(logits, target)
        flat = logits.flatten(0, -2), target.flatten()
        return F.cross_entropy(*flat, ignore_index=data.ignored, reduction="sum") / items

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # Libraries ask what a model has; only the user's own code knows what his would have.
            if name.startswith("_") or _is_library(sys._getframe(1)):
                raise
            if name == "module":
                return self
            if name == "no_sync":
                return nullcontext
            if name in ("device", "dtype"):
                return getattr(self.data_[0], name)
            return _member(self, name)


class Engine(Model):
    """A stand-in for DeepSpeed's engine that keeps its contract: it divides, steps at the window's end, clears."""

    def __init__(self, data: Data, seed: int, steps: int) -> None:
        super().__init__(data, seed)
        self.steps_ = steps
        self.micro_steps = 0
        self.boundary: bool | None = None
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.05)

    def backward(self, loss: Any, scale_wrt_gas: bool = True, **_: Any) -> Any:
        """Goes backward through the loss, divided by the accumulation steps unless told otherwise."""
        loss = loss.loss if isinstance(loss, Output) else loss
        (loss / self.steps_ if scale_wrt_gas else loss).backward()
        return loss

    def is_gradient_accumulation_boundary(self) -> bool:
        """True where the next step is a real one."""
        if self.boundary is not None:
            return self.boundary
        return (self.micro_steps + 1) % self.steps_ == 0

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Leaves it to the script where a window ends."""
        self.boundary = is_boundary

    def step(self, *_: Any, **__: Any) -> None:
        """Steps and clears at the end of a window; counts."""
        if self.is_gradient_accumulation_boundary():
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.micro_steps += 1

    def gradient_accumulation_steps(self) -> int:
        """The steps it was configured with."""
        return self.steps_


def _member(model: Model, name: str) -> Any:
    """What a stand-in model gives for an attribute of the user's: a number where its name means one."""
    found = setting(name.lower())
    return _Member(model, name) if found is UNKNOWN else found


class _Member:
    """An attribute that a stand-in model does not have: a part of it, or a method that leads to a loss."""

    def __init__(self, model: Model, name: str) -> None:
        self._model = model
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if re.search(
            r"checkpoint|freeze|enable|disable|set_|init|resize|save|load|push|tie", self._name
        ):
            return self._model
        if re.search(r"optim|sched", self._name):
            # What it is to be shows in the name that it gets.
            return self._model.data_[0].unknown(f"model.{self._name}()")
        output = self._model(*args, **kwargs)
        return output.named(self._name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("parameters", "named_parameters", "state_dict", "train", "eval", "modules"):
            return getattr(self._model, name)
        return _member(self._model, name)

    def __iter__(self) -> Iterator[Any]:
        # A list of layers: what is done to each of them is done to none.
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __index__(self) -> int:
        return VOCABULARY if "vocab" in self._name else 1


def _fits(target: torch.Tensor, logits: torch.Tensor, kind: str) -> bool:
    if kind == "values":
        return target.shape == logits.shape
    return not target.is_floating_point() and target.shape == logits.shape[:-1]


def _tensors(values: list[Any]) -> Iterator[torch.Tensor]:
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
            yield from _tensors(list(value))
        elif type(value) is dict:
            yield from _tensors(list(value.values()))


class Criterion(nn.Module):
    """The usual loss of the kind of data, a mean over the targets that count."""

    def __init__(self, data: Data) -> None:
        super().__init__()
        self.data_ = [data]

    def forward(self, output: Any, target: Any = None, *_: Any, **__: Any) -> torch.Tensor:
        data = self.data_[0]
        logits = output.logits if isinstance(output, Output) else output
        if isinstance(target, Batch):
            target = target.use().labels
        if not isinstance(target, torch.Tensor):
            target = data.now().labels
        if data.kind == "values":
            return F.mse_loss(logits, target)
        if logits.dim() == target.dim() + 1 and logits.shape[:-1] == target.shape:
            logits, target = logits.flatten(0, -2), target.flatten()
        return F.cross_entropy(logits, target, ignore_index=data.ignored)
