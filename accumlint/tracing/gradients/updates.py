"""What happens to a gradient after its backward: unscaled, rescaled, clipped, applied, cleared, scheduled."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from accumlint.reading import frameworks, names
from accumlint.reading import ir as p
from accumlint.reading.program import Program
from accumlint.tracing import trace as t
from accumlint.tracing.calls.call import Answer, Call
from accumlint.tracing.calls.numeric import word
from accumlint.tracing.gradients.gating import Gating
from accumlint.tracing.gradients.losses import Losses
from accumlint.tracing.gradients.tensor_arithmetic import Tensors
from accumlint.tracing.gradients.tensors import fraction, scaled
from accumlint.tracing.machine import Machine
from accumlint.tracing.name_resolver import NameResolver
from accumlint.tracing.values import Bound, Closure, Number, Object, Unknown, Value

# What an optimizer is asked for that changes no gradient.
_QUIET = (
    "state_dict", "load_state_dict", "add_param_group", "train", "eval", "consolidate_state_dict", "get_lr",
)  # fmt: skip
# `grad * trainable_mask`, and not `grad / mask.sum()`.
_PICKS = re.compile(r"^(?!.*(sum|count|num|len|/)).*mask", re.IGNORECASE)
# `max_norm * scaler.get_scale()`, either way round.
_TIMES_SCALE = re.compile(r"\* [\w.]+\.get_scale\(\)$|^[\w.]+\.get_scale\(\) \*")


@dataclass(eq=False, repr=False)
class Updates:
    """Turns what optimizers, scalers and schedulers are asked to do into events."""

    machine: Machine
    gating: Gating
    resolver: NameResolver
    tensors: Tensors
    losses: Losses

    def __post_init__(self) -> None:
        self.guards, self.objects = self.resolver.guards, self.resolver.objects
        # The misplaced clears since the last step, by their nodes: whose step they belong behind, and what they do.
        self.postponed: dict[p.Node, tuple[Callable[[Object], bool], Callable[[], None]]] = {}

    def optimizer_method(self, base: Object, call: Call) -> Answer:
        node = call.node
        match call.path:
            case "step" | "step_and_update_lr" | "optimizer_step":
                scaler = next(
                    (a for a in call.given if isinstance(a, Object) and a.role == "scaler"), None
                )
                closure = call.argument(0, "closure")
                if scaler is not None:
                    # The scaler that it is given steps what it holds.
                    closure = None
                if closure is not None and not isinstance(closure, Unknown | Number | Object):
                    state = self.machine.state
                    state.closures += 1
                    self.machine.apply(closure, [], {}, node)
                    state.closures -= 1
                if self.gating.gate(base):
                    by = scaler if scaler is not None and self.is_on(scaler) else None
                    self.step(base, node, by, self.gating.contract(base))
                return None
            case name if names.is_clearing(name):
                if self.gating.gate(base):
                    self.clear(base, node)
                return None
            case "backward":
                self.losses.backward(call.first, "engine", node, call.kwargs, subject=base.text)
                return None
            case "clip_master_grads" | "clip_grad_norm" | "clip_grad_norm_":
                self.clip([base], "engine", node, base.text)
                return Unknown("norm")
            case name if name in _QUIET:
                return Unknown(f"{base.text}.{name}()")
            case _:
                return NotImplemented

    def scaler_method(self, base: Object, call: Call) -> Answer:
        machine, node = self.machine, call.node
        # PyTorch names the parameter, and some pass it by its name.
        by_name = (v for key, v in call.kwargs.items() if key in ("optimizer", "outputs"))
        args = call.args or list(by_name)
        given = node.positional(0) if isinstance(node, p.Call) else None
        if args and args[0] is None and given is not None:
            args = [self.resolver.used(given), *args[1:]]
        optimizer = next((o for a in args for o in _optimizers_in(a)), None)
        match call.path:
            case "scale":
                value = args[0] if args else None
                if isinstance(value, list | tuple):
                    value = next((v for v in value if isinstance(v, Unknown)), None)
                if not isinstance(value, Unknown):
                    return value
                found = scaled(value, Fraction(1), "", node)
                found.scaler = base if self.is_on(base) else None
                return found
            case "unscale_":
                self._unscale(base, optimizer, node, told=self.is_on(base))
                return None
            case "step":
                if optimizer is not None and self.gating.gate(optimizer):
                    self.step(optimizer, node, base if self.is_on(base) else None)
                return None
            case "update":
                if self.is_on(base):
                    stamp = machine.stamp(node, base.text)
                    machine.emit(t.Update(*stamp, self.objects.traced(base)))
                return None
            case "get_scale":
                scale = (base, len(machine.state.events))
                return Unknown(f"{base.text}.get_scale()", scale=scale)
            case "is_enabled":
                return _switch(base)
            case "state_dict" | "load_state_dict":
                return Unknown(f"{base.text}.{call.path}()")
            case _:
                return NotImplemented

    def _unscale(
        self, scaler: Object, optimizer: Object | None, node: p.Node, *, told: bool
    ) -> None:
        machine, ledger = self.machine, self.machine.state.ledger
        pending = ledger.pending_of(optimizer) if optimizer else ledger.pending()
        if told:
            stamp, of = machine.stamp(node, scaler.text), optimizer.traced if optimizer else None
            machine.emit(t.Unscale(*stamp, self.objects.traced(scaler), of, pending))
        ledger.unscale(optimizer)

    def is_on(self, scaler: Object) -> bool:
        """Whether a scaler scales on this path: one that a flag switches on does, unless the path decides otherwise."""
        return self.guards.suppose(_switch(scaler))

    def native_scaler(self, scaler: Object, call: Call) -> Value:
        """timm's `loss_scaler(loss, optimizer, clip_grad=…, update_grad=…)`: backward, and at the boundary the rest."""
        loss, optimizer = call.first, call.argument(1, "optimizer")
        kwargs, node = call.kwargs, call.node
        if isinstance(loss, Unknown):
            loss = scaled(loss, Fraction(1), "", node)
            loss.scaler = scaler
        self.losses.backward(loss, "scaler", node, kwargs, subject=scaler.text)
        update = kwargs.get("update_grad", kwargs.get("need_update", True))
        known = self.guards.known_truth(update)
        if known is False or not isinstance(optimizer, Object):
            return Unknown("norm")
        machine, ledger = self.machine, self.machine.state.ledger
        traced = self.objects.traced(scaler)
        self._unscale(scaler, optimizer, node, told=True)
        if kwargs.get("clip_grad") is not None:
            pending = ledger.pending_of(optimizer)
            machine.emit(t.Clip(*machine.stamp(node, scaler.text), pending, False, "torch"))
        self.step(optimizer, node, scaler)
        machine.emit(t.Update(*machine.stamp(node, scaler.text), traced))
        return Unknown("norm")

    def scheduler_method(self, base: Object, call: Call) -> Answer:
        name = call.path
        if name in ("step", "step_update", "step_batch"):
            machine = self.machine
            gated = base.prepared or (
                bool(machine.state.accumulating) and not self.gating.unprepared(base)
            )
            accelerator = self.gating.in_force()
            if accelerator is not None and accelerator.free_schedulers:
                gated = False
            if gated and accelerator is not None and not accelerator.sync:
                return None
            # A framework calls a function for every micro-batch.
            outside = not any(
                isinstance(loop.node, p.Function)
                or (
                    loop.node in machine.relevance.backwards
                    and not self.resolver.trip_counts.holds_loop(loop.node)
                )
                for loop in machine.state.loops
            )
            measured = isinstance(call.first, Unknown) and call.first.tensor
            per_epoch = outside or (measured and base.role == "scheduler" and name == "step")
            stamp, traced = machine.stamp(call.node, base.text), self.objects.traced(base)
            machine.emit(t.Schedule(*stamp, traced, gated, per_epoch, bool(call.given)))
            return None
        if name in ("state_dict", "load_state_dict", "get_last_lr", "get_lr", "print_lr"):
            return Unknown(f"{base.text}.{name}()")
        return NotImplemented

    def step(
        self,
        optimizer: Object,
        node: p.Node,
        scaler: Object | None,
        contract: frameworks.Contract = frameworks.PLAIN,
    ) -> None:
        """An optimizer steps, and clears where its framework's contract says so."""
        machine = self.machine
        ledger = machine.state.ledger
        ledger.know(optimizer)
        optimizer.used = True
        # One whose networks never got a gradient goes by other names: what it applies is a guess.
        owned = bool(optimizer.networks & ledger.met)
        scaled_now = any(
            h.contribution.scaled for h in ledger.of(optimizer) if optimizer not in h.applied_by
        )
        if scaler is not None:
            # The scaler's step unscales what nobody has unscaled.
            ledger.unscale(optimizer)
        applied = ledger.apply(optimizer)
        machine.emit(
            t.Step(
                *machine.stamp(node, _called(optimizer, node)), self.objects.traced(optimizer), applied,
                self.objects.traced(scaler) if scaler is not None else None,
                scaled_now and scaler is None, owned, contract.gates,
            )
        )  # fmt: skip
        if contract.clears:
            self.clear(optimizer, node)
        for cleared, (belongs, act) in list(self.postponed.items()):
            if belongs(optimizer):
                del self.postponed[cleared]
                act()

    def _in_place(
        self, node: p.Node, belongs: Callable[[Object], bool], act: Callable[[], None]
    ) -> None:
        """Clears now, or behind the step of an optimizer that it belongs to where the call is misplaced."""
        if node in self.machine.borders.misplaced:
            self.postponed[node] = belongs, act
        else:
            act()

    def clear(self, optimizer: Object, node: p.Node) -> None:
        self.machine.state.ledger.know(optimizer)
        optimizer.used = True
        self._in_place(node, lambda other: other is optimizer, lambda: self._clear(optimizer, node))

    def _clear(self, optimizer: Object, node: p.Node) -> None:
        machine = self.machine
        wiped, applied = machine.state.ledger.clear(optimizer)
        if machine.state.closures:
            # A closure clears what its optimizer is about to work out anew.
            return
        traced = self.objects.traced(optimizer)
        machine.emit(
            t.Clear(*machine.stamp(node, _called(optimizer, node)), traced, wiped, applied)
        )

    def wipe(self, model: Object, node: p.Node) -> None:
        self._wipe(model.networks, node, model.text, with_owners=False)

    def _wipe(
        self, networks: frozenset[str], node: p.Node, text: str, *, with_owners: bool
    ) -> None:
        """Clears networks' gradients, whoever owns them; all gradients where no network is known."""

        def act() -> None:
            machine = self.machine
            wiped, applied = machine.state.ledger.wipe(networks, with_owners)
            machine.emit(t.Clear(*machine.stamp(node, text), None, wiped, applied))

        self._in_place(
            node, lambda other: not networks or not networks.isdisjoint(other.networks), act
        )

    def clear_parameters(self, receiver: Value, node: p.Node) -> None:
        machine = self.machine
        if _of_some_parameters(machine.program, node):
            return
        networks = _networks([receiver])
        text = receiver.text if isinstance(receiver, Unknown | Object) else "p"
        self._wipe(networks, node, text, with_owners=True)

    def cleared_by_name(self, given: Iterable[Value], node: p.Node) -> None:
        """`zero_grad(parameters)`: a function clears what it is given, or everything."""
        given_objects = [x for x in given if isinstance(x, Unknown | Object)]
        optimizers = [x for x in given_objects if isinstance(x, Object) and x.role == "optimizer"]
        for optimizer in optimizers:
            self.clear(optimizer, node)
        for other in [x for x in given_objects if x not in optimizers]:
            self.clear_parameters(other, node)
        if not given_objects:
            self.clear_parameters(None, node)

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
        if not reduced and _PICKS.search(by):
            # Which elements of a gradient are kept changes nothing between the micro-batches.
            return
        networks = _networks([receiver])
        pending = machine.state.ledger.pending(networks)
        text = receiver.text if isinstance(receiver, Unknown | Object) else "p"
        machine.emit(t.Rescale(*machine.stamp(node, text), pending, by, reduced, factor, ranks))

    def gradient_changed(
        self, target: p.Expr, old: Value, op: str, value: Value, node: p.Node
    ) -> bool:
        """`p.grad /= n`; False for anything else."""
        named = any(isinstance(n, p.Attr) and n.name == "grad" for n in p.walk_expr(target))
        alias = isinstance(old, Unknown) and old.parameters and ".grad" in old.text
        if op not in "*/" or not (named or alias):
            return False
        self.multiplied(old, op, value, node)
        return True

    def multiplied(self, receiver: Value, op: str, by: Value, node: p.Node) -> None:
        """Gradients times (or divided by) a value."""
        if isinstance(by, Unknown) and by.per is not None and op == "*":
            self.tensors.read(by.per, True, node)
        factor, ranks = None, 0
        if isinstance(by, Number) and by:
            factor = fraction(by)
        elif isinstance(by, Unknown) and by.ranks is not None:
            factor, ranks = by.ranks.factor, by.ranks.power
        if op == "/" and factor is not None:
            factor, ranks = 1 / factor if factor else None, -ranks
        self.rescaled(receiver, word(by), False, node, factor, ranks)

    def replaced(self, receiver: Value, value: Value, node: p.Node) -> None:
        """`p.grad = …`: a multiple of what it was, or something else."""
        old = f"{receiver.text}.grad" if isinstance(receiver, Unknown | Object) else ""
        terms = value.linear if isinstance(value, Unknown) else ()
        if isinstance(value, Unknown) and value.text == old and value.terms is None:
            # In another precision, or as a copy.
            return
        only = terms[0] if len(terms) == 1 else None
        if only is not None and only.atom.text == old and len(only.symbols) == abs(only.ranks):
            self.rescaled(receiver, word(value), False, node, only.factor, only.ranks)
        else:
            self.rescaled(receiver, word(value), False, node)

    def parameter_method(self, base: Unknown, name: str, node: p.Node) -> Value:
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
        held = machine.state.ledger.seen(_networks(targets))
        machine.emit(t.Norm(*machine.stamp(node, subject), held))

    def clip(self, targets: Sequence[Value], via: str, node: p.Node, subject: str) -> None:
        machine = self.machine
        ledger = machine.state.ledger
        networks = _networks(targets)
        # A bound that is multiplied by the scale meets gradients that are multiplied by it.
        bound_scaled = any(isinstance(x, Unknown) and _is_times_scale(x) for x in targets)
        lying = [h for h in ledger.lying(networks) if not h.applied_by]
        pending = ledger.pending(networks)
        scaled_now = any(h.contribution.scaled for h in lying) and not bound_scaled
        machine.emit(t.Clip(*machine.stamp(node, subject), pending, scaled_now, via, networks))

    def clipped_norm(self) -> Unknown:
        """The norm that a clip gives: it depends on the data, and so does a guard on it."""
        loops = self.machine.state.loops
        return Unknown("norm", frozenset({self.machine.piece_of_iteration()} if loops else ()))

    def average(self, text: str, method: Value, base: Value, node: p.Node) -> bool:
        """A running average of weights is updated; False where the call itself may decide not to."""
        function = method.closure if isinstance(method, Bound) else method
        if isinstance(function, Closure) and _may_skip(function.function):
            return False
        if self.machine.state.loops:
            kind = base.traced.kind if isinstance(base, Object) and base.traced is not None else ""
            self.machine.emit(
                t.Average(*self.machine.stamp(node, text), kind in frameworks.AVERAGES)
            )
        return True


