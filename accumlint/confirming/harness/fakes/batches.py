"""The data of a pass: micro-batches made on the spot, in whatever shape a loop takes them apart."""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false, reportIncompatibleVariableOverride=false
# torch's own annotations are partial.

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from accumlint.confirming.harness.fakes.usual_settings import (
    CLASSES,
    LENGTH,
    PADDING,
    ROWS,
    VOCABULARY,
    WIDTH,
)
from accumlint.confirming.harness.rewriting.unpacking import names_of

TARGET = re.compile(
    r"label|target|tgt|transcript|^tags?$|^gts?$|ground|^ys?$|^y_|^yb|_y$|class(es)?$|answer|truth|^next_|^l$|lbl"
)
_INPUT = re.compile(
    r"input|image|img|pixel|feature|token|source|src|^xs?$|^x_|^xb|_x$|text|audio|wave|data|ids$|anchor|positive|query"
)
_MASK = re.compile(r"mask")
# What a function makes of the data: with other tokens or values in the places of targets, each with a chance.
_NOISY = re.compile(r"^(nois(y|ed)|corrupt(ed)?|perturb(ed)?|masked)(_|$)")
_CHANCE = re.compile(r"^p_mask$|(^|_)(chances?|prob(abilit(y|ies))?s?)$")
# One number for each target, as a rollout holds.
_NUMBERS = re.compile(
    r"^(old|behaviou?r)(_|$)|log_?p(rob)?s?(_|$)|(^|_)(advantages?|returns?|rewards?)$"
)
# What a loss multiplies its targets with.
_WEIGHTS = re.compile(
    r"^weights?$|(^|_)(sample|example|instance|row|loss|snr)_?weights?$|(^|_)snrs?$"
)
# A mask to pick elements by.
_PICKING = re.compile(r"^valid($|_(pixel|position|place|row)s?$)")
_WHOLE = {"batch", "batch_data", "data_batch", "minibatch"}
# What only says where a micro-batch comes from.
_SOURCE = re.compile(r"^(task|data(set)?|source|domain|lang(uage)?|corpus)_name$|^(name|task|key)$")
# One of a pair that a loss compares.
_OPPOSITE = re.compile(r"rejected_?|negative_?|loser_?")
_LENGTHS = re.compile(r"(^|_)(len|length)s?$")
_LENGTH = re.compile(r"len|num_|n_tok|count|ntokens")


