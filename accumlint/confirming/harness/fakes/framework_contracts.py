"""Contracts of frameworks that drive the loop: who divides the loss, who reduces gradients and who steps.

Trainer: `transformers/trainer.py` (`training_step`, `compute_loss`). Lightning: `lightning/pytorch/loops/optimization`.
Fabric: `lightning/fabric/fabric.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from accumlint.confirming.harness.binding import Binding
from accumlint.confirming.harness.fakes.accelerators import Unbound
from accumlint.confirming.harness.fakes.batches import Batch, Enough
from accumlint.confirming.harness.fakes.stub import Absent
from accumlint.confirming.harness.parameters import parameters_of
from accumlint.confirming.harness.process_group import world_size
from accumlint.confirming.harness.setup_objects import PartialNamespace

# The names under which a set-up file provides a Trainer's data.
_FEEDING = ("self.train_dataset", "train_dataset", "train_dataloader")
# Lightning modules only work in Lightning's Trainer, so that the contract replaces installed packages as well.
LIGHTNING = ("lightning", "pytorch_lightning", "lightning_fabric")
# The packages that a contract can replace.
PACKAGES = ("transformers", *LIGHTNING)


class _Contract:
    """A contract bound to a run."""

    binding_: Binding


def _partly(binding: Binding, text: str, **known: Any) -> PartialNamespace:
    """A settings object with some known attributes; others are chosen by name."""
    return PartialNamespace(known, lambda name: binding.known(f"{text}.{name}"))


def _in_ddp(module: Any) -> Any:
    """The module in DDP where there are several ranks, else itself."""
    return module if world_size() == 1 else nn.parallel.DistributedDataParallel(module)


class _Trainer(_Contract):
    """Divides by the accumulation steps unless the loss receives the number of items, or a subclass overrides that.

    Of an older Trainer, the Accelerator divides.
    """

    loss_is_scaled_for_ga: bool | None = None

    def __init__(self, *_: Any, compute_loss_func: Callable[..., Any] | None = None, **__: Any):
        binding = self.binding_
        # The provided model, or a fake.
        provided = next((n for n in ("model", "self.model") if n in binding.provided), None)
        self.model = binding.model("model") if provided is None else binding.take(provided)
        self.compute_loss_func = compute_loss_func
        # As for every language model whose forward accepts keyword arguments.
        self.model_accepts_loss_kwargs = True
        self.label_smoother = None
        self.current_gradient_accumulation_steps = binding.steps_
        device = binding.data.device
        self.args = _partly(
            binding, "args", gradient_accumulation_steps=binding.steps_, bf16=False, fp16=False, n_gpu=1,
            device=device, average_tokens_across_devices=True,
        )  # fmt: skip
        self.accelerator = _partly(
            binding, "accelerator", num_processes=1, device=device, autocast=nullcontext,
            backward=self._backward,
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        return self.binding_.attribute(self, name)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        passes_items = self.model_accepts_loss_kwargs and num_items_in_batch is not None
        extra = {"num_items_in_batch": num_items_in_batch} if passes_items else {}
        outputs = model(**inputs, **extra)
        loss = outputs.loss
        if self.compute_loss_func is not None:
            named = {"num_items_in_batch": num_items_in_batch}
            loss = self.compute_loss_func(outputs, inputs["labels"], **named)
        return (loss, outputs) if return_outputs else loss

    def _prepare_inputs(self, inputs: Any) -> Any:
        return inputs

    _prepare_input = _prepare_inputs

    def compute_loss_context_manager(self) -> Any:
        return nullcontext()

    autocast_smart_context_manager = compute_loss_context_manager

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        # Older training steps have no such parameter.
        takes = "num_items_in_batch" in inspect.signature(self.compute_loss).parameters
        extra = {"num_items_in_batch": num_items_in_batch} if takes else {}
        loss = self.binding_.returned_loss(self.compute_loss(model, inputs, **extra))
        scaled = self.loss_is_scaled_for_ga
        if scaled is None:
            scaled = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        if not (scaled or self._is_older):
            loss = loss / self.binding_.steps_
        self.accelerator.backward(loss)
        return loss.detach()

    @property
    def _is_older(self) -> bool:
        """Whether its training step gets no count, as until transformers 4.45, whose Accelerator divides."""
        return len(inspect.signature(self.training_step).parameters) == 2

    def _backward(self, loss: Any, **_: Any) -> None:
        (loss / self.binding_.steps_ if self._is_older else loss).backward()

    def train(self, *_: Any, **__: Any) -> None:
        model, binding = self.model, self.binding_
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        # `self.model` stays unwrapped.
        wrapped = _in_ddp(model)
        provided = next((binding.take(n) for n in _FEEDING if n in binding.provided), None)
        while True:
            binding.turn(True)
            window: dict[int, Any] = {}
            while len(window) < binding.steps_:
                batch = binding.data.fetch() if provided is None else next(provided)
                window[binding.data.fetched] = batch
            counts = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
            known = [item for batch in window.values() if (item := _labels(batch)) is not None]
            items = sum((item != binding.data.ignored).sum() for item in known)
            extra: tuple[Any, ...] = (items if counts else None,)
            if self._is_older:
                extra = ()
            for place, batch in window.items():
                last = place == max(window)
                binding.data.current = place
                with nullcontext() if last or wrapped is model else wrapped.no_sync():
                    item = batch.use() if isinstance(batch, Batch) else batch
                    self.training_step(wrapped, item, *extra)
            optimizer.step()
            optimizer.zero_grad()


def _labels(batch: Any) -> Any:
    """The labels of a micro-batch, None where it has none."""
    if isinstance(batch, Batch):
        return batch.labels
    return batch.get("labels") if isinstance(batch, dict) else None


class _LightningModule(_Contract, nn.Module):
    """Automatic optimization divides the loss by the accumulation steps; manual optimization leaves all to the user."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()
        self.automatic_optimization = True
        self.trainer = SimpleNamespace(accumulate_grad_batches=self.binding_.steps_)
        self.made: list[Any] = []
        self.toggled: list[Any] = []

    def optimizers(self, *_: Any, **__: Any) -> Any:
        every = self._optimizers()
        return every[0] if len(every) == 1 else every

    def _optimizers(self) -> list[Any]:
        if not self.made:
            found = self.configure_optimizers()
            found = list(found) if isinstance(found, list | tuple) else [found]
            self.made.extend(o for o in found if isinstance(o, torch.optim.Optimizer))
            if not self.made:
                self.made.append(self.binding_.optimizer("optimizer"))
        return self.made

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.binding_.model("model")(*args, **kwargs)

    def configure_optimizers(self) -> Any:
        return None

    def manual_backward(self, loss: Any, *args: Any, **kwargs: Any) -> None:
        loss.backward(*args, **kwargs)

    def log(self, *_: object, **__: object) -> None:
        pass

    log_dict = save_hyperparameters = log

    def clip_gradients(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        parameters = parameters_of(optimizer)
        if gradient_clip_algorithm == "value":
            nn.utils.clip_grad_value_(parameters, gradient_clip_val)
        elif gradient_clip_val:
            nn.utils.clip_grad_norm_(parameters, gradient_clip_val)

    def toggle_optimizer(self, optimizer: Any, *_: object) -> None:
        """Trains only the optimizer's parameters until it is toggled back."""
        active = set(map(id, parameters_of(optimizer)))
        every = [p for o in self._optimizers() for p in parameters_of(o)]
        self.toggled = [p for p in every if id(p) not in active and p.requires_grad]
        for p in self.toggled:
            p.requires_grad_(False)

    def untoggle_optimizer(self, *_: object) -> None:
        for p in self.toggled:
            p.requires_grad_(True)
        self.toggled = []

    def fit(self) -> None:
        """The automatic optimization loop of Lightning."""
        training_step: Any = self.training_step
        number = 0
        while True:
            self.binding_.turn(True)
            batch = self.binding_.data.fetch().use()
            loss = training_step(batch, number)
            loss = loss["loss"] if isinstance(loss, dict) else loss
            (loss / self.binding_.steps_).backward()
            number += 1
            if number % self.binding_.steps_ == 0:
                self.optimizers().step()
                self.optimizers().zero_grad()


class _Fabric(_Contract):
    """Wraps models in DDP on several ranks and never divides."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = self.binding_.data.device
        self.world_size = world_size()
        self.global_rank = self.local_rank = self.binding_.data.rank
        self.is_global_zero = self.binding_.data.rank == 0

    def setup(self, module: Any, *optimizers: Any, **_: Any) -> Any:
        module = _in_ddp(module)
        return (module, *optimizers) if optimizers else module

    setup_module = setup

    def setup_optimizers(self, *objects: Any, **_: Any) -> Any:
        return objects[0] if len(objects) == 1 else objects

    setup_dataloaders = setup_optimizers

    def backward(self, tensor: Any, *args: Any, **kwargs: Any) -> None:
        tensor.backward(*args, **{k: v for k, v in kwargs.items() if k != "model"})

    @contextmanager
    def no_backward_sync(self, module: Any, enabled: bool = True) -> Generator[None, None, None]:
        with module.no_sync() if enabled and hasattr(module, "no_sync") else nullcontext():
            yield

    def clip_gradients(
        self, module: Any, _: Any = None, clip_val: Any = None, max_norm: Any = None, **__: Any
    ) -> Any:
        if clip_val is not None:
            return nn.utils.clip_grad_value_(module.parameters(), clip_val)
        return nn.utils.clip_grad_norm_(module.parameters(), max_norm)

    def autocast(self, *_: object, **__: object) -> Any:
        return nullcontext()

    init_module = init_tensor = sharded_model = rank_zero_first = autocast

    def launch(self, *_: object, **__: object) -> None:
        pass

    print = log = log_dict = barrier = seed_everything = save = call = launch


def names(binding: Binding) -> dict[str, Any]:
    """The contract classes under the names by which users import them."""
    contracts = {"Trainer": _Trainer, "LightningModule": _LightningModule, "Fabric": _Fabric}
    made = {name: type(name, (cls,), {"binding_": binding}) for name, cls in contracts.items()}
    return {**made, "Seq2SeqTrainer": made["Trainer"]}


def drive(kind: str, made: Any, binding: Binding) -> None:
    """Runs the framework's loop: `made` is an instance of the user's class, or the user's loss function.

    Raises:
        Enough: when the run has seen as many updates as it needs.
        Unbound: where the user's class derives from the framework's through an absent base.
    """
    if kind == "trainer" and isinstance(made, Absent):
        missing = next(b.absent for b in type(made).__mro__ if "absent" in vars(b))
        raise Unbound(f"`{type(made).__name__}` is based on `{missing}`, which is not here")
    if kind == "loss":
        made = names(binding)["Trainer"](compute_loss_func=made)
    (made.fit if kind == "module" else made.train)()
    raise Enough
