"""Frameworks that divide, gate and clear by themselves: Accelerate, DeepSpeed, Fabric, Lightning."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from accumlint.reading import ir as p
from accumlint.reading import names
from accumlint.reading.frameworks import CONTRACTS
from accumlint.tracing import trace as t
from accumlint.tracing.calls.call import Answer, Call
from accumlint.tracing.calls.cross_file import CrossFile
from accumlint.tracing.gradients.sync_contexts import SyncContexts
from accumlint.tracing.gradients.tensors import derived, flat
from accumlint.tracing.gradients.updates import Updates
from accumlint.tracing.machine import Machine
from accumlint.tracing.name_resolver import NameResolver
from accumlint.tracing.values import Context, Object, Unknown, Value

# What Fabric is asked for that changes no gradient and gives nothing.
_QUIET = (
    "launch",
    "print",
    "log",
    "log_dict",
    "barrier",
    "seed_everything",
    "save",
    "load",
    "call",
)
# What Accelerate is asked for: to wrap what trains, and to bring together what all processes have.
_PREPARING = (
    "prepare", "prepare_model", "prepare_optimizer", "prepare_scheduler", "prepare_data_loader",
)  # fmt: skip
_GATHERING = ("gather", "reduce", "gather_for_metrics", "pad_across_processes")


@dataclass(eq=False, repr=False)
class Engines:
    """Turns what accelerators and engines are asked to do into events."""

    machine: Machine
    cross_file: CrossFile
    resolver: NameResolver
    sync_contexts: SyncContexts
    updates: Updates

    def __post_init__(self) -> None:
        self.objects, self.losses = self.resolver.objects, self.updates.losses
        self.gating = self.updates.gating
        self._deepspeed: bool | None = None

    def engine_method(self, base: Object, call: Call) -> Answer:
        match call.path:
            case "backward":
                self.backward(base, call)
                return call.first
            case "step":
                self.engine_step(base, call.node)
                return None
            case "is_gradient_accumulation_boundary":
                return (base.counter + 1) % (self.engine_steps(base) or 1) == 0
            case "gradient_accumulation_steps":
                return self.engine_steps(base) or Unknown("steps")
            case "zero_grad":
                if base.traced is None or not base.traced.certain:
                    self.updates.wipe(base, call.node)
                return None
            case "train_batch":
                return Unknown("loss")
            case _:
                return NotImplemented

    def backward(self, base: Object, call: Call) -> None:
        """A backward of an engine, divided as its contract says; what has no contract is taken for one."""
        via = base.role if base.role in CONTRACTS else "engine"
        known = self.accumulation(base) if via == "accelerator" else self._dividing(base, call)
        divides = CONTRACTS[via].divides and call.kwargs.get("scale_wrt_gas") is not False
        divided, loss = known if divides else 1, call.argument(0, "loss")
        self.losses.backward(loss, via, call.node, call.kwargs, divided, base.text)

    def engine_steps(self, base: Object) -> int | None:
        """What an engine divides by: its own configuration's steps where the engine is known to be DeepSpeed's."""
        if base.steps is not None:
            return base.steps
        if base.traced is not None and base.traced.kind == "deepspeed":
            if not self._may_have_windows():
                return 1
            # Its configuration, which is no part of the program, sets them.
            return self.machine.steps()
        return None

    def _dividing(self, engine: Object, call: Call) -> int | None:
        """What an engine divides the loss by.

        A DeepSpeed engine whose making is not seen, and that is asked to step after every backward, counts the windows
        by itself.
        """
        known, loss = self.engine_steps(engine), call.first
        if known is not None or not isinstance(loss, Unknown) or not self._of_deepspeed():
            return known
        if loss.loss and self._may_have_windows() and self._is_asked_every_time(call.node):
            engine.steps = self.machine.steps()
        return engine.steps

    def _may_have_windows(self) -> bool:
        """False where the program clears gradients itself without naming the steps: every step is an update to it."""
        calls = self.machine.program.of(p.Call)
        clears = any(p.dotted(call.func).endswith(".zero_grad") for call in calls)
        return self._speaks_of_steps or not clears

    @cached_property
    def _speaks_of_steps(self) -> bool:
        """True when the program names the accumulation steps anywhere, or asks whether they are over."""
        return any(
            names.is_steps(written) or "gradient_accumulation" in written
            for node in self.machine.program.nodes
            for written in _written(node)
        )

    def _of_deepspeed(self) -> bool:
        """True where the program, or a file beside it, names DeepSpeed."""
        if self._deepspeed is None:
            program = self.machine.program
            near = (source for source, _ in program.neighbours)
            self._deepspeed = any(
                "deepspeed" in word.lower()
                for source in chain((program.source,), near)
                for word in source.identifiers
            )
        return self._deepspeed

    def _is_asked_every_time(self, backward: p.Node) -> bool:
        """True where an engine's `step` stands beside its backward, under no condition of its own."""
        if not isinstance(backward, p.Call) or not isinstance(backward.func, p.Attr):
            return False
        wanted = f"{p.dotted(backward.func.base)}.step"
        # The loop may stand in another file, which is given the engine.
        bodies = [self.machine.program.body, *(f.body for f in self.cross_file.functions)]
        for node in (n for body in bodies for n in p.walk(body)):
            inner = node.body if isinstance(node, p.If | p.For | p.While | p.With | p.Try) else ()
            called = [n.value for n in inner if isinstance(n, p.Do)]
            if backward in called:
                calls = (c for c in called if isinstance(c, p.Call))
                return any(p.dotted(call.func) == wanted for call in calls)
        return False

    def engine_step(self, base: Object, node: p.Node) -> None:
        steps, contract = self.engine_steps(base), CONTRACTS["engine"]
        machine = self.machine
        stamp = machine.stamp(node, base.text)
        machine.emit(t.EngineCall(*stamp, self.objects.traced(base), base.steps))
        base.counter += 1
        if contract.gates and steps is not None and base.counter % steps:
            return
        optimizer = base.attributes.get("optimizer")
        if not isinstance(optimizer, Object):
            traced = t.TrainingObject("optimizer", base.text, "", node, False)
            optimizer = Object(base.text, traced, networks=base.networks)
            base.attributes["optimizer"] = optimizer
        self.updates.step(optimizer, node, None, contract)

    def fabric_method(self, base: Object, call: Call) -> Answer:
        args, kwargs, node = call.args, call.kwargs, call.node
        match call.path:
            case "backward":
                self.backward(base, call)
                return None
            case "setup" | "setup_module" | "setup_optimizers" | "setup_dataloaders" | "prepare":
                return self.passed(args)
            case "clip_gradients":
                self.updates.clip(flat(args), "fabric", node, base.text)
                return Unknown("norm")
            case "no_backward_sync":
                model = next((a for a in args if isinstance(a, Object)), None)
                enabled = kwargs.get("enabled", args[1] if len(args) > 1 else True)
                if model is None or enabled is False:
                    return Context("plain")
                if enabled is not True and not self.sync_contexts.decided(enabled, node):
                    return Context("plain")
                return self.sync_contexts.no_sync(model, "fabric")
            case name if name in _QUIET:
                return None
            case name:
                return Unknown(f"{base.text}.{name}()")

    def accelerator_method(self, base: Object, call: Call) -> Answer:
        args, kwargs, node = call.args, call.kwargs, call.node
        self.gating.accelerator = base
        match call.path:
            case "backward":
                self.backward(base, call)
                return None
            case name if name in _PREPARING:
                self.gating.prepared_any = True
                for arg in flat(args):
                    if isinstance(arg, Object) and arg.role in ("optimizer", "scheduler", "model"):
                        arg.prepared = True
                return self.passed(args)
            case "accumulate":
                # It leaves the reduction out in each model that it is given, and a list of models is none.
                waits = not args or not all(isinstance(a, list | tuple | dict) for a in args)
                return self.accumulate(base, waits)
            case "no_sync":
                model = next((a for a in args if isinstance(a, Object)), None)
                if model is None:
                    return Context("plain")
                return self.sync_contexts.no_sync(model, "accelerate")
            case "clip_grad_norm_" | "clip_grad_value_":
                self.updates.clip(flat(args), "accelerator", node, base.text)
                return Unknown("norm")
            case "unscale_gradients":
                self.machine.state.ledger.unscale(None)
                return None
            case "unwrap_model" if args:
                model = args[0]
                if not isinstance(model, Object):
                    return model
                if not model.prepared:
                    return self.objects.part(model, model.text)
                return Object(
                    f"{base.text}.unwrap_model({model.text})", model.traced, model.cls, model.attributes, model.networks
                )  # fmt: skip
            case "autocast":
                return self.sync_contexts.autocast(kwargs)
            case (
                "main_process_first" | "local_main_process_first" | "join_uneven_inputs" | "profile"
            ):
                return Context("plain")
            case name:
                gathered = next((a for a in args if isinstance(a, Unknown)), None)
                if gathered is not None and name in _GATHERING:
                    found = derived(f"{base.text}.{name}(…)", Unknown("…", gathered.batches))
                    how = kwargs.get("reduction", args[1] if len(args) > 1 else "sum")
                    if name == "reduce" and how in ("sum", "mean"):
                        found.over = str(how)
                    elif name.startswith("gather"):
                        found.over = "gathered"
                    found.counted = gathered.counted
                    found.count = gathered.count
                    return found
                return Unknown(f"{base.text}.{name}()")

    def framework_method(self, base: Value, call: Call) -> Answer:
        """Methods that a framework's base class gives (`self.manual_backward`, `self.optimizers()`)."""
        text = base.text if isinstance(base, Unknown | Object) else "self"
        if isinstance(base, Object) and base.cls is not None:
            # A class of the file's own asks itself.
            text = "self"
        args, node = call.args, call.node
        match call.path:
            case "manual_backward":
                self.losses.backward(call.first, "lightning", node, call.kwargs, subject=text)
                return None
            case "optimizers" if not args:
                return self.objects.symbol("optimizer", f"{text}.optimizers()", node)
            case "lr_schedulers" if not args:
                return self.objects.symbol("scheduler", f"{text}.lr_schedulers()", node)
            case "clip_gradients" if args:
                self.updates.clip(flat(args), "lightning", node, text)
                return None
            case "toggle_optimizer" | "untoggle_optimizer":
                return None
            case "no_sync" if not args:
                own = base if isinstance(base, Object) and base.networks else None
                model = own or self.objects.symbol("model", text, node)
                return self.sync_contexts.no_sync(model)
            case "parameters" | "get_parameters" if not args:
                return Unknown(f"{text}.parameters()", parameters=True)
            case _:
                return NotImplemented

    def accumulation(self, accelerator: Object) -> int | None:
        """What Accelerate divides by: its constructor's steps, or the window's where only its name is known."""
        if accelerator.steps is not None:
            return accelerator.steps
        if accelerator.traced is not None and not accelerator.traced.certain:
            return self.machine.steps() if self.machine.relevance.accumulates else None
        return 1

    def accumulate(self, accelerator: Object, waits: bool) -> Context:
        """`accelerator.accumulate`: counts micro-batches; gradients sync at the window's and the loader's end."""
        machine = self.machine
        state = machine.state

        def enter(at: p.Node) -> Value:
            steps = self.accumulation(accelerator) or 1
            accelerator.counter += 1
            last = bool(state.last and state.last[-1]) and not self._is_a_trainers(accelerator)
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
            machine.emit(
                t.Accumulate(*stamp, self.objects.traced(accelerator), steps, entered, waits)
            )

        self.gating.accelerator = accelerator
        return Context("accumulate", enter, leave)

    def _is_a_trainers(self, accelerator: Object) -> bool:
        """True for the accelerator that a Hugging Face Trainer makes: the end of a loader is no boundary to it."""
        made_elsewhere = accelerator.traced is not None and not accelerator.traced.certain
        own = made_elsewhere and accelerator.text.startswith("self.")
        classes = (n for n in self.machine.program.body if isinstance(n, p.Class))
        return own and any(base.endswith("Trainer") for cls in classes for base in cls.bases)

    def passed(self, args: list[Value]) -> Value:
        return args[0] if len(args) == 1 else tuple(args)


def _written(node: p.Node) -> tuple[str, ...]:
    """The names in a node, and a text that may be one (a key, a command-line option)."""
    match node:
        case p.Name(id=name) | p.Attr(name=name):
            return (name,)
        case p.Const(value=str(text)) if len(text) < 50:
            return (text.strip("-").replace("-", "_"),)
        case p.Function(params=params):
            return tuple(q.name for q in params)
        case _:
            return ()
