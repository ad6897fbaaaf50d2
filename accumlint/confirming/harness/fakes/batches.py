"""Generated data: micro-batches that can be indexed, unpacked and named as a loop does it."""
# pyright: reportPrivateUsage=false, reportIncompatibleVariableOverride=false

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from accumlint.confirming.harness.fakes import name_words
from accumlint.confirming.harness.fakes.usual_settings import (
    CLASSES,
    LENGTH,
    PADDING,
    ROWS,
    VOCABULARY,
    WIDTH,
)
from accumlint.confirming.harness.rewriting.unpacking import names_of


@dataclass
class Data:
    """The data of a pass: its kind ("tokens", "rows", "values", "frames") and the number of targets of each
    micro-batch.

    `counts(microbatch)` gives this rank's targets of a micro-batch (from 1); `ignored` is the label that the loss
    ignores; `length` micro-batches make an epoch. A batch that the loop cuts into pieces has `cut_rows`; `piece` is the
    offset of the current piece, `pieces` counts those after the first of a batch. `fed` is the last micro-batch that a
    loader yielded; the current one is `spent` after its backward; `begun` is set when a provided loader yields,
    `struck` when the `poisoned` micro-batch has failed. Rows have `width` features. `unfed` names a network that was
    called without data. `last` is the latest output of a network; `outputs`, if enabled, are the outputs since the last
    backward.
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
    rows: int = 0
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
    withholds: bool = False
    struck: bool = False
    frozen: bool = False
    unfed: str = ""
    limit: int = 1000
    batches: dict[int, Batch] = field(default_factory=dict)
    models: list[nn.Module] = field(default_factory=list)
    outputs: dict[int, torch.Tensor] | None = None
    last: Plain | None = None
    unknown: Callable[[str], Any] = lambda text: None
    # Called with the name of a loss or network that receives the accumulation steps.
    note_window_aware: Callable[[str], None] = lambda text: None
    # Called with the name of a network that returns a loss without being given labels.
    note_own_loss: Callable[[str], None] = lambda text: None
    setting: Callable[[str], Any] = lambda text: None

    def fetch(self) -> Batch:
        """The next micro-batch.

        Raises:
            Enough: when the pass has seen as many as it needs.
        """
        # Evaluation, and data that is fetched before any forward, do not count towards the limit.
        if self.fetched - self.looked_at >= self.limit or self.fetched >= 20 * self.limit:
            raise Enough
        self.fetched += 1
        self.looked_at += self.last is None or not torch.is_grad_enabled()
        self.spent = False
        self.piece = -1
        batch = Batch(self, self.fetched)
        self.batches[self.fetched] = batch
        return batch

    def feed(self, _: object) -> Batch | None:
        """The next micro-batch, as the collate function of a loader; None for one that it `withholds`."""
        batch = self.fetch()
        self.fed = batch.number
        if not (self.withholds and batch.number == self.poisoned):
            return batch
        self.struck = True
        return None

    def generator(self, number: int) -> torch.Generator:
        """A random generator: the same in every pass, different for each number and rank."""
        return torch.Generator().manual_seed(self.seed * 7919 + self.rank * 104729 + number)

    def normal(self, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
        """Normal random numbers, the same in every precision."""
        made = torch.randn(shape, generator=generator, dtype=torch.float64)
        return made.to(self.device, self.dtype)

    def __deepcopy__(self, _: object) -> Data:
        """Itself: a copied network uses the same data."""
        return self

    def spend(self) -> None:
        """Marks the current micro-batch as used in a backward."""
        self.spent = True
        self.backwards += 1
        if self.outputs:
            self.outputs.clear()

    def cut(self, inputs: torch.Tensor) -> None:
        """Called with a network input; a piece of a micro-batch after the backward of another is a new micro-batch."""
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
        """The offset of a piece in its micro-batch, also where its rows were selected one by one."""
        whole = batch.inputs
        if inputs.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr():
            return int(inputs.storage_offset())
        if inputs.shape[1:] != whole.shape[1:] or inputs.dtype != whole.dtype:
            return 0
        rows = (whole == inputs[0]).flatten(1).all(1).nonzero()
        return int(rows[0]) * int(whole.stride(0)) if len(rows) else 0

    def labels_of(self, inputs: torch.Tensor) -> torch.Tensor:
        """The labels of a network's input: of a piece of the current micro-batch, those of its rows."""
        batch = self.now()
        whole = batch.inputs
        same = inputs.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
        if not same or inputs.dim() < 2 or len(inputs) >= batch.rows:
            return batch.labels
        first = int(inputs.storage_offset()) // int(whole.stride(0))
        return batch.labels[first : first + len(inputs)]

    def begin(self) -> None:
        """Counts a micro-batch of a provided loader.

        Raises:
            Enough: when the pass has seen as many as it needs.
        """
        if self.fetched >= self.limit:
            raise Enough
        self.fetched += 1
        self.current = self.fetched
        self.begun = True

    def thaw(self, called: nn.Module) -> None:
        """Unfreezes the networks if every parameter is frozen; only the called one where all calls are `frozen`."""
        models = [called] if self.frozen else self.models
        parameters = [p for model in models for p in model.parameters()]
        if torch.is_grad_enabled() and not any(p.requires_grad for p in parameters):
            for p in parameters:
                p.requires_grad_(True)

    def now(self) -> Batch:
        """The current micro-batch."""
        if self.current not in self.batches and self.begun:
            # Besides one of a provided loader.
            self.batches[self.current] = Batch(self, self.current)
        elif self.current not in self.batches:
            self.current = self.fetch().number
        return self.batches[self.current]


