"""What frameworks that drive the loop promise about the gradient, in their place.

Trainer: `transformers/trainer.py` (`training_step`, `compute_loss`). Lightning: `lightning/pytorch/loops/optimization`.
Fabric: `lightning/fabric/fabric.py`. Only what decides who divides, who reduces and who steps.
"""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# torch's own annotations are partial.

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from accumlint.confirming.harness.binding import Binding
from accumlint.confirming.harness.fakes.accelerators import Unbound
from accumlint.confirming.harness.fakes.batches import Batch, Enough
from accumlint.confirming.harness.fakes.stub import Absent

# What a Trainer takes its micro-batches from, by the names under which a set-up file gives them.
_FEEDING = ("self.train_dataset", "train_dataset", "train_dataloader")
# Their modules work in their own Trainer only, so that the contract takes their place even where they are installed.
LIGHTNING = ("lightning", "pytorch_lightning", "lightning_fabric")
# The packages that a contract can stand for.
PACKAGES = ("transformers", *LIGHTNING)


def names(binding: Binding) -> dict[str, Any]:
    """The contracts under the names by which users import them, whatever the module."""
    trainer = _trainer(binding)
    return {
        "Trainer": trainer,
        "Seq2SeqTrainer": trainer,
        "LightningModule": _lightning_module(binding),
        "Fabric": _fabric(binding),
    }


class _Known(SimpleNamespace):
    """An object of which some attributes are known; the others are answered by their names."""

    def __init__(self, binding: Binding, text: str, **known: Any) -> None:
        super().__init__(**known)
        self._binding, self._text = binding, text

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        text = f"{self._text}.{name}"
        return self._binding.known(text)


def _in_ddp(module: Any) -> Any:
    """What trains on several ranks: the module in DDP; on one, itself."""
    alone = not dist.is_initialized() or dist.get_world_size() == 1
    return module if alone else nn.parallel.DistributedDataParallel(module)


def _trainer(binding: Binding) -> type:
    class Trainer:
        """Divides by the accumulation steps only where the loss is not told the window's number of items.

        Unless a subclass says whether its loss needs that.
        """

        loss_is_scaled_for_ga: bool | None = None

        def __init__(self, *_: Any, compute_loss_func: Callable[..., Any] | None = None, **__: Any):
            self.model = _model(binding)
            self.compute_loss_func = compute_loss_func
            # As for every language model whose forward takes keyword arguments.
            self.model_accepts_loss_kwargs = True
            self.label_smoother = None
            self.current_gradient_accumulation_steps = binding.steps_
            self.args = _Known(
                binding, "args", gradient_accumulation_steps=binding.steps_, bf16=False, fp16=False, n_gpu=1,
                device=binding.data.device, average_tokens_across_devices=True,
            )  # fmt: skip
            self.accelerator = _Known(
                binding, "accelerator", num_processes=1, device=binding.data.device, autocast=nullcontext,
                backward=torch.Tensor.backward,
            )  # fmt: skip

        def __getattr__(self, name: str) -> Any:
            return binding.attribute(self, name)

        def compute_loss(
            self,
            model: Any,
            inputs: Any,
            return_outputs: bool = False,
            num_items_in_batch: Any = None,
        ) -> Any:
            told = self.model_accepts_loss_kwargs and num_items_in_batch is not None
            given = {"num_items_in_batch": num_items_in_batch} if told else {}
            outputs = model(**inputs, **given)
            loss = outputs.loss
            if self.compute_loss_func is not None:
                labels = inputs["labels"]
                loss = self.compute_loss_func(
                    outputs, labels, num_items_in_batch=num_items_in_batch
                )
            return (loss, outputs) if return_outputs else loss

        def _prepare_inputs(self, inputs: Any) -> Any:
            return inputs

        _prepare_input = _prepare_inputs

        def compute_loss_context_manager(self) -> Any:
            return nullcontext()

        autocast_smart_context_manager = compute_loss_context_manager

        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            # Older ones have nothing to tell.
            takes = "num_items_in_batch" in inspect.signature(self.compute_loss).parameters
            told = {"num_items_in_batch": num_items_in_batch} if takes else {}
            loss = binding.given_loss(self.compute_loss(model, inputs, **told))
            scaled = self.loss_is_scaled_for_ga
            if scaled is None:
                scaled = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
            if not scaled:
                loss = loss / binding.steps_
            self.accelerator.backward(loss)
            return loss.detach()

        def train(self, *_: Any, **__: Any) -> None:
            model, steps = self.model, binding.steps_
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            # `self.model` stays what it was.
            wrapped = _in_ddp(model)
            own = next((binding.take(n) for n in _FEEDING if n in binding.given), None)
            while True:
                binding.turn(True)
                window: list[Any] = []
                places: list[int] = []
                while len(window) < steps:
                    window.append(binding.data.fetch() if own is None else next(own))
                    places.append(binding.data.fetched)
                counts = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
                labels = [_labels(batch) for batch in window]
                known = [one for one in labels if one is not None]
                items = sum((one != binding.data.ignored).sum() for one in known)
                told: tuple[Any, ...] = (items if counts else None,)
                if len(inspect.signature(self.training_step).parameters) == 2:
                    told = ()
                for place, batch in zip(places, window, strict=True):
                    last = place == places[-1]
                    binding.data.current = place
                    with nullcontext() if last or wrapped is model else wrapped.no_sync():
                        one = batch.use() if isinstance(batch, Batch) else batch
                        self.training_step(wrapped, one, *told)
                optimizer.step()
                optimizer.zero_grad()

    return Trainer