@dataclass
class Data:
    """What a pass feeds: its kind ("tokens", "rows", "values", "frames"), and each micro-batch's number of targets.

    `counts(microbatch)` gives this rank's counted targets of a micro-batch (from 1); `ignored` is the label that
    the loss leaves out; `length` micro-batches make an epoch. A batch that is cut into pieces has `cut_rows`; the
    `piece` in hand begins at that place, and all but the first of a batch are counted in `pieces`. `fed` is the last
    one that a loader gave; the one in hand is `spent` when it has gone backward; it has `begun` when the user's own
    loader gave one. A row has `width` features. `unfed` is a network that gave something though
    it was given nothing. `last` is what a network gave last; `outputs`, if there are any, are what each network has
    given since the last backward.
    """

    kind: str
    counts: Callable[[int], int]
    length: int
    seed: int
    rank: int
    device: torch.device
    dtype: torch.dtype
    ignored: int = -100
    pads: bool = False
    cut_rows: int = 0
    piece: int = -1
    pieces: int = 0
    fetched: int = 0
    current: int = 0
    fed: int = 0
    begun: bool = False
    spent: bool = False
    width: int = WIDTH
    looked_at: int = 0
    backwards: int = 0
    poisoned: int = 0
    exhausts: bool = False
    frozen: bool = False
    unfed: str = ""
    limit: int = 1000
    batches: dict[int, Batch] = field(default_factory=dict)
    models: list[nn.Module] = field(default_factory=list)
    outputs: dict[int, torch.Tensor] | None = None
    last: Plain | None = None
    unknown: Callable[[str], Any] = lambda text: None
    # Hears of what gives a loss and was given the accumulation steps.
    told: Callable[[str], None] = lambda text: None
    setting: Callable[[str], Any] = lambda text: None

    def fetch(self) -> Batch:
        """The next micro-batch.

        Raises:
            Enough: when the pass has seen as many as it needs.
        """
        # What is only evaluated, or prepared before a network gives anything, brings nothing to an end.
        if self.fetched - self.looked_at >= self.limit or self.fetched >= 20 * self.limit:
            raise Enough
        self.fetched += 1
        self.looked_at += self.last is None or not torch.is_grad_enabled()
        self.spent = False
        self.piece = -1
        batch = Batch(self, self.fetched)
        self.batches[self.fetched] = batch
        return batch

    def feed(self, _: object) -> Batch:
        """The next micro-batch, as a loader gives it."""
        batch = self.fetch()
        self.fed = batch.number
        return batch

    def generator(self, number: int) -> torch.Generator:
        """Where random numbers come from: the same ones in every pass, others for each number and rank."""
        return torch.Generator().manual_seed(self.seed * 7919 + self.rank * 104729 + number)

    def normal(self, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
        """Random numbers, the same in whatever precision."""
        made = torch.randn(shape, generator=generator, dtype=torch.float64)
        return made.to(self.device, self.dtype)

    def __deepcopy__(self, _: object) -> Data:
        """Itself: a network that is copied is given what the first is given."""
        return self

    def spend(self) -> None:
        """The micro-batch in hand has gone backward."""
        self.spent = True
        self.backwards += 1
        if self.outputs:
            self.outputs.clear()

    def cut(self, inputs: torch.Tensor) -> None:
        """What a network is given; a piece of a micro-batch of which another has gone backward is one of its own."""
        batch = self.batches.get(self.current)
        if batch is None or inputs.dim() < 2 or len(inputs) >= batch.rows:
            return
        place = self._place(batch, inputs)
        if self.spent and self.piece not in (-1, place):
            self.fetched += 1
            self.pieces += 1
            self.spent = False
            batch.number = self.current = self.fetched
            self.batches[self.current] = batch
        self.piece = place

    def _place(self, batch: Batch, inputs: torch.Tensor) -> int:
        """Where a piece begins in its micro-batch, also where its rows were picked one by one."""
        whole = batch.inputs
        if inputs.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr():
            return int(inputs.storage_offset())
        if inputs.shape[1:] != whole.shape[1:] or inputs.dtype != whole.dtype:
            return 0
        rows = (whole == inputs[0]).flatten(1).all(1).nonzero()
        return int(rows[0]) * int(whole.stride(0)) if len(rows) else 0

    def labels_of(self, inputs: torch.Tensor) -> torch.Tensor:
        """The labels of the rows that a network is given: of a piece of the micro-batch in hand, those beside it."""
        batch = self.now()
        whole = batch.inputs
        same = inputs.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
        if not same or inputs.dim() < 2 or len(inputs) >= batch.rows:
            return batch.labels
        first = int(inputs.storage_offset()) // int(whole.stride(0))
        return batch.labels[first : first + len(inputs)]

    def begin(self) -> None:
        """A micro-batch that the user's own loader gives.

        Raises:
            Enough: when the pass has seen as many as it needs.
        """
        if self.fetched >= self.limit:
            raise Enough
        self.fetched += 1
        self.current = self.fetched
        self.begun = True

    def thaw(self, called: nn.Module) -> None:
        """Where every parameter has been frozen, as all but a few by their names are, fakes train whole.

        Where all that the loop calls is `frozen`, others that it does not call are no reason to leave it so.
        """
        models = [called] if self.frozen else self.models
        parameters = [p for model in models for p in model.parameters()]
        if torch.is_grad_enabled() and not any(p.requires_grad for p in parameters):
            for p in parameters:
                p.requires_grad_(True)

    def now(self) -> Batch:
        """The micro-batch being worked on."""
        if self.current not in self.batches and self.begun:
            # Beside one of the user's own.
            self.batches[self.current] = Batch(self, self.current)
        elif self.current not in self.batches:
            self.current = self.fetch().number
        return self.batches[self.current]


def is_beside(name: str) -> bool:
    """True for what is made of data, or stands beside it: other tokens, chances, numbers for each target."""
    low = name.lower()
    return any(pattern.search(low) for pattern in (_NOISY, _CHANCE, _NUMBERS))


class Enough(BaseException):
    """Ends a pass from within: everything that is to be measured has been seen."""


class Plain:
    """What stands in for a tensor where one is wanted."""

    def plain_(self) -> torch.Tensor:
        """The tensor that it stands for."""
        raise NotImplementedError

    @classmethod
    def __torch_function__(
        cls, func: Any, types: object, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return func(*plain(args), **plain(dict(kwargs or {})))


def plain(value: Any) -> Any:
    """A value as torch takes it: with tensors for what stands in for them."""
    if isinstance(value, Plain):
        return value.plain_()
    if type(value) in (list, tuple):
        return type(value)(plain(v) for v in value)
    if type(value) is dict:
        return {k: plain(v) for k, v in value.items()}
    return value


class Batch(Plain, dict[Any, Any]):
    """One micro-batch, in whatever shape the loop takes it apart."""

    def __init__(self, data: Data, number: int) -> None:
        self.data_ = data
        self.number = number
        generator = data.generator(number)
        count = data.counts(number)
        if data.kind == "tokens":
            rows = data.cut_rows or ROWS
            inputs, labels = (
                torch.randint(1, VOCABULARY, (rows, LENGTH), generator=generator) for _ in range(2)
            )
            # The targets that count stand at the end of the rows, so that a shift by one loses none of them.
            order = [(r, c) for c in range(LENGTH - 1, -1, -1) for r in range(rows)]
            if data.cut_rows:
                # Each row has one; the first rows have the rest, so that pieces differ however rows are mixed.
                order[rows:] = sorted(order[rows:], key=lambda place: place[0])
            mask = torch.zeros(rows, LENGTH, dtype=torch.long)
            for place in order[: min(count, rows * (LENGTH - 1))]:
                mask[place] = 1
            labels = labels.masked_fill(mask == 0, data.ignored)
            if data.pads:
                inputs = inputs.masked_fill(mask == 0, PADDING)
        elif data.kind == "frames":
            rows = 2
            inputs, labels = (data.normal((rows, LENGTH, data.width), generator) for _ in range(2))
            mask = torch.zeros(rows, LENGTH, dtype=torch.long)
            # The frames that count stand at the beginning of the rows.
            for place in range(min(count, rows * LENGTH)):
                mask[place % rows, place // rows] = 1
        else:
            rows = max(1, count)
            inputs = data.normal((rows, data.width), generator)
            if data.kind == "rows":
                # A loss that compares rows with each other has as many classes as rows.
                labels = torch.randint(0, min(CLASSES, rows), (rows,), generator=generator)
            else:
                labels = data.normal((rows, data.width), generator)
            mask = torch.ones(rows, dtype=torch.long)
        self.inputs = inputs.to(data.device)
        self.labels = labels.to(data.device)
        self.mask = mask.to(data.device)
        self.rows = rows
        of_tokens = data.kind == "tokens"
        name, mask = ("input_ids" if of_tokens else "pixel_values"), {"attention_mask": self.mask}
        super().__init__({name: self.inputs, **(mask if of_tokens else {}), "labels": self.labels})

    def use(self) -> Batch:
        self.data_.current = self.number
        return self

    def is_made_of(self, parts: Mapping[Any, Any]) -> bool:
        """Whether a mapping holds the same tensors under the same names."""
        own = dict(dict.items(self))
        return bool(own) and parts.keys() == own.keys() and all(parts[k] is own[k] for k in own)

    def tensor(self, name: str, position: int | None = None) -> Any:
        """What a name means in this batch; where it says nothing, the second of several is the target."""
        self.use()
        low = name.rpartition(".")[2].lower().lstrip("*")
        if low in ("_", "__"):
            return self.labels
        if _NOISY.search(low) and not TARGET.search(low):
            return self.noisy()
        if _LENGTHS.search(low) and self.mask.dim() > 1:
            return self.mask.sum(-1)
        if _CHANCE.search(low):
            return torch.full_like(self.mask, 0.5, dtype=self.data_.dtype)
        if _NUMBERS.search(low) and not TARGET.search(low):
            return self.numbers(low)
        if _WEIGHTS.search(low):
            return (10 * self.numbers(low)).abs() + 0.1
        if _MASK.search(low):
            return self.mask
        if _PICKING.search(low):
            return self.mask.bool()
        if _OPPOSITE.search(low):
            return self.tensor(_OPPOSITE.sub("", low)).flip(0)
        if TARGET.search(low):
            return self.labels
        if _INPUT.search(low):
            return self.inputs
        if _LENGTH.search(low):
            return self.mask.sum(-1) if self.mask.dim() > 1 else self.mask
        return self.labels if position == 1 else self.inputs

    def noisy(self) -> torch.Tensor:
        """Its inputs with something else in the places of targets."""
        if self.inputs.is_floating_point():
            return self.inputs + self.numbers("noise", self.inputs.shape)
        other = self.inputs % (VOCABULARY - 1) + 1
        return torch.where(self.mask.bool(), other, self.inputs)

    def numbers(self, name: str, shape: Any = None) -> torch.Tensor:
        """Small numbers by a name, one for each target where nothing else is said."""
        generator = self.data_.generator(self.number + 31 * sum(map(ord, name)))
        return self.data_.normal(shape or self.mask.shape, generator) / 10

    def parts(self, names: tuple[Any, ...]) -> tuple[Any, ...]:
        """The batch taken apart into as many names as there are."""
        flat = [n for n in names if isinstance(n, str)]
        targets = [n for n in flat if TARGET.search(n.lower()) and not _MASK.search(n.lower())]
        made: list[Any] = []
        for position, name in enumerate(names):
            if isinstance(name, tuple):
                made.append(self.parts(name))
            elif name.startswith("*"):
                made.append([self.tensor(name, 1)])
            elif _SOURCE.search(name.lower()):
                made.append(self.data_.unknown(name))
            elif name.lower() in _WHOLE:
                # Beside what only names its samples.
                made.append(self.use())
            else:
                made.append(self.tensor(name, None if targets else position))
        return tuple(self._apart(made))

    def _apart(self, parts: list[Any]) -> Iterator[Any]:
        """Parts of a batch, of which no two that a loss may compare are the same rows."""
        same = 0
        for part in parts:
            if part is self.inputs and self.inputs.is_floating_point():
                yield part.roll(same, 0)
                same += 1
            else:
                yield part

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

    def __delitem__(self, key: Any) -> None:
        # What else it would have held need not be there.
        super().pop(key, None)

    def keys(self) -> Any:
        self.use()
        return super().keys()

    def items(self) -> Any:
        self.use()
        return super().items()

    def __len__(self) -> int:
        return self.rows

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        self.use()
        # What takes it apart in another file of the user's does so by names, as this one's does.
        names = names_of(sys._getframe(1))
        return iter(self.parts(names)) if names else super().__iter__()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("to", "cuda", "cpu", "pin_memory", "copy", "convert_to_tensors"):
            return lambda *_, **__: self.use()
        if hasattr(torch.Tensor, name):
            return getattr(self.use().inputs, name)
        return self.tensor(name)

    def plain_(self) -> torch.Tensor:
        return self.use().inputs

    def __eq__(self, other: object) -> bool:
        return self is other

    # A batch is itself, whatever it holds.
    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.number


OPERATORS = (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "matmul", "neg", "gt", "lt",
    "ge", "le",
)  # fmt: skip


def operator(name: str) -> Callable[..., Any]:
    """An operation on what stands in for a tensor, by the name of its method."""
    return lambda self, *others: getattr(self.plain_(), name)(*plain(others))


for _name in OPERATORS:
    setattr(Batch, f"__{_name}__", operator(f"__{_name}__"))