class Enough(BaseException):
    """Ends a pass from within: all updates that it measures have happened."""


class Plain:
    """A fake that torch functions convert to a tensor."""

    def plain_(self) -> torch.Tensor:
        """The tensor that it represents."""
        raise NotImplementedError

    @classmethod
    def __torch_function__(
        cls, func: Any, types: object, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return func(*plain(args), **plain(dict(kwargs or {})))


def plain(value: Any) -> Any:
    """A value with tensors in place of fakes, as torch requires it."""
    if isinstance(value, Plain):
        return value.plain_()
    if type(value) in (list, tuple):
        return type(value)(plain(v) for v in value)
    if type(value) is dict:
        return {k: plain(v) for k, v in value.items()}
    return value


class Batch(Plain, dict[Any, Any]):
    """One micro-batch, in whatever structure the loop unpacks it."""

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
            # Targets are at the end of the rows, so that a shift by one loses none.
            order = [(r, c) for c in range(LENGTH - 1, -1, -1) for r in range(rows)]
            if data.cut_rows:
                # Each row has a target; the first rows have the rest, so that pieces differ however rows are mixed.
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
            # Targets are at the beginning of the rows.
            for place in range(min(count, rows * LENGTH)):
                mask[place % rows, place // rows] = 1
        else:
            rows = data.rows or max(1, count)
            inputs = data.normal((rows, data.width), generator)
            if data.kind == "rows":
                # A loss that compares rows with each other has as many classes as rows.
                labels = torch.randint(0, min(CLASSES, rows), (rows,), generator=generator)
            else:
                labels = data.normal((rows, data.width), generator)
            mask = (torch.arange(rows) < count).long()
            if data.kind == "rows":
                labels = labels.masked_fill(mask == 0, data.ignored)
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
        items = dict(dict.items(self))
        return (
            bool(items)
            and parts.keys() == items.keys()
            and all(parts[k] is items[k] for k in items)
        )

    def tensor(self, name: str, position: int | None = None) -> Any:
        """The tensor that a name means; by `position`, the second of several is the target."""
        self.use()
        low = name.rpartition(".")[2].lower().lstrip("*")
        if low in ("_", "__"):
            return self.labels
        if name_words.NOISY.search(low) and not name_words.TARGET.search(low):
            return self.noisy()
        if name_words.LENGTHS.search(low) and self.mask.dim() > 1:
            return self.mask.sum(-1)
        if name_words.CHANCE.search(low):
            return torch.full_like(self.mask, 0.5, dtype=self.data_.dtype)
        if name_words.NUMBERS.search(low) and not name_words.TARGET.search(low):
            return self.numbers(low)
        if name_words.WEIGHTS.search(low):
            return (10 * self.numbers(low)).abs() + 0.1
        if name_words.MASK.search(low):
            return self.mask
        if name_words.PICKING.search(low):
            return self.mask.bool()
        if name_words.OPPOSITE.search(low):
            return self.tensor(name_words.OPPOSITE.sub("", low)).flip(0)
        if name_words.TARGET.search(low):
            return self.labels
        if name_words.INPUT.search(low):
            return self.inputs
        if name_words.LENGTH.search(low):
            return self.mask.sum(-1) if self.mask.dim() > 1 else self.mask
        return self.labels if position == 1 else self.inputs

    def noisy(self) -> torch.Tensor:
        """Its inputs with replaced values at the targets."""
        if self.inputs.is_floating_point():
            return self.inputs + self.numbers("noise", self.inputs.shape)
        other = self.inputs % (VOCABULARY - 1) + 1
        return torch.where(self.mask.bool(), other, self.inputs)

    def numbers(self, name: str, shape: Any = None) -> torch.Tensor:
        """Small random numbers, determined by a name; one for each target by default."""
        generator = self.data_.generator(self.number + 31 * sum(map(ord, name)))
        return self.data_.normal(shape or self.mask.shape, generator) / 10

    def parts(self, names: tuple[Any, ...]) -> tuple[Any, ...]:
        """The batch unpacked into names."""
        flat = [n for n in names if isinstance(n, str)]
        targets = [
            n
            for n in flat
            if name_words.TARGET.search(n.lower()) and not name_words.MASK.search(n.lower())
        ]
        made: list[Any] = []
        for position, name in enumerate(names):
            if isinstance(name, tuple):
                made.append(self.parts(name))
            elif name.startswith("*"):
                made.append([self.tensor(name, 1)])
            elif name.lower() in name_words.WHOLE:
                # The other names are those of its samples.
                made.append(self.use())
            else:
                made.append(self.tensor(name, None if targets else position))
        return tuple(self._distinct(made))

    def _distinct(self, parts: list[Any]) -> Iterator[Any]:
        """Parts of a batch; repeated inputs are rolled, so that no two that a loss compares are equal."""
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

    def __setitem__(self, key: Any, value: Any) -> None:
        # An unknown key names no part of it, and only words can be keywords.
        if isinstance(key, str):
            super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        # Keys that are not there are ignored.
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
        # Code of other files unpacks by its own names.
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

    # Batches compare by identity.
    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.number


OPERATORS = (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "matmul", "neg", "gt", "lt",
    "ge", "le",
)  # fmt: skip


def operator(name: str) -> Callable[..., Any]:
    """An operator on the tensor of a fake, by the name of its method."""
    return lambda self, *others: getattr(self.plain_(), name)(*plain(others))


for _name in OPERATORS:
    setattr(Batch, f"__{_name}__", operator(f"__{_name}__"))
