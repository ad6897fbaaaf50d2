"""What has a role: models, optimizers, loaders …, how they come to be and who answers their methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from accumlint.reading import frameworks, names
from accumlint.reading import ir as p
from accumlint.tracing import trace as t
from accumlint.tracing.gradients.tensors import derived, flat
from accumlint.tracing.values import Lazy, Object, Unknown, Value

if TYPE_CHECKING:
    from accumlint.tracing.interpreter import Machine

# A role's methods: the object, the method's name, the arguments, the call; whether it was known, and what it gives.
_Handler: TypeAlias = Callable[
    [Object, str, list[Value], dict[str, Value], p.Node], tuple[bool, Value]
]

_MODULES = frozenset(
    {"Module", "LightningModule", "PreTrainedModel", "ModelMixin", "Sequential", "GPTPreTrainedModel"}
)  # fmt: skip
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


class Objects:
    """Makes objects with roles, and passes on what they are asked to do."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        updates, engines = machine.updates, machine.engines
        self._handlers: dict[str, _Handler] = {
            "optimizer": updates.optimizer_method,
            "scaler": updates.scaler_method,
            "scheduler": updates.scheduler_method,
            "model": self.model_method,
            "engine": engines.engine_method,
            "fabric": engines.fabric_method,
            "accelerator": engines.accelerator_method,
            "criterion": self._criterion_method,
            "loader": self._loader_method,
        }

    # Making

    def symbol(self, role: str, text: str, node: p.Node) -> Object:
        """An object known by its name alone; the same name is the same object."""
        machine = self.machine
        known = machine.symbols.get(text)
        if isinstance(known, Object) and known.role == role:
            return known
        networks = frozenset({text}) if role == "model" else frozenset[str]()
        found = Object(text, t.TrainingObject(role, text, "", node, False), networks=networks)
        machine.symbols[text] = found
        return found

    def made(
        self, role: str, text: str, kind: str, networks: frozenset[str], node: p.Node
    ) -> Object:
        """An object seen being built."""
        text = text or role
        if role == "model" and not networks:
            networks = frozenset({self._fresh(text)})
        self.machine.cross_file.lead(node)
        return Object(text, t.TrainingObject(role, text, kind, node, True), networks=networks)

    def _fresh(self, name: str) -> str:
        """A network's name that no other network of this run has."""
        known = self.machine.state.networks
        number = known[name] = known.get(name, 0) + 1
        return name if number == 1 else f"{name} #{number}"

    def part(self, model: Object, text: str) -> Object:
        """A submodule: its gradients are the model's."""
        return Object(text, None, networks=model.networks, wrapper=model.wrapper, inner=None)

    def rename(self, value: Object, path: str) -> None:
        """An object takes the first name that it is given."""
        traced = value.traced
        assert traced is not None
        if traced.certain and value.text == traced.role and not value.used:
            value.traced = t.TrainingObject(
                traced.role, path, traced.kind, traced.node, traced.certain
            )
            value.text = path
            value.used = True

    def instance(self, cls: p.Class, bases: set[str], node: p.Node, args: list[Value]) -> Object:
        """An instance of a class of this file."""
        role = ""
        if bases & _MODULES or any(
            b.endswith(("Module", "ForCausalLM", "PreTrainedModel")) for b in bases
        ):
            role = "model"
        elif bases & frameworks.OPTIMIZERS or "Optimizer" in bases:
            role = "optimizer"
        elif frameworks.is_scheduler(bases) and not skips_steps(cls):
            role = "scheduler"
        elif bases - {"object"} and _has_forward(cls):
            # A module by way of a base class that cannot be read.
            role = "model"
        low = cls.name.lower()
        if role == "model" and ("loss" in low or "criterion" in low):
            role = ""
        if role == "model" and bases <= {"Module", "object"} and _is_empty(cls):
            # What is not known may be a model.
            held = any(isinstance(a, Unknown) or getattr(a, "role", "") == "model" for a in args)
            role = "model" if held else ""
        if not role:
            return Object(cls.name, None, cls)
        self.machine.cross_file.lead(node)
        networks = frozenset({self._fresh(cls.name)}) if role == "model" else self.networks_of(args)
        inner = next((a for a in args if isinstance(a, Object) and a.role == "model"), None)
        if role == "model" and inner is not None:
            networks = networks | inner.networks
        return Object(
            role, t.TrainingObject(role, role, cls.name, node, True), cls, networks=networks
        )

    def told_a_model(self, value: Object, name: str, node: p.Node) -> None:
        """An instance called a model, of a class that works out a loss and whose bases are not read to the end."""
        function_calls, cross_file, cls = (
            self.machine.function_calls,
            self.machine.cross_file,
            value.cls,
        )
        if cls is None or value.networks or not function_calls.works_out_a_loss(cls):
            return
        read = (cross_file.cls(b, c.source) for c in function_calls.lineage(cls) for b in c.bases)
        if None in read and not any(map(cross_file.trains, cls.methods.values())):
            value.traced = t.TrainingObject("model", name, cls.name, node, True)
            value.networks = frozenset({self._fresh(cls.name)})

    def networks_of(self, values: Iterable[Value]) -> frozenset[str]:
        """The networks whose parameters are among some values."""
        found: set[str] = set()
        for value in flat(values):
            if isinstance(value, Unknown) or (
                isinstance(value, Object) and value.role in ("model", "engine", "")
            ):
                found |= value.networks
        return frozenset(found)

    # Attributes

    def attribute(self, base: Object, name: str, node: p.Node) -> Value | None:
        match base.role, name:
            case "accelerator", "sync_gradients":
                return base.sync
            case "accelerator", "gradient_accumulation_steps":
                return self.machine.engines.accumulation(base)
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
                return self.symbol("optimizer", f"{base.text}.optimizer", node)
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
                return self.symbol(base.role, f"{base.text}[{index!r}]", node)
            return base
        if isinstance(index, str):
            if f"[{index!r}]" in base.attributes:
                return base.attributes[f"[{index!r}]"]
            return self.machine.resolver.symbol(f"{base.text}[{index!r}]", index, node)
        return Unknown(f"{base.text}[…]")

    # Methods

    def method(
        self, base: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> tuple[bool, Value]:
        """What a method of an object does; the first part tells whether it was known."""
        handler = self._handlers.get(base.role)
        if handler is None:
            if base.networks:
                return self.model_method(base, name, args, kwargs, node)
            return False, None
        return handler(base, name, args, kwargs, node)

    def model_method(
        self, base: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> tuple[bool, Value]:
        if base.cls is not None and "LightningModule" in self.machine.function_calls.all_bases(
            base.cls
        ):
            special = self.machine.engines.framework_method(base, name, args, kwargs, node)
            if special is not None:
                return True, special[0]
        match name:
            case _ if names.is_clearing(name):
                self.machine.updates.wipe(base, node)
                return True, None
            case _ if name in _PARAMETERS:
                text = f"{base.text}.{name}()"
                return True, Unknown(text, networks=base.networks, parameters=True)
            case "no_sync":
                return True, self.machine.sync_contexts.no_sync(base, node)
            case "set_requires_gradient_sync":
                on = args[0] if args else kwargs.get("requires_gradient_sync")
                self.machine.sync_contexts.sync_flag(base, on, node, base.text)
                return True, None
            case "clip_grad_norm_" | "clip_grad_norm":
                self.machine.updates.clip([base], "fsdp", node, base.text)
                return True, Unknown("norm")
            case "backward" | "manual_backward":
                loss = args[0] if args else None
                divided = self.machine.engines.dividing(base, args, node)
                self.machine.losses.backward(loss, "engine", node, kwargs, divided, base.text)
                return True, None
            case "step" if not args:
                # What takes something steps something else: a diffusion's noise, an exploration, an environment.
                self.machine.engines.engine_step(base, node)
                return True, None
            case _ if name in _OF_ITSELF:
                return True, base
            case "forward" | "__call__":
                own = self.machine.function_calls.method_of(base.inner or base, "forward")
                return True, self.machine.losses.forward(base, args, kwargs, node, own)
            case "items" | "values" | "keys":
                # A dictionary of modules, whose name tells of one.
                return True, Lazy("items" if name == "items" else "iter", [base])
            case "generate" | "sample" | "decode":
                given = [a for a in flat(args) if isinstance(a, Unknown) and not a.networks]
                return True, derived(f"{base.text}.{name}(…)", *given)
            case _ if name in _QUIET_METHODS or name.startswith(_QUIET):
                given = [a for a in flat([*args, *kwargs.values()]) if isinstance(a, Unknown)]
                goes_forward = any(word in name for word in ("loss", "logits", "forward"))
                if goes_forward and given and not any(a.networks for a in given):
                    # A loss of data (`model.get_loss(batch)`): the model goes forward to work it out.
                    return True, self.machine.losses.forward(base, args, kwargs, node, None)
                if not any(isinstance(a, Unknown) and a.tensor for a in args):
                    return True, Unknown(f"{base.text}.{name}()")
                # A loss of what the model has given (`model.module.get_loss(outputs, targets)`).
                return False, None
            case _:
                models = [a for a in args if isinstance(a, Object) and a.role == "model"]
                by_name = base.traced is None or not base.traced.certain
                # What reads like a model and gets one (`diffusion.training_losses(model, x, t)`) only calls it.
                model = models[0] if models and by_name else base
                rest = [a for a in args if a is not model]
                return True, self.machine.losses.forward(model, rest, kwargs, node, None)

    def _criterion_method(
        self, base: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> tuple[bool, Value]:
        if name in ("to", "cuda", "train", "eval", "half", "float"):
            return True, base
        if name in ("forward", "__call__"):
            return True, self.machine.dispatch.call_object(base, args, kwargs, node)
        return False, None

    def _loader_method(
        self, base: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> tuple[bool, Value]:
        if "batch" in name or name in ("next", "__next__", "sample", "get", "next_batch", "fetch"):
            return True, self.machine.iteration.fetched(base, None)
        return True, Unknown(f"{base.text}.{name}(…)")

    def received(self, args: list[Value], kwargs: dict[str, Value]) -> set[str]:
        found: set[str] = set()
        roles = ("model", "optimizer", "scaler", "engine", "scheduler")
        for value in flat([*args, *kwargs.values()]):
            if isinstance(value, Object) and value.role in roles:
                found.add(value.role)
            elif isinstance(value, Unknown) and value.loss and value.networks:
                found.add("loss")
            elif isinstance(value, Unknown) and value.parameters:
                found.add("gradients")
        return found

    def traced(self, value: Object) -> t.TrainingObject:
        if value.traced is None:
            value.traced = t.TrainingObject("", value.text, "", self.machine.program.body[0], False)
        return value.traced


def skips_steps(cls: p.Class) -> bool:
    """True for a scheduler of the project's own that counts its calls and moves at some of them."""
    step = cls.methods.get("step")
    guards = (n for n in p.walk(step.body) if isinstance(n, p.If)) if step is not None else ()
    return any(" % " in p.render(guard.test) for guard in guards)


def _has_forward(cls: p.Class) -> bool:
    """True for a class with a forward pass; an autograd function's has a context first."""
    forward = cls.methods.get("forward")
    return forward is not None and bool(forward.params) and forward.params[0].name == "self"


def _is_empty(cls: p.Class) -> bool:
    """True for a module without parts and parameters, which is followed as a function is: a loss around a criterion."""
    init = cls.methods.get("__init__")
    calls = [n for n in p.walk(init.body) if isinstance(n, p.Call)] if init is not None else []
    built = {p.dotted(call.func).rpartition(".")[2] for call in calls} - {"super", "__init__"}
    return all(name.endswith("Loss") for name in built)