def _labels(batch: Any) -> Any:
    """The labels of a micro-batch; None where it has none."""
    if isinstance(batch, Batch):
        return batch.labels
    return batch.get("labels") if isinstance(batch, dict) else None


def _model(binding: Binding) -> Any:
    """What a Trainer trains: the model that a set-up file gives, or a fake."""
    given = next((n for n in ("model", "self.model") if n in binding.given), None)
    return binding.model("model") if given is None else binding.take(given)


def _lightning_module(binding: Binding) -> type:
    class LightningModule(nn.Module):
        """Automatic: the loss is divided by the accumulation steps. Manual: everything is the user's."""

        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()
            self.automatic_optimization = True
            self.trainer = SimpleNamespace(accumulate_grad_batches=binding.steps_)
            self.made: list[Any] = []
            self.toggled: list[Any] = []

        def optimizers(self, *_: Any, **__: Any) -> Any:
            return self._optimizers()[0] if len(self._optimizers()) == 1 else self._optimizers()

        def _optimizers(self) -> list[Any]:
            if not self.made:
                found = self.configure_optimizers()
                found = list(found) if isinstance(found, list | tuple) else [found]
                self.made.extend(o for o in found if isinstance(o, torch.optim.Optimizer))
                if not self.made:
                    self.made.append(binding.optimizer("optimizer"))
            return self.made

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return binding.model("model")(*args, **kwargs)

        def configure_optimizers(self) -> Any:
            return None

        def manual_backward(self, loss: Any, *args: Any, **kwargs: Any) -> None:
            loss.backward(*args, **kwargs)

        def log(self, *_: object, **__: object) -> None:
            pass

        log_dict = save_hyperparameters = log

        def clip_gradients(
            self,
            optimizer: Any,
            gradient_clip_val: Any = None,
            gradient_clip_algorithm: Any = None,
        ) -> None:
            given = [p for group in optimizer.param_groups for p in group["params"]]
            if gradient_clip_algorithm == "value":
                nn.utils.clip_grad_value_(given, gradient_clip_val)
            elif gradient_clip_val:
                nn.utils.clip_grad_norm_(given, gradient_clip_val)

        def toggle_optimizer(self, optimizer: Any, *_: object) -> None:
            """Only the optimizer's own parameters are trained until it is toggled back."""
            own = {id(p) for group in optimizer.param_groups for p in group["params"]}
            every = [p for o in self._optimizers() for g in o.param_groups for p in g["params"]]
            self.toggled = [p for p in every if id(p) not in own and p.requires_grad]
            for p in self.toggled:
                p.requires_grad_(False)

        def untoggle_optimizer(self, *_: object) -> None:
            for p in self.toggled:
                p.requires_grad_(True)
            self.toggled = []

        def fit(self) -> None:
            """Lightning's automatic loop."""
            training_step: Any = self.training_step
            number = 0
            while True:
                binding.turn(True)
                batch = binding.data.fetch().use()
                loss = training_step(batch, number)
                loss = loss["loss"] if isinstance(loss, dict) else loss
                (loss / binding.steps_).backward()
                number += 1
                if number % binding.steps_ == 0:
                    self.optimizers().step()
                    self.optimizers().zero_grad()

    return LightningModule


def _fabric(binding: Binding) -> type:
    class Fabric:
        """Wraps in DDP on several ranks, and never divides."""

        def __init__(self, *_: Any, **__: Any) -> None:
            self.device = binding.data.device
            self.world_size = dist.get_world_size() if dist.is_initialized() else 1
            self.global_rank = self.local_rank = binding.data.rank
            self.is_global_zero = binding.data.rank == 0

        def setup(self, module: Any, *optimizers: Any, **_: Any) -> Any:
            module = _in_ddp(module)
            return (module, *optimizers) if optimizers else module

        setup_module = setup

        def setup_optimizers(self, *optimizers: Any) -> Any:
            return optimizers[0] if len(optimizers) == 1 else optimizers

        def setup_dataloaders(self, *loaders: Any, **_: Any) -> Any:
            return loaders[0] if len(loaders) == 1 else loaders

        def backward(self, tensor: Any, *args: Any, **kwargs: Any) -> None:
            tensor.backward(*args, **{k: v for k, v in kwargs.items() if k != "model"})

        @contextmanager
        def no_backward_sync(
            self, module: Any, enabled: bool = True
        ) -> Generator[None, None, None]:
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

    return Fabric


def drive(kind: str, made: Any, binding: Binding) -> None:
    """Runs the framework's loop: `made` is an object of the user's class, or his function for the loss.

    Raises:
        Enough: when the run has seen as many updates as it needs.
        Unbound: where the framework's class, through one that is not here, is no base of the user's.
    """
    if kind == "trainer" and isinstance(made, Absent):
        missing = next(b.absent for b in type(made).__mro__ if "absent" in vars(b))
        raise Unbound(f"`{type(made).__name__}` is based on `{missing}`, which is not here")
    if kind == "loss":
        made = names(binding)["Trainer"](compute_loss_func=made)
    (made.fit if kind == "module" else made.train)()
    raise Enough