def _networks(values: Iterable[Value]) -> frozenset[str]:
    return frozenset[str]().union(*(v.networks for v in values if isinstance(v, Unknown | Object)))


def _called(optimizer: Object, node: p.Node) -> str:
    """What an optimizer goes by where something is done with it; Lightning hands it out by a call of its own."""
    if optimizer.text.endswith(".optimizers()") and isinstance(node, p.Call):
        by = p.dotted(node.func.base) if isinstance(node.func, p.Attr) else ""
        return by or optimizer.text
    return optimizer.text


def _optimizers_in(value: Value) -> Iterable[Object]:
    """An optimizer, or the one that an object of the project's steps for it."""
    if not isinstance(value, Object):
        return ()
    if value.role == "optimizer":
        return (value,)
    held = [v for v in value.attributes.values() if isinstance(v, Object) and v.role == "optimizer"]
    return held if len(held) == 1 else ()


def _of_some_parameters(program: Program, node: p.Node) -> bool:
    """True where a loop over all parameters clears those alone that a test on their names picks."""
    tests: list[str] = []
    for outer in program.above(node):
        if isinstance(outer, p.If):
            tests.append(p.render(outer.test))
        elif isinstance(outer, p.For):
            named = "named_parameters" in p.render(outer.iterable)
            return named and any("grad" not in test for test in tests)
    return False


def _is_times_scale(bound: Unknown) -> bool:
    """True for a scaler's scale, or something times it."""
    return bound.scale is not None or bool(_TIMES_SCALE.search(bound.text))


def _may_skip(function: p.Function) -> bool:
    """True when a function counts its calls, or returns early from some."""
    tests = [n for n in p.walk(function.body) if isinstance(n, p.If)]
    counted = (x for n in tests for x in p.walk_expr(n.test) if isinstance(x, p.Binary))
    return any(x.op == "%" for x in counted) or any(
        isinstance(s, p.Return) for n in tests for s in n.body
    )


def _switch(scaler: Object) -> Value:
    """What a scaler's `enabled` is; that of one which nobody is seen to build is what it answers when asked."""
    seen = scaler.traced is not None and scaler.traced.kind
    return scaler.enabled if seen else Unknown(f"{scaler.text}.is_enabled()")
