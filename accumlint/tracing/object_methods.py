"""What models, optimizers, loaders and other objects with roles answer: their attributes, items and methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from accumlint.reading import ir as p
from accumlint.reading import names
from accumlint.tracing.calls.call import Answer, Call
from accumlint.tracing.calls.cross_file import CrossFile
from accumlint.tracing.gradients.engines import Engines
from accumlint.tracing.gradients.tensors import derived, flat
from accumlint.tracing.machine import Machine
from accumlint.tracing.name_resolver import NameResolver
from accumlint.tracing.values import Lazy, Object, Unknown, Value

# A role's methods.
_Handler: TypeAlias = Callable[[Object, Call], Answer]

# How the methods of a model begin that compute nothing, unless they are given data.
_QUIET = ("save", "load", "get_", "set_", "enable", "disable", "freeze", "unfreeze", "init")
# What gives all that a model is made of.
_PARAMETERS = frozenset(
    {"parameters", "named_parameters", "get_parameters", "trainable_parameters", "parameters_list"}
)
# What gives a model back itself.
_OF_ITSELF = frozenset(
    {"train", "eval", "to", "cuda", "cpu", "half", "float", "bfloat16", "requires_grad_", "compile"}
)
_QUIET_METHODS = frozenset(
    {
        "state_dict", "load_state_dict", "apply", "modules", "named_modules", "children", "named_children",
        "register_buffer", "register_parameter", "gradient_checkpointing_enable", "enable_gradient_checkpointing",
        "gradient_checkpointing_disable", "save_pretrained", "push_to_hub", "register_forward_hook",
        "register_comm_hook", "register_hook", "buffers", "named_buffers", "extra_repr", "share_memory", "double",
        "add_module", "set_attn_processor", "enable_xformers_memory_efficient_attention", "save_checkpoint",
        "load_checkpoint", "configure_optimizers", "enable_input_require_grads", "print_trainable_parameters",
        "set_epoch", "update", "reset", "num_parameters", "resize_token_embeddings", "get_input_embeddings",
        "eval_", "add_adapter", "log", "join", "append", "extend", "insert", "register_module",
        "register_forward_pre_hook", "register_full_backward_hook", "register_load_state_dict_post_hook", "to_empty",
        "tie_weights", "type",
    }
)  # fmt: skip


@dataclass(eq=False, repr=False)
class ObjectMethods:
    """Passes on what objects with roles are asked to do."""

    machine: Machine
    cross_file: CrossFile
    resolver: NameResolver
    engines: Engines

    def __post_init__(self) -> None:
        self.objects = self.resolver.objects
        self.updates, self.sync_contexts = self.engines.updates, self.engines.sync_contexts
        self.losses = self.updates.losses
        self._handlers: dict[str, _Handler] = {
            "optimizer": self.updates.optimizer_method,
            "scaler": self.updates.scaler_method,
            "scheduler": self.updates.scheduler_method,
            "model": self.model_method,
            "engine": self.engines.engine_method,
            "fabric": self.engines.fabric_method,
            "accelerator": self.engines.accelerator_method,
            "criterion": self._criterion_method,
            "loader": self._loader_method,
        }

    def attribute(self, base: Object, name: str, node: p.Node) -> Value | None:
        match base.role, name:
            case "accelerator", "sync_gradients":
                return base.sync
            case "accelerator", "gradient_accumulation_steps":
                return self.engines.accumulation(base)
            case (
                "accelerator" | "fabric",
                "is_main_process" | "is_local_main_process" | "is_global_zero",
            ):
                return Unknown(f"{base.text}.{name}", hint=True)
            case ("accelerator", "optimizer_step_was_skipped") | ("optimizer", "step_was_skipped"):
                return Unknown(names.skipped_step(base.text))
            case "model" | "engine", "module":
                if base.inner is not None:
                    return base.inner
                if base.wrapper or base.prepared or base.role == "engine":
                    return self._unwrapped(base)
                return base
            case "optimizer", "optimizer" | "_optimizer":
                return base
            case "optimizer", "param_groups":
                params = Unknown(f"{base.text}.params", networks=base.networks, parameters=True)
                return [{"params": params, "lr": Unknown("lr")}]
            case "scheduler" | "loader", "optimizer":
                return self.objects.symbol("optimizer", f"{base.text}.optimizer", node)
            case "engine", "optimizer":
                return base.attributes.setdefault("optimizer", Unknown(f"{base.text}.optimizer"))
            case "model", "require_backward_grad_sync":
                return bool(self.machine.state.flags.get(next(iter(base.networks), ""), True))
            case _:
                return None

    def _unwrapped(self, base: Object) -> Object:
        text = f"{base.text}.module"
        found = self.machine.symbols.get(text)
        if not isinstance(found, Object):
            found = Object(text, base.traced, networks=base.networks)
            self.machine.symbols[text] = found
        return found

    def set_attribute(self, receiver: Object, name: str, value: Value) -> None:
        sets_steps = receiver.role == "accelerator" and name == "gradient_accumulation_steps"
        if sets_steps and isinstance(value, int):
            receiver.steps = value

    def item(self, base: Object, index: Value, node: p.Item) -> Value:
        if base.role in ("optimizer", "scheduler", "model", "scaler", "criterion"):
            if isinstance(index, str):
                return self.objects.symbol(base.role, f"{base.text}[{index!r}]", node)
            return base
        if isinstance(index, str):
            if f"[{index!r}]" in base.attributes:
                return base.attributes[f"[{index!r}]"]
            return self.resolver.symbol(f"{base.text}[{index!r}]", index, node)
        return Unknown(f"{base.text}[…]")

    # Methods

    def method(self, base: Object, call: Call) -> Answer:
        """What a method of an object does; NotImplemented for one that is not known."""
        handler = self._handlers.get(base.role)
        found = handler(base, call) if handler is not None else NotImplemented
        like_a_model = base.role == "engine" or (handler is None and base.networks)
        return self.model_method(base, call) if found is NotImplemented and like_a_model else found

    def model_method(self, base: Object, call: Call) -> Answer:
        if base.cls is not None and "LightningModule" in self.cross_file.all_bases(base.cls):
            special = self.engines.framework_method(base, call)
            if special is not NotImplemented:
                return special
        args, node = call.args, call.node
        match call.path:
            case name if names.is_clearing(name):
                self.updates.wipe(base, node)
                return None
            case name if name in _PARAMETERS:
                text = f"{base.text}.{name}()"
                return Unknown(text, networks=base.networks, parameters=True)
            case "no_sync":
                return self.sync_contexts.no_sync(base)
            case "set_requires_gradient_sync":
                on = call.argument(0, "requires_gradient_sync")
                self.sync_contexts.sync_flag(base, on, node, base.text)
                return None
            case "clip_grad_norm_" | "clip_grad_norm":
                self.updates.clip([base], "fsdp", node, base.text)
                return Unknown("norm")
            case "backward" | "manual_backward":
                self.engines.backward(base, call)
                return None
            case "step" if not args:
                # What takes something steps something else: a diffusion's noise, an exploration, an environment.
                self.engines.engine_step(base, node)
                return None
            case name if name in _OF_ITSELF:
                return base
            case "forward" | "__call__":
                own = self.cross_file.method_of(base.inner or base, "forward")
                return self.losses.forward(base, call, own)
            case "items" | "values" | "keys" as name:
                # A dictionary of modules, whose name tells of one.
                return Lazy("items" if name == "items" else "iter", [base])
            case "generate" | "sample" | "decode" as name:
                given = [a for a in flat(args) if isinstance(a, Unknown) and not a.networks]
                return derived(f"{base.text}.{name}(…)", *given)
            case name if name in _QUIET_METHODS or name.startswith(_QUIET):
                given = [a for a in flat(call.given) if isinstance(a, Unknown)]
                goes_forward = any(word in name for word in ("loss", "logits", "forward"))
                if goes_forward and given and not any(a.networks for a in given):
                    # A loss of data (`model.get_loss(batch)`): the model goes forward to work it out.
                    return self.losses.forward(base, call, None)
                if not any(isinstance(a, Unknown) and a.tensor for a in args):
                    return Unknown(f"{base.text}.{name}()")
                # A loss of what the model has given (`model.module.get_loss(outputs, targets)`).
                return NotImplemented
            case _:
                models = [a for a in args if isinstance(a, Object) and a.role == "model"]
                by_name = base.traced is None or not base.traced.certain
                # What reads like a model and gets one (`diffusion.training_losses(model, x, t)`) only calls it.
                model = models[0] if models and by_name else base
                rest = [a for a in args if a is not model]
                return self.losses.forward(model, replace(call, args=rest), None)

    def _criterion_method(self, base: Object, call: Call) -> Answer:
        if call.path in ("to", "cuda", "train", "eval", "half", "float"):
            return base
        if call.path in ("forward", "__call__"):
            return self.machine.apply(base, call.args, call.kwargs, call.node)
        return NotImplemented

    def _loader_method(self, base: Object, call: Call) -> Answer:
        name = call.path
        if "batch" in name or name in ("next", "__next__", "sample", "get", "next_batch", "fetch"):
            return self.machine.fetched(base, None)
        return Unknown(f"{base.text}.{name}(…)")
