"""What optimizers, models, scalers, schedulers, accelerators and engines do: the events of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias

from accumlint.reading import frameworks, names
from accumlint.reading import program as p
from accumlint.reading.relevance import key
from accumlint.tracing import trace as t
from accumlint.tracing.numeric import word
from accumlint.tracing.tensors import derived, flat, scaled
from accumlint.tracing.values import (
    Batch,
    Bound,
    Closure,
    Context,
    Native,
    Number,
    Object,
    Term,
    Unknown,
    Value,
)

if TYPE_CHECKING:
    from accumlint.tracing.calling import Calling
    from accumlint.tracing.machine import Machine

# A role's methods: the thing, the method's name, the arguments, the call; whether it was known, and what it gives.
_Handler: TypeAlias = Callable[
    [Object, str, list[Value], dict[str, Value], p.Node], tuple[bool, Value]
]

_MODULES = frozenset(
    {
        "Module",
        "LightningModule",
        "PreTrainedModel",
        "ModelMixin",
        "Sequential",
        "GPTPreTrainedModel",
    }
)
_QUIET_METHODS = frozenset(
    {
        "train", "eval", "to", "cuda", "cpu", "half", "float", "bfloat16", "state_dict", "load_state_dict",
        "apply", "requires_grad_", "modules", "named_modules", "children", "named_children", "register_buffer",
        "register_parameter", "gradient_checkpointing_enable", "enable_gradient_checkpointing",
        "gradient_checkpointing_disable", "save_pretrained", "push_to_hub", "compile", "register_forward_hook",
        "register_comm_hook", "register_hook", "buffers", "named_buffers", "extra_repr", "share_memory", "double",
        "add_module", "set_attn_processor", "enable_xformers_memory_efficient_attention", "save_checkpoint",
        "load_checkpoint", "configure_optimizers", "enable_input_require_grads", "print_trainable_parameters",
        "set_epoch", "update", "reset", "num_parameters", "resize_token_embeddings", "get_input_embeddings",
        "eval_", "add_adapter", "log", "join",
    }
)  # fmt: skip


class Things:
    """Makes things with roles, and turns what they are asked to do into events."""

    def __init__(self, machine: Machine, calling: Calling) -> None:
        self.machine = machine
        self.calling = calling
        self.accelerator: Object | None = None
        self.prepared_any = False
        self.handed_any = False
        self._handlers: dict[str, _Handler] = {
            "optimizer": self._optimizer_method,
            "scaler": self._scaler_method,
            "scheduler": self._scheduler_method,
            "model": self._model_method,
            "engine": self._engine_method,
            "fabric": self._fabric_method,
            "accelerator": self._accelerator_method,
            "criterion": self._criterion_method,
            "loader": self._loader_method,
        }

    # Making

    def symbol(self, role: str, text: str, node: p.Node) -> Object:
        """A thing known by its name alone; the same name is the same thing."""
        machine = self.machine
        known = machine.symbols.get(text)
        if isinstance(known, Object) and known.role == role:
            return known
        networks = frozenset({text}) if role == "model" else frozenset[str]()
        found = Object(text, t.Thing(role, text, "", node, False), networks=networks)
        machine.symbols[text] = found
        return found

    def made(
        self, role: str, text: str, kind: str, networks: frozenset[str], node: p.Node
    ) -> Object:
        """A thing seen being built."""
        text = text or self.calling.naming or role
        if role == "model" and not networks:
            networks = frozenset({self._fresh(text)})
        self.machine.elsewhere.lead(node)
        return Object(text, t.Thing(role, text, kind, node, True), networks=networks)

    def _fresh(self, name: str) -> str:
        """A network's name that no other network of this run has."""
        known = self.machine.state.networks
        number = known[name] = known.get(name, 0) + 1
        return name if number == 1 else f"{name} #{number}"

    def part(self, model: Object, text: str) -> Object:
        """A submodule: its gradients are the model's."""
        return Object(text, None, networks=model.networks, wrapper=model.wrapper, inner=None)

    def rename(self, value: Object, path: str) -> None:
        """A thing takes the first name that it is given."""
        thing = value.thing
        assert thing is not None
        if thing.certain and value.text == thing.role and not value.used:
            value.thing = t.Thing(thing.role, path, thing.kind, thing.node, thing.certain)
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
        elif bases - {"object"} and _has_forward(cls):
            # A module by way of a base class that cannot be read.
            role = "model"
        low = cls.name.lower()
        if role == "model" and ("loss" in low or "criterion" in low):
            role = ""
        if not role:
            return Object(cls.name, None, cls)
        self.machine.elsewhere.lead(node)
        networks = frozenset({self._fresh(cls.name)}) if role == "model" else self.networks_of(args)
        inner = next((a for a in args if isinstance(a, Object) and a.role == "model"), None)
        if role == "model" and inner is not None:
            networks = networks | inner.networks
        return Object(role, t.Thing(role, role, cls.name, node, True), cls, networks=networks)

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
                return self.accumulation(base)
            case (
                "accelerator" | "fabric",
                "is_main_process" | "is_local_main_process" | "is_global_zero",
            ):
                return Unknown(f"{base.text}.{name}", hint=True)
            case "accelerator", "optimizer_step_was_skipped":
                return Unknown(names.skipped_step(base.text))
            case "optimizer", "step_was_skipped":
                return Unknown(names.skipped_step(base.text))
            case "model" | "engine", "module":
                if base.inner is not None:
                    return base.inner
                if base.wrapper or base.role == "engine":
                    return self._unwrapped(base)
                return base
            case "optimizer", "optimizer":
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
            found = Object(text, base.thing, networks=base.networks)
            self.machine.symbols[text] = found
        return found

    def set_attribute(self, receiver: Object, name: str, value: Value) -> None:
        if (
            receiver.role == "accelerator"
            and name == "gradient_accumulation_steps"
            and isinstance(value, int)
        ):
            receiver.steps = value

    def item(self, base: Object, index: Value, node: p.Item) -> Value:
        if base.role in ("optimizer", "scheduler", "model", "scaler", "criterion"):
            if isinstance(index, str):
                return self.symbol(base.role, f"{base.text}[{index!r}]", node)
            if isinstance(index, slice):
                return base
            return base
        if isinstance(index, str):
            if f"[{index!r}]" in base.attributes:
                return base.attributes[f"[{index!r}]"]
            return self.calling.symbol(f"{base.text}[{index!r}]", index, node)
        return Unknown(f"{base.text}[…]")

    # Forward

    def forward(
        self,
        model: Object,
        args: list[Value],
        kwargs: dict[str, Value],
        node: p.Node,
        method: Bound | None,
    ) -> Value:
        machine = self.machine
        state = machine.state
        everything = flat([*args, *kwargs.values()])
        batches = frozenset[Batch]().union(
            *(a.batches for a in everything if isinstance(a, Unknown))
        )
        networks = model.networks or (
            model.inner.networks if model.inner is not None else frozenset()
        )
        if not batches and state.loops and not state.no_grad:
            batches = frozenset({self.calling.piece_of_iteration()})
        forwards: tuple[t.Forward, ...] = ()
        if not state.no_grad and not state.inside:
            forwards = (self._forward_event(model, networks, batches, node),)
        value: Value = None
        if (
            method is not None
            and state.depth < 6
            and key(method.closure.function) not in machine.relevance.reaching_backward
            and not machine.elsewhere.refuses(method.closure.function)
        ):
            receiver = (
                model.inner if model.inner is not None and model.inner.cls is not None else model
            )
            state.inside += 1
            try:
                value = _merged(self.calling.invoke(method.closure, args, kwargs, receiver, node))
            finally:
                state.inside -= 1
            if not _holds_loss(value):
                # Another file's model is executed for the sake of its loss alone.
                machine.elsewhere.refuse(method.closure.function)
        if value is None:
            value = derived(f"{model.text}(…)", *everything, node=node)
        return self.tinted(value, batches, networks if not state.no_grad else None, forwards)

    def _forward_event(
        self, model: Object, networks: frozenset[str], batches: frozenset[Batch], node: p.Node
    ) -> t.Forward:
        machine = self.machine
        state = machine.state
        wrapper = next((state.wrappers[n] for n in networks if n in state.wrappers), "")
        # FSDP changes the module itself; only DDP has something inside that can be called past it.
        inner = model in state.wrapped or model.text.endswith(".module")
        bypassed = wrapper == "ddp" and not model.wrapper and inner
        armed: bool | None = None
        if wrapper in ("ddp", "fsdp", "fabric", "accelerate", "fsdp2"):
            on = [state.flags.get(n, True) for n in networks if n in state.wrappers]
            armed = all(f is not False for f in on) and not any(
                n in state.silenced for n in networks
            )
        if batches:
            latest = max(batches, key=lambda b: b.serial)
            state.current = machine.ordinal(latest.when)
        thing = model.thing or t.Thing("model", model.text, "", node, False)
        event = t.Forward(*machine.stamp(node, model.text), thing, armed, bypassed, wrapper)
        machine.emit(event)
        return event

    def silent_forward(self, model: Object, node: p.Node) -> tuple[t.Forward, ...]:
        """The forward inside a call that cannot be followed: it leaves no event, only the state of the sync flag."""
        machine = self.machine
        state = machine.state
        wrapper = next((state.wrappers[n] for n in model.networks if n in state.wrappers), "")
        if not wrapper:
            return ()
        armed = not any(n in state.silenced for n in model.networks) and all(
            state.flags.get(n, True) is not False for n in model.networks
        )
        thing = model.thing or t.Thing("model", model.text, "", node, False)
        return (t.Forward(*machine.stamp(node, model.text), thing, armed, False, wrapper),)

    def part_of(
        self,
        model: Object,
        value: Value,
        args: list[Value],
        kwargs: dict[str, Value],
        node: p.Node,
        name: str,
    ) -> Value:
        """What a model's own method returns carries the model's gradient."""
        everything = flat([*args, *kwargs.values()])
        if not any(isinstance(a, Unknown) and a.batches for a in everything):
            return value
        return self.forward_like(model, value, everything, node)

    def forward_like(
        self, model: Object, value: Value, everything: list[Value], node: p.Node
    ) -> Value:
        state = self.machine.state
        batches = frozenset[Batch]().union(
            *(a.batches for a in everything if isinstance(a, Unknown))
        )
        forwards = () if state.no_grad else self.silent_forward(model, node)
        return self.tinted(value, batches, None if state.no_grad else model.networks, forwards)

    def tinted(
        self,
        value: Value,
        batches: frozenset[Batch],
        networks: frozenset[str] | None,
        forwards: tuple[t.Forward, ...],
    ) -> Value:
        """A result with what the call adds: data, networks (None: the graph is off), forwards."""
        match value:
            case tuple():
                return tuple(self.tinted(v, batches, networks, forwards) for v in value)
            case list():
                return [self.tinted(v, batches, networks, forwards) for v in value]
            case dict():
                return {k: self.tinted(v, batches, networks, forwards) for k, v in value.items()}
            case Unknown():
                return self._tinted(value, batches, networks, forwards)
            case _:
                return value

    def _tinted(
        self,
        value: Unknown,
        batches: frozenset[Batch],
        networks: frozenset[str] | None,
        forwards: tuple[t.Forward, ...],
    ) -> Unknown:
        found = Unknown(
            value.text,
            value.batches | batches,
            frozenset() if networks is None else value.networks | networks,
            forwards + value.forwards,
            None, value.loss, value.lost, value.reduction, value.varies, value.scaler, "", value.count,
            None, value.origin, over=value.over, counted=value.counted, divisor=value.divisor, whole=value.whole,
        )  # fmt: skip
        for name, child in value.attributes.items():
            found.attributes[name] = self.tinted(child, batches, networks, forwards)
        if value.terms is not None:
            found.terms = tuple(
                replace(
                    x,
                    atom=self._tinted(x.atom, batches, networks, forwards)
                    if x.atom is not value
                    else found,
                )
                for x in value.terms
            )
        return found

    # Backward

    def backward(
        self,
        loss: Value,
        via: str,
        node: p.Node,
        kwargs: dict[str, Value],
        divided: int | None = 1,
        subject: str = "",
    ) -> None:
        """A backward pass: every term of the loss leaves its gradient in its networks."""
        machine = self.machine
        state = machine.state
        if isinstance(loss, list | tuple):
            for part in loss:
                self.backward(part, via, node, kwargs, divided, subject)
            return
        if not isinstance(loss, Unknown):
            loss = Unknown("loss", loss=True, lost=isinstance(loss, Number))
        if state.no_grad:
            return
        if not loss.tensor:
            # Nothing is known of how it was made.
            loss.lost = True
        scaler = loss.scaler if loss.scaler is not None and loss.scaler.enabled else None
        index = len(state.events)
        pieces: list[t.Contribution] = []
        terms = [x for x in loss.linear if x.atom.networks] or list(loss.linear)
        state.current = machine.ordinal(self._key(loss, terms))
        silenced = bool(state.silenced)
        event = t.Backward(
            node, index, state.current, state.epoch, subject or loss.text, via, _written(node, loss.text), (), silenced,
            bool(state.accumulating), self._retains(kwargs), loss.lost, divided,
            scaler.thing if scaler is not None else None,
            tuple(dict.fromkeys(f for x in terms for f in x.atom.forwards)), bool(state.autocast),
        )  # fmt: skip
        summed = _summed_over_microbatches(terms)
        for term in terms:
            pieces.extend(self._contributions(term, loss, event, divided, scaler, summed))
        object.__setattr__(event, "contributions", tuple(pieces))
        machine.emit(event)
        for piece in pieces:
            state.ledger.add(piece)

    def _retains(self, kwargs: dict[str, Value]) -> bool:
        return kwargs.get("retain_graph") is True

    def _key(self, loss: Unknown, terms: list[Term]) -> object:
        batches = frozenset[Batch]().union(*(x.atom.batches for x in terms)) or loss.batches
        if batches:
            return max(batches, key=lambda b: b.serial).when
        return (self.machine.iteration(), 1)

    def _contributions(
        self,
        term: Term,
        loss: Unknown,
        event: t.Backward,
        divided: int | None,
        scaler: Object | None,
        summed: bool,
    ) -> Iterable[t.Contribution]:
        state = self.machine.state
        atom = term.atom
        spans = _spans(atom)
        microbatch = spans[0] if summed else event.microbatch
        weight = term.factor
        if atom.lost or loss.lost or divided is None:
            weight = None
        elif weight is not None and divided != 1:
            weight = weight / divided
        origin = f"{atom.text}@{id(atom.origin) if atom.origin is not None else ''}"
        for network in sorted(atom.networks) or ["?"]:
            synced: bool | None = None
            forward = atom.forwards[0] if atom.forwards else None
            # An engine reduces by itself, whatever the module's own flags say.
            if (
                event.via not in ("engine", "accelerator")
                and network in state.wrappers
                and state.wrappers[network] in ("ddp", "fsdp", "fabric", "fsdp2")
            ):
                forwards = [f for f in atom.forwards if f.armed is not None]
                last = forwards[0] if forwards else None
                synced = None if last is None else bool(last.armed) and not last.bypassed
                if state.wrappers[network] == "fsdp2":
                    synced = None
            wrapper = state.wrappers.get(network, "")
            if event.via in ("accelerator", "fabric"):
                wrapper = {"accelerator": "accelerate"}.get(event.via, event.via)
            elif event.via == "engine":
                wrapper = ""
            yield t.Contribution(
                microbatch, event, network, weight, tuple(sorted(term.symbols)), atom.reduction,
                atom.varies or loss.varies, scaler is not None, synced, origin, forward, spans, wrapper, term.ranks,
                loss.over or atom.over, atom.divisor,
            )  # fmt: skip

    def native_scaler(
        self, scaler: Object, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> Value:
        """timm's `loss_scaler(loss, optimizer, clip_grad=…, update_grad=…)`: backward, and at the boundary the rest."""
        loss = args[0]
        optimizer = args[1] if len(args) > 1 else kwargs.get("optimizer")
        if isinstance(loss, Unknown):
            loss = scaled(loss, Fraction(1), "", node)
            loss.scaler = scaler
        self.backward(loss, "scaler", node, kwargs, subject=scaler.text)
        update = kwargs.get("update_grad", kwargs.get("need_update", True))
        known = self.machine.known_truth(update)
        if known is False or not isinstance(optimizer, Object):
            return Unknown("norm")
        thing = self._thing(scaler)
        state = self.machine.state
        pending = state.ledger.pending_of(optimizer)
        self.machine.emit(
            t.Unscale(*self.machine.stamp(node, scaler.text), thing, optimizer.thing, pending)
        )
        state.ledger.unscale(optimizer)
        if kwargs.get("clip_grad") is not None:
            self.machine.emit(
                t.Clip(
                    *self.machine.stamp(node, scaler.text),
                    state.ledger.pending_of(optimizer),
                    False,
                    "torch",
                )
            )
        self.step(optimizer, node, scaler, gated=False)
        self.machine.emit(t.Update(*self.machine.stamp(node, scaler.text), thing))
        return Unknown("norm")

    # Methods

    def method(
        self, base: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> tuple[bool, Value]:
        """What a thing's method does; the first part tells whether it was known."""
        handler = self._handlers.get(base.role)
        if handler is None:
            if base.networks:
                return self._model_method(base, name, args, kwargs, node)
            return False, None
        return handler(base, name, args, kwargs, node)

    def _optimizer_method(
        self, base: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> tuple[bool, Value]:
        match name:
            case "step" | "step_and_update_lr" | "optimizer_step":
                closure = args[0] if args else kwargs.get("closure")
                if closure is not None and not isinstance(closure, Unknown | Number):
                    state = self.machine.state
                    state.closures += 1
                    self.calling.apply(closure, [], {}, node)
                    state.closures -= 1
                if self.gate(base):
                    self.step(base, node, None, gated=self.gated(base))
                return True, None
            case "zero_grad" | "clear_grad":
                if self.gate(base):
                    self.clear(base, node)
                return True, None
            case "backward":
                self.backward(
                    args[0] if args else None, "engine", node, kwargs, divided=1, subject=base.text
                )
                return True, None
            case "clip_master_grads" | "clip_grad_norm" | "clip_grad_norm_":
                self.clip([base], "engine", node, base.text)
                return True, Unknown("norm")
            case "multiply_grads" | "scale_grads":
                self.rescaled(base, "…", False, node)
                return True, None
            case (
                "state_dict"
                | "load_state_dict"
                | "add_param_group"
                | "train"
                | "eval"
                | "consolidate_state_dict"
                | "get_lr"
            ):
                return True, Unknown(f"{base.text}.{name}()")
            case _:
                return False, None

    def _scaler_method(
        self, base: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> tuple[bool, Value]:
        machine = self.machine
        state = machine.state
        thing = self._thing(base)
        optimizer = next((a for a in args if isinstance(a, Object) and a.role == "optimizer"), None)
        match name:
            case "scale":
                value = args[0] if args else None
                if isinstance(value, list | tuple):
                    value = next((v for v in value if isinstance(v, Unknown)), None)
                if not isinstance(value, Unknown):
                    return True, value
                found = scaled(value, Fraction(1), "", node)
                found.scaler = base
                return True, found
            case "unscale_":
                pending = (
                    state.ledger.pending_of(optimizer) if optimizer else state.ledger.pending()
                )
                if base.enabled:
                    machine.emit(
                        t.Unscale(
                            *machine.stamp(node, base.text),
                            thing,
                            optimizer.thing if optimizer else None,
                            pending,
                        )
                    )
                state.ledger.unscale(optimizer)
                return True, None
            case "step":
                target = optimizer
                if target is None and args:
                    shown = args[0].text if isinstance(args[0], Unknown | Object) else "optimizer"
                    target = self.symbol("optimizer", shown, node)
                if target is not None and self.gate(target):
                    self.step(target, node, base if base.enabled else None, gated=False)
                return True, None
            case "update":
                if base.enabled:
                    machine.emit(t.Update(*machine.stamp(node, base.text), thing))
                return True, None
            case "get_scale":
                scale = (base, len(state.events))
                return True, Unknown(f"{base.text}.get_scale()", scale=scale)
            case "state_dict" | "load_state_dict" | "is_enabled":
                return True, Unknown(f"{base.text}.{name}()")
            case _:
                return False, None

    def _scheduler_method(
        self, base: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> tuple[bool, Value]:
        if name in ("step", "step_update", "step_batch"):
            machine = self.machine
            gated = base.prepared or (
                bool(machine.state.accumulating) and not self._unprepared(base)
            )
            accelerator = self._accelerator()
            if gated and accelerator is not None and not accelerator.sync:
                return True, None
            outside = not any(
                loop.node in machine.relevance.backwards and not machine.holds_loop(loop.node)
                for loop in machine.state.loops
            )
            machine.emit(
                t.Schedule(
                    *machine.stamp(node, base.text),
                    self._thing(base),
                    gated,
                    outside
                    or bool(
                        args
                        and base.role == "scheduler"
                        and name == "step"
                        and isinstance(args[0], Unknown)
                        and args[0].tensor
                    ),
                )
            )
            return True, None
        if name in ("state_dict", "load_state_dict", "get_last_lr", "get_lr", "print_lr"):
            return True, Unknown(f"{base.text}.{name}()")
        return False, None

    def _model_method(
        self, base: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> tuple[bool, Value]:
        if base.cls is not None and "LightningModule" in self.calling.all_bases(base.cls):
            special = self.framework_method(base, name, args, kwargs, node)
            if special is not None:
                return True, special[0]
        match name:
            case "zero_grad":
                self.wipe(base, node)
                return True, None
            case (
                "parameters"
                | "named_parameters"
                | "get_parameters"
                | "trainable_parameters"
                | "parameters_list"
            ):
                return True, Unknown(
                    f"{base.text}.{name}()", networks=base.networks, parameters=True
                )
            case "no_sync":
                return True, self.no_sync(base, node)
            case "set_requires_gradient_sync":
                self.sync_flag(
                    base, args[0] if args else kwargs.get("requires_gradient_sync"), node, base.text
                )
                return True, None
            case "clip_grad_norm_" | "clip_grad_norm":
                self.clip([base], "fsdp", node, base.text)
                return True, Unknown("norm")
            case "backward" | "manual_backward":
                self.backward(
                    args[0] if args else None,
                    "engine",
                    node,
                    kwargs,
                    divided=self._engine_steps(base),
                    subject=base.text,
                )
                return True, None
            case "step":
                self._engine_step(base, node)
                return True, None
            case (
                "train"
                | "eval"
                | "to"
                | "cuda"
                | "cpu"
                | "half"
                | "float"
                | "bfloat16"
                | "requires_grad_"
                | "compile"
            ):
                return True, base
            case "forward" | "__call__":
                return True, self.forward(
                    base, args, kwargs, node, self.calling.method_of(base.inner or base, "forward")
                )
            case "generate" | "sample" | "decode":
                return True, derived(
                    f"{base.text}.{name}(…)",
                    *[a for a in flat(args) if isinstance(a, Unknown) and not a.networks],
                )
            case _ if name in _QUIET_METHODS or name.startswith(
                ("save", "load", "get_", "set_", "enable", "disable", "freeze", "unfreeze", "init")
            ):
                return True, Unknown(f"{base.text}.{name}()")
            case _:
                return True, self.forward(base, args, kwargs, node, None)

    def _engine_method(
        self, base: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> tuple[bool, Value]:
        match name:
            case "backward":
                steps = self._engine_steps(base)
                if kwargs.get("scale_wrt_gas") is False:
                    steps = 1
                self.backward(
                    args[0] if args else kwargs.get("loss"),
                    "engine",
                    node,
                    kwargs,
                    divided=steps,
                    subject=base.text,
                )
                return True, args[0] if args else None
            case "step":
                self._engine_step(base, node)
                return True, None
            case "is_gradient_accumulation_boundary":
                return True, (base.counter + 1) % (self._engine_steps(base) or 1) == 0
            case "gradient_accumulation_steps":
                return True, self._engine_steps(base) or Unknown("steps")
            case "zero_grad":
                if base.thing is not None and base.thing.certain:
                    return True, None
                self.wipe(base, node)
                return True, None
            case "train_batch":
                return True, Unknown("loss")
            case _:
                return self._model_method(base, name, args, kwargs, node)

    def _engine_steps(self, base: Object) -> int | None:
        """What an engine divides by: its own configuration's steps where the engine is known to be DeepSpeed's."""
        if base.steps is not None:
            return base.steps
        if base.thing is not None and base.thing.kind == "deepspeed":
            if not self.machine.speaks_of_steps():
                # Only its configuration could tell of a window, and nobody here counts on one.
                return 1
            self.machine.state.asked = True
            return self.machine.scenario.steps
        return None

    def _engine_step(self, base: Object, node: p.Node) -> None:
        steps = self._engine_steps(base)
        machine = self.machine
        machine.emit(t.EngineCall(*machine.stamp(node, base.text), self._thing(base), base.steps))
        base.counter += 1
        if steps is not None and base.counter % steps:
            return
        optimizer = base.attributes.get("optimizer")
        if not isinstance(optimizer, Object):
            optimizer = Object(
                base.text, t.Thing("optimizer", base.text, "", node, False), networks=base.networks
            )
            base.attributes["optimizer"] = optimizer
        self.step(optimizer, node, None, gated=True)
        self.machine.state.ledger.clear(optimizer)

    def _fabric_method(
        self, base: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> tuple[bool, Value]:
        match name:
            case "backward":
                self.backward(args[0] if args else None, "fabric", node, kwargs, subject=base.text)
                return True, None
            case "setup" | "setup_module" | "setup_optimizers" | "setup_dataloaders" | "prepare":
                return True, self.passed(args)
            case "clip_gradients":
                self.clip(flat(args), "fabric", node, base.text)
                return True, Unknown("norm")
            case "no_backward_sync":
                model = next((a for a in args if isinstance(a, Object)), None)
                enabled = kwargs.get("enabled", args[1] if len(args) > 1 else True)
                if model is None or enabled is False:
                    return True, Context("plain")
                if enabled is not True and not self.decided(enabled, node):
                    return True, Context("plain")
                return True, self.no_sync(model, node, "fabric")
            case (
                "launch"
                | "print"
                | "log"
                | "log_dict"
                | "barrier"
                | "seed_everything"
                | "save"
                | "load"
                | "call"
            ):
                return True, None
            case _:
                return True, Unknown(f"{base.text}.{name}()")

    def _accelerator_method(
        self, base: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> tuple[bool, Value]:
        self.accelerator = base
        match name:
            case "backward":
                loss = args[0] if args else kwargs.get("loss")
                self.backward(
                    loss,
                    "accelerator",
                    node,
                    kwargs,
                    divided=self.accumulation(base),
                    subject=base.text,
                )
                return True, None
            case (
                "prepare"
                | "prepare_model"
                | "prepare_optimizer"
                | "prepare_scheduler"
                | "prepare_data_loader"
            ):
                self.prepared_any = True
                for arg in flat(args):
                    if isinstance(arg, Object) and arg.role in ("optimizer", "scheduler"):
                        arg.prepared = True
                    if isinstance(arg, Object) and arg.role == "model":
                        arg.prepared = True
                return True, self.passed(args)
            case "accumulate":
                return True, self.accumulate(base)
            case "no_sync":
                model = next((a for a in args if isinstance(a, Object)), None)
                if model is None:
                    return True, Context("plain")
                return True, self.no_sync(model, node, "accelerate")
            case "clip_grad_norm_" | "clip_grad_value_":
                self.clip(flat(args), "accelerator", node, base.text)
                return True, Unknown("norm")
            case "unscale_gradients":
                self.machine.state.ledger.unscale(None)
                return True, None
            case "unwrap_model" if args:
                model = args[0]
                return True, self.part(model, model.text) if isinstance(model, Object) else model
            case "autocast":
                return True, self.autocast(kwargs)
            case (
                "main_process_first" | "local_main_process_first" | "join_uneven_inputs" | "profile"
            ):
                return True, Context("plain")
            case _:
                gathered = next((a for a in args if isinstance(a, Unknown)), None)
                if gathered is not None and name in (
                    "gather",
                    "reduce",
                    "gather_for_metrics",
                    "pad_across_processes",
                ):
                    found = derived(f"{base.text}.{name}(…)", Unknown("…", gathered.batches))
                    how = kwargs.get("reduction", args[1] if len(args) > 1 else "sum")
                    if name == "reduce" and how in ("sum", "mean"):
                        found.over = str(how)
                    elif name.startswith("gather"):
                        found.over = "gathered"
                    found.counted = gathered.counted
                    found.count = gathered.count
                    return True, found
                return True, Unknown(f"{base.text}.{name}()")

    def _criterion_method(
        self, base: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> tuple[bool, Value]:
        if name in ("to", "cuda", "train", "eval", "half", "float"):
            return True, base
        if name in ("forward", "__call__"):
            return True, self.calling.call_object(base, args, kwargs, node)
        return False, None

    def _loader_method(
        self, base: Object, name: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> tuple[bool, Value]:
        if "batch" in name or name in ("next", "__next__", "sample", "get", "next_batch", "fetch"):
            return True, self.calling.iterating.fetched(base, None)
        return True, Unknown(f"{base.text}.{name}(…)")

    def passed(self, args: list[Value]) -> Value:
        if len(args) == 1:
            return args[0]
        return tuple(args)

    def framework_method(
        self, base: Value, name: str, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> tuple[Value] | None:
        """Methods that a framework's base class gives (`self.manual_backward`, `self.optimizers()`)."""
        text = base.text if isinstance(base, Unknown | Object) else "self"
        match name:
            case "manual_backward":
                self.backward(args[0] if args else None, "lightning", node, kwargs, subject=text)
                return (None,)
            case "optimizers" if not args:
                return (self.symbol("optimizer", f"{text}.optimizers()", node),)
            case "lr_schedulers" if not args:
                return (self.symbol("scheduler", f"{text}.lr_schedulers()", node),)
            case "clip_gradients" if args:
                self.clip(flat(args), "lightning", node, text)
                return (None,)
            case "toggle_optimizer" | "untoggle_optimizer":
                return (None,)
            case "no_sync" if not args:
                model = (
                    self.symbol("model", text, node)
                    if not (isinstance(base, Object) and base.networks)
                    else base
                )
                assert isinstance(model, Object)
                return (self.no_sync(model, node),)
            case "zero_grad" if (
                not (isinstance(base, Unknown) and base.tensor)
                and names.role_of(text.rpartition(".")[2]) == ""
            ):
                optimizers = self.machine.state.ledger.optimizers
                if len(optimizers) == 1 and text.rpartition(".")[2] != "self":
                    self.clear(optimizers[0], node)
                    return (None,)
                return None
            case "parameters" | "get_parameters" if not args:
                return (Unknown(f"{text}.parameters()", parameters=True),)
            case _:
                return None

    # Steps and clears

    def _accelerator(self) -> Object | None:
        stack = self.machine.state.accumulating
        return stack[-1] if stack else self.accelerator

    def accumulation(self, accelerator: Object) -> int | None:
        """What Accelerate divides by: its constructor's steps, or the window's where only its name is known."""
        if accelerator.steps is not None:
            return accelerator.steps
        if accelerator.thing is not None and not accelerator.thing.certain:
            if self.machine.relevance.accumulates:
                self.machine.state.asked = True
                return self.machine.scenario.steps
            return None
        return 1

    def _unprepared(self, thing: Object) -> bool:
        """True for an object seen being built in a file that prepares others, and not this one."""
        if thing.thing is None or not thing.thing.certain or thing.prepared or thing.handed:
            return False
        return self.prepared_any or self.handed_any

    def gated(self, optimizer: Object) -> bool:
        accelerator = self._accelerator()
        if accelerator is None or self._unprepared(optimizer):
            return False
        return (
            optimizer.prepared
            or bool(self.machine.state.accumulating)
            or self.machine.relevance.accumulates
        )

    def gate(self, optimizer: Object) -> bool:
        """False where Accelerate's wrapper leaves a step or a clear out."""
        accelerator = self._accelerator()
        return accelerator is None or not self.gated(optimizer) or accelerator.sync

    def step(self, optimizer: Object, node: p.Node, scaler: Object | None, gated: bool) -> None:
        machine = self.machine
        ledger = machine.state.ledger
        ledger.know(optimizer)
        optimizer.used = True
        owned = bool(optimizer.networks)
        scaled_now = any(h.scaled for h in ledger.of(optimizer) if optimizer not in h.applied_by)
        if scaler is not None:
            # The scaler's step unscales what nobody has unscaled.
            ledger.unscale(optimizer)
        applied = ledger.apply(optimizer)
        machine.emit(
            t.Step(
                *machine.stamp(node, optimizer.text), self._thing(optimizer), applied,
                self._thing(scaler) if scaler is not None else None,
                scaled_now and scaler is None, owned, gated,
            )
        )  # fmt: skip

    def clear(self, optimizer: Object, node: p.Node) -> None:
        machine = self.machine
        machine.state.ledger.know(optimizer)
        optimizer.used = True
        wiped, applied = machine.state.ledger.clear(optimizer)
        if machine.state.closures:
            # A closure clears what its optimizer is about to work out anew.
            return
        machine.emit(
            t.Clear(*machine.stamp(node, optimizer.text), self._thing(optimizer), wiped, applied)
        )

    def wipe(self, model: Object, node: p.Node) -> None:
        machine = self.machine
        wiped, applied = machine.state.ledger.wipe(model.networks)
        machine.emit(t.Clear(*machine.stamp(node, model.text), None, wiped, applied))

    def clear_parameters(self, receiver: Value, node: p.Node) -> None:
        machine = self.machine
        networks = receiver.networks if isinstance(receiver, Unknown | Object) else frozenset[str]()
        wiped, applied = machine.state.ledger.wipe(networks)
        text = receiver.text if isinstance(receiver, Unknown | Object) else "p"
        machine.emit(t.Clear(*machine.stamp(node, text), None, wiped, applied))

    def rescaled(
        self,
        receiver: Value,
        by: str,
        reduced: bool,
        node: p.Node,
        factor: Fraction | None = None,
        ranks: int = 0,
    ) -> None:
        machine = self.machine
        networks = receiver.networks if isinstance(receiver, Unknown | Object) else frozenset[str]()
        pending = machine.state.ledger.pending(networks)
        text = receiver.text if isinstance(receiver, Unknown | Object) else "p"
        machine.emit(t.Rescale(*machine.stamp(node, text), pending, by, reduced, factor, ranks))

    def multiplied(self, receiver: Value, op: str, by: Value, node: p.Node) -> None:
        """Gradients times (or divided by) a value."""
        factor, ranks = None, 0
        if isinstance(by, Number) and by:
            factor = Fraction(by)
        elif isinstance(by, Unknown) and by.ranks is not None:
            factor, ranks = by.ranks.factor, by.ranks.power
        if op == "/" and factor is not None:
            factor, ranks = 1 / factor if factor else None, -ranks
        self.rescaled(receiver, word(by), False, node, factor, ranks)

    def replaced(self, receiver: Value, value: Value, node: p.Node) -> None:
        """`p.grad = …`: a multiple of what it was, or something else."""
        old = f"{receiver.text}.grad" if isinstance(receiver, Unknown | Object) else ""
        terms = value.linear if isinstance(value, Unknown) else ()
        if (
            len(terms) == 1
            and terms[0].atom.text == old
            and len(terms[0].symbols) == abs(terms[0].ranks)
        ):
            self.rescaled(receiver, word(value), False, node, terms[0].factor, terms[0].ranks)
        else:
            self.rescaled(receiver, word(value), False, node)

    def parameter_method(self, base: Unknown, name: str, args: list[Value], node: p.Node) -> Value:
        """In-place arithmetic on a gradient."""
        if name in ("zero_", "fill_"):
            self.clear_parameters(base, node)
        elif name == "norm" and ".grad" in base.text:
            self.norm([base], node, base.text)
        elif name in ("mul_", "div_", "copy_", "add_", "nan_to_num_"):
            if "grad" in base.text and name != "nan_to_num_":
                self.rescaled(base, "…", False, node)
        return base

    def norm(self, targets: Iterable[Value], node: p.Node, subject: str) -> None:
        """The size of some networks' gradients is measured (of all, where none is known)."""
        machine = self.machine
        networks: set[str] = set()
        for target in targets:
            if isinstance(target, Unknown | Object):
                networks |= target.networks
        held = machine.state.ledger.seen(frozenset(networks))
        machine.emit(t.Norm(*machine.stamp(node, subject), held))

    def report(self, node: p.Call) -> bool:
        """A number is shown: which losses is it made of? False where more than a number is worked out on the way."""
        machine = self.machine
        shown = list(_shown(node))
        if any(not _is_plain(expression) for expression in shown):
            return False
        for expression in shown if machine.state.loops and not machine.state.no_grad else ():
            for value in flat([machine.eval(expression)]):
                if isinstance(value, Unknown) and value.loss and value.batches and not value.lost:
                    shares = tuple(
                        t.Share(machine.newest(x.atom.batches), x.factor, x.symbols)
                        for x in value.linear
                    )
                    machine.emit(t.Report(*machine.stamp(node, p.render(expression)), shares))
        return True

    def average(self, text: str, method: Value, base: Value, node: p.Node) -> bool:
        """A running average of weights is updated; False where the call itself may decide not to."""
        function = method.closure if isinstance(method, Bound) else method
        if isinstance(function, Closure) and _may_skip(function.function):
            return False
        if self.machine.state.loops:
            kind = base.thing.kind if isinstance(base, Object) and base.thing is not None else ""
            self.machine.emit(
                t.Average(*self.machine.stamp(node, text), kind in frameworks.AVERAGES)
            )
        return True

    def clip(self, targets: Iterable[Value], via: str, node: p.Node, subject: str) -> None:
        machine = self.machine
        ledger = machine.state.ledger
        networks: set[str] = set()
        for target in targets:
            if isinstance(target, Unknown | Object):
                networks |= target.networks
        lying = [h for h in ledger.lying(frozenset(networks)) if not h.applied_by]
        pending = ledger.pending(frozenset(networks))
        scaled_now = any(h.scaled for h in lying)
        if via == "accelerator" and scaled_now:
            ledger.unscale(None)
            scaled_now = False
        machine.emit(
            t.Clip(*machine.stamp(node, subject), pending, scaled_now, via, frozenset(networks))
        )

    # Synchronisation

    def decided(self, flag: Value, node: p.Node) -> bool:
        """A flag's truth, decided now if it never was: whoever asks later gets the same answer."""
        known = self.machine.known_truth(flag)
        return known if known is not None else self.machine.truth(flag, p.Opaque(node.at), node)

    def sync_flag(self, receiver: Value, value: Value, node: p.Node, path: str) -> None:
        machine = self.machine
        state = machine.state
        networks = receiver.networks if isinstance(receiver, Object | Unknown) else frozenset[str]()
        on: bool | None = value if isinstance(value, bool) else machine.known_truth(value)
        wrapper = next((state.wrappers[n] for n in networks if n in state.wrappers), "ddp")
        if "set_requires_gradient_sync" in p.render(
            node.func if isinstance(node, p.Call) else p.Opaque(node.at)
        ):
            wrapper = "fsdp2"
        after = False
        for event in reversed(state.events):
            if isinstance(event, t.Backward | t.Step):
                break
            if isinstance(event, t.Forward) and (
                event.microbatch == state.current or not state.current
            ):
                after = True
                break
        if isinstance(receiver, Object) and not receiver.wrapper:
            receiver.wrapper = wrapper
        for network in networks:
            state.wrappers.setdefault(network, wrapper)
            if wrapper != "fsdp2":
                state.flags[network] = on
        machine.emit(t.SyncFlag(*machine.stamp(node, path), on, wrapper, after, networks))

    def no_sync(self, model: Object, node: p.Node, wrapper: str = "") -> Context:
        machine = self.machine
        state = machine.state
        networks = sorted(model.networks)
        kind = wrapper or next((state.wrappers[n] for n in networks if n in state.wrappers), "ddp")
        for network in networks:
            state.wrappers.setdefault(network, kind)
        if not model.wrapper:
            model.wrapper = kind

        def enter(at: p.Node) -> Value:
            state.silenced.extend(networks)
            machine.emit(t.NoSync(*machine.stamp(at, model.text), True, kind))
            return None

        def leave(at: p.Node) -> None:
            for network in networks:
                state.silenced.remove(network)
            machine.emit(t.NoSync(*machine.stamp(at, model.text), False, kind))

        return Context("no_sync", enter, leave)

    def autocast(self, kwargs: dict[str, Value]) -> Context:
        """An autocast context, which runs what is in it in a lower precision."""
        state = self.machine.state
        if kwargs.get("enabled", True) is False:
            return Context("plain")

        def enter(_: p.Node) -> Value:
            state.autocast += 1
            return None

        def leave(_: p.Node) -> None:
            state.autocast -= 1

        return Context("autocast", enter, leave)

    def accumulate(self, accelerator: Object) -> Context:
        """`accelerator.accumulate`: counts micro-batches; gradients sync at the window's and the loader's end."""
        machine = self.machine
        state = machine.state

        def enter(at: p.Node) -> Value:
            steps = self.accumulation(accelerator) or 1
            accelerator.counter += 1
            last = bool(state.last and state.last[-1])
            accelerator.sync = accelerator.counter % steps == 0 or last
            if last:
                accelerator.counter = 0
            state.accumulating.append(accelerator)
            told(at, steps, True)
            return None

        def leave(at: p.Node) -> None:
            told(at, self.accumulation(accelerator) or 1, False)
            state.accumulating.pop()

        def told(at: p.Node, steps: int, entered: bool) -> None:
            stamp = machine.stamp(at, accelerator.text)
            machine.emit(t.Accumulate(*stamp, self._thing(accelerator), steps, entered))

        self.accelerator = accelerator
        return Context("accumulate", enter, leave)

    def stack_method(self, base: Context, name: str, args: list[Value], node: p.Node) -> Value:
        """`ExitStack.enter_context`: what is entered is left with the stack."""
        if name == "enter_context" and args:
            context = self.calling.context(args[0], node)
            value = context.enter(node) if context.enter is not None else None
            if context.leave is not None:
                base.args.append(Native("leave", _leaving(context, node)))
            return value
        return None

    def handed(self, values: list[Value]) -> None:
        """Things given to a call that cannot be followed, which may prepare them."""
        if any(isinstance(v, Object) and v.role == "accelerator" for v in values):
            self.handed_any = True
        for value in values:
            if isinstance(value, Object):
                value.handed = True

    def received(self, args: list[Value], kwargs: dict[str, Value]) -> set[str]:
        found: set[str] = set()
        for value in flat([*args, *kwargs.values()]):
            if isinstance(value, Object) and value.role in (
                "model",
                "optimizer",
                "scaler",
                "engine",
                "scheduler",
            ):
                found.add(value.role)
            elif isinstance(value, Unknown) and value.loss and value.networks:
                found.add("loss")
            elif isinstance(value, Unknown) and value.parameters:
                found.add("gradients")
        return found

    def _thing(self, value: Object) -> t.Thing:
        if value.thing is None:
            value.thing = t.Thing("", value.text, "", self.machine.program.body[0], False)
        return value.thing


def _has_forward(cls: p.Class) -> bool:
    """True for a class with a forward pass; an autograd function's has a context first."""
    forward = cls.methods.get("forward")
    return forward is not None and bool(forward.params) and forward.params[0].name == "self"


def _written(node: p.Node, text: str) -> str:
    """The loss of a backward call as the user wrote it, where that is short."""
    shown: p.Expr | None = None
    if isinstance(node, p.Call):
        shown = node.positional(0)
        if shown is None and isinstance(node.func, p.Attr):
            shown = node.func.base
            if isinstance(shown, p.Call) and shown.positional(0) is not None:
                shown = shown.positional(0)
    found = p.render(shown) if shown is not None else text
    return found if len(found) <= 40 else text


_TO_A_NUMBER = frozenset({"item", "detach", "cpu", "mean", "float", "numpy", "tolist"})


def _shown(node: p.Call) -> Iterator[p.Expr]:
    """The numbers in the arguments of a call: those in texts and tables, too."""
    waiting: list[p.Expr] = [argument.value for argument in node.args]
    while waiting:
        match waiting.pop():
            case p.Text(parts=parts):
                waiting.extend(parts)
            case p.Table(items=items):
                waiting.extend(value for _, value in items)
            case p.Sequence(items=items):
                waiting.extend(items)
            case p.Call(func=p.Attr(base=p.Const(value=str()), name="format"), args=args):
                waiting.extend(argument.value for argument in args)
            case p.Binary(op="%", left=p.Const(value=str()), right=right):
                waiting.append(right)
            case expression:
                yield expression


def _is_plain(expression: p.Expr) -> bool:
    """True for a number that is only looked at: nothing is called that may do anything."""
    calls = (n.func for n in p.walk_expr(expression) if isinstance(n, p.Call))
    return all(p.dotted(f).rpartition(".")[2] in _TO_A_NUMBER for f in calls)


def _may_skip(function: p.Function) -> bool:
    """True when a function counts its calls, or returns early from some."""
    tests = [n for n in p.walk(function.body) if isinstance(n, p.If)]
    counted = (x for n in tests for x in p.walk_expr(n.test) if isinstance(x, p.Binary))
    return any(x.op == "%" for x in counted) or any(
        isinstance(s, p.Return) for n in tests for s in n.body
    )


def _spans(atom: Unknown) -> tuple[int, ...]:
    return tuple(sorted({f.microbatch for f in atom.forwards}))


def _summed_over_microbatches(terms: list[Term]) -> bool:
    """True for one loss of several micro-batches, added up before its backward."""
    written = {(x.atom.text, id(x.atom.origin)) for x in terms}
    spans = [_spans(x.atom) for x in terms]
    return len(written) == 1 and len(set(spans)) > 1 and all(len(span) == 1 for span in spans)


def _holds_loss(value: Value) -> bool:
    return any(
        isinstance(v, Unknown) and (v.loss or _holds_loss(list(v.attributes.values())))
        for v in flat([value])
    )


def _merged(value: Value) -> Value:
    """What a module's forward returns: the gradients of its parts are its own."""
    match value:
        case tuple():
            return tuple(_merged(v) for v in value)
        case list():
            return [_merged(v) for v in value]
        case dict():
            return {k: _merged(v) for k, v in value.items()}
        case Unknown():
            for atom in {id(x.atom): x.atom for x in value.linear}.values():
                atom.networks = frozenset()
            value.networks = frozenset()
            for name, child in value.attributes.items():
                value.attributes[name] = _merged(child)
            return value
        case _:
            return value


def _leaving(context: Context, node: p.Node) -> Callable[[list[Value], dict[str, Value]], Value]:
    def leave(args: list[Value], kwargs: dict[str, Value]) -> Value:
        if context.leave is not None:
            context.leave(node)
        return None

    return leave
