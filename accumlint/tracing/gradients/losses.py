"""Forwards: which micro-batch and which network a loss carries, and which losses are reported."""

from __future__ import annotations

from dataclasses import replace

from accumlint.common.frozen import frozen
from accumlint.reading import ir as p
from accumlint.tracing import trace as t
from accumlint.tracing.calls.call import Call
from accumlint.tracing.calls.cross_file import CrossFile
from accumlint.tracing.calls.logged_values import is_plain, numbers_shown
from accumlint.tracing.gradients.backwards import Backwards
from accumlint.tracing.gradients.gating import Gating
from accumlint.tracing.gradients.tensors import derived, flat
from accumlint.tracing.machine import Machine
from accumlint.tracing.values import Batch, Bound, Object, Unknown, Value


@frozen
class _Fed:
    """Data that a forward took, kept alive, with the loops around it and the micro-batch that it was taken for."""

    path: list[object]
    batch: Batch
    data: list[Unknown]


class Losses(Backwards):
    """Follows data through a model to a loss, and the loss to the gradients."""

    def __init__(self, machine: Machine, gating: Gating, cross_file: CrossFile) -> None:
        super().__init__(machine)
        self.gating = gating
        self.cross_file = cross_file
        self._taken = frozenset[Batch]()
        self._fed: dict[tuple[int, ...], _Fed] = {}

    def forward(self, model: Object, call: Call, method: Bound | None) -> Value:
        state, node = self.machine.state, call.node
        everything = flat(call.given)
        batches = frozenset[Batch]().union(
            *(a.batches for a in everything if isinstance(a, Unknown))
        )
        networks = model.networks or (model.inner.networks if model.inner else frozenset())
        if not batches and state.loops and not state.no_grad:
            # A part of a model gets what the model got.
            batches = self._taken or frozenset({self._piece(everything)})
        forwards: tuple[t.Forward, ...] = ()
        if not state.no_grad and not state.inside:
            outside = _came_through_a_wrapper(model, networks, everything)
            forwards = (self._forward_event(model, networks, batches, node, outside=outside),)
        value = self._executed(model, call, method, batches) if method else None
        if value is None:
            value = self._of_library(model, call)
        found = self.tinted(value, batches, networks if not state.no_grad else None, forwards)
        for output in flat([found]) if forwards else ():
            # A critic's own code is the same for its own loss and for the generator's; losses that a model works out
            # are known by where it does.
            if isinstance(output, Unknown) and not output.loss:
                output.origin = node
                for term in output.linear:
                    term.atom.origin = node
        return found

    def _executed(
        self, model: Object, call: Call, method: Bound, batches: frozenset[Batch]
    ) -> Value:
        """What a model's own forward returns; None where it is not executed, or not to its end."""
        machine, function = self.machine, method.closure.function
        state, cross_file = machine.state, self.cross_file
        if state.depth >= 6 or cross_file.trains(function) or function in machine.borders.refused:
            return None
        inner = model.inner
        receiver = inner if inner is not None and inner.cls is not None else model
        state.inside += 1
        taken, self._taken = self._taken, batches
        try:
            bound = Bound(receiver, method.closure)
            value = _merged(machine.apply(bound, call.args, call.kwargs, call.node))
        finally:
            state.inside -= 1
            self._taken = taken
        if _holds_loss(value):
            machine.borders.telling.add(function)
        else:
            # Another file's model is executed for the sake of its loss alone.
            cross_file.refuse(function)
        return value

    def _of_library(self, model: Object, call: Call) -> Unknown:
        """What comes out of a model whose code is not read: its loss where it is given labels."""
        kwargs, node = call.kwargs, call.node
        value = derived(f"{model.text}(…)", *flat(call.given), node=node)
        divided = "num_items_in_batch" in kwargs
        if any(key.endswith("labels") for key in kwargs) and not divided:
            self._labelled(value, "loss", "['loss']", "[0]")
        elif self._is_given_labels(node):
            # By custom it is their loss that comes out, alone or beside the rest.
            marked = t.MARKED if self.machine.relevance.marks else ""
            value.left_out = t.OF_A_MODEL if self.machine.ignores else marked
        elif "**" in kwargs and not divided:
            # The labels are in the batch where a loss comes out of it.
            self._labelled(value, "loss", "['loss']")
            if self.machine.ignores:
                # What comes out first is the loss where it is called one.
                first = derived(f"{value.text}[0]", value, node=node)
                value.left_out = first.left_out = t.OF_A_MODEL
                value.attributes["[0]"] = first
        return value

    def _labelled(self, value: Unknown, *where: str) -> None:
        """A model that is given labels returns their loss, by custom a mean over those that are not -100."""
        if not self.machine.ignores:
            return
        for name in where:
            loss = derived(f"{value.text}.loss", value, node=value.origin)
            loss.loss = True
            loss.reduction = "mean"
            loss.varies = t.OF_A_MODEL
            value.attributes[name] = loss

    def _is_given_labels(self, node: p.Node) -> bool:
        """True for `model(inputs, targets)`."""
        behind = node.args[1:] if isinstance(node, p.Call) else ()
        words = [p.dotted(a.value).lower() for a in behind if not a.keyword]
        named = any(a.keyword in ("target", "targets") for a in behind)
        return named or any("target" in word or "label" in word for word in words)

    def _piece(self, given: list[Value]) -> Batch:
        """The micro-batch of a forward on data that nobody followed.

        A loop that takes the data of a forward before it once more (adversarial steps) brings no new micro-batch.
        """
        machine = self.machine
        *here, _ = machine.loop_position()
        data = [value for value in given if isinstance(value, Unknown)]
        known = self._fed.get(tuple(map(id, data)))
        if (
            data
            and known is not None
            and len(known.path) < len(here)
            and here[: len(known.path)] == known.path
        ):
            return known.batch
        batch = machine.piece_of_iteration()
        self._fed[tuple(map(id, data))] = _Fed(here, batch, data)
        return batch

    def _forward_event(
        self,
        model: Object,
        networks: frozenset[str],
        batches: frozenset[Batch],
        node: p.Node,
        *,
        outside: bool,
    ) -> t.Forward:
        """The event of a forward. `outside`: what it is given came through the wrapper, whose backward reduces."""
        machine = self.machine
        state = machine.state
        wrapper = next((state.wrappers[n] for n in networks if n in state.wrappers), "")
        # FSDP changes the module itself; only DDP has something inside that can be called past it.
        inner = model in state.wrapped or model.text.endswith(".module")
        # What Accelerate has prepared is wrapped where several processes run.
        taken_out = inner and not wrapper and self.gating.prepared_any
        past = (wrapper == "ddp" and inner) or taken_out or ".unwrap_model(" in model.text
        bypassed = past and not model.wrapper and not outside
        armed: bool | None = None
        if wrapper in ("ddp", "fsdp", "fabric", "accelerate", "fsdp2"):
            armed = self._is_armed(networks)
        if batches:
            latest = max(batches, key=lambda b: b.serial)
            state.current = machine.ordinal(latest.when)
            self.latest, self.latest_at = latest, machine.loop_position()
        traced = model.traced or t.TrainingObject("model", model.text, "", node, False)
        event = t.Forward(*machine.stamp(node, model.text), traced, armed, bypassed, wrapper)
        machine.emit(event)
        return event

    def silent_forward(self, model: Object, node: p.Node) -> tuple[t.Forward, ...]:
        """The forward inside a call that cannot be followed: it leaves no event, only the state of the sync flag."""
        machine = self.machine
        state = machine.state
        wrapper = next((state.wrappers[n] for n in model.networks if n in state.wrappers), "")
        if not wrapper:
            return ()
        armed = self._is_armed(model.networks)
        traced = model.traced or t.TrainingObject("model", model.text, "", node, False)
        return (t.Forward(*machine.stamp(node, model.text), traced, armed, False, wrapper),)

    def _is_armed(self, networks: frozenset[str]) -> bool:
        """True where the backward of a forward of some networks reduces."""
        flags, silenced = self.machine.state.flags, self.machine.state.silenced
        return all(flags.get(n, True) is not False and n not in silenced for n in networks)

    def part_of(self, model: Object, value: Value, call: Call) -> Value:
        """What a model's own method returns carries the model's gradient."""
        state, given = self.machine.state, flat(call.given)
        batches = frozenset[Batch]().union(*(a.batches for a in given if isinstance(a, Unknown)))
        if not batches:
            return value
        forwards = () if state.no_grad else self.silent_forward(model, call.node)
        return self.tinted(value, batches, None if state.no_grad else model.networks, forwards)

    def tinted(
        self,
        value: Value,
        batches: frozenset[Batch],
        networks: frozenset[str] | None,
        forwards: tuple[t.Forward, ...],
    ) -> Value:
        """A result with what the call adds: data, networks (None: the graph is off), forwards."""
        added = batches, networks, forwards
        match value:
            case tuple():
                return tuple(self.tinted(v, *added) for v in value)
            case list():
                return [self.tinted(v, *added) for v in value]
            case dict():
                return {k: self.tinted(v, *added) for k, v in value.items()}
            case Unknown():
                return self._tinted(value, added)
            case _:
                return value

    def _tinted(
        self,
        value: Unknown,
        added: tuple[frozenset[Batch], frozenset[str] | None, tuple[t.Forward, ...]],
    ) -> Unknown:
        batches, networks, forwards = added
        found = Unknown(
            value.text,
            value.batches | batches,
            frozenset() if networks is None else value.networks | networks,
            forwards + value.forwards,
            None, value.loss, value.lost, value.reduction, value.varies, value.scaler, "", value.count,
            None, value.origin, over=value.over, counted=value.counted, divisor=value.divisor, whole=value.whole,
            left_out=value.left_out,
        )  # fmt: skip
        for name, child in value.attributes.items():
            found.attributes[name] = self.tinted(child, *added)
        if value.terms is not None:
            found.terms = tuple(
                replace(x, atom=found if x.atom is value else self._tinted(x.atom, added))
                for x in value.terms
            )
        return found

    def report(self, node: p.Call) -> bool:
        """A number is shown: which losses is it made of? False where more than a number is worked out on the way."""
        machine = self.machine
        shown = list(numbers_shown(node))
        plain = [expression for expression in shown if is_plain(expression)]
        for expression in plain if machine.state.loops else ():
            if machine.state.no_grad and not self._is_trained(expression):
                continue
            for value in flat([machine.eval(expression)]):
                if isinstance(value, Unknown) and value.loss and value.batches and not value.lost:
                    shares = tuple(
                        t.Share(number, x.factor, x.symbols)
                        for x in value.linear
                        for number in self._numbers(x.atom)
                    )
                    machine.emit(t.Report(*machine.stamp(node, p.render(expression)), shares))
        return len(plain) == len(shown)

    def _numbers(self, atom: Unknown) -> set[int]:
        """The micro-batches in a number that is shown: a total that a helper was given holds several."""
        ordinals = self.machine.state.ordinals
        if atom.networks or not atom.batches:
            return {self.machine.newest(atom.batches)}
        return {ordinals.get(b.when, 0) for b in atom.batches}

    def _is_trained(self, expression: p.Expr) -> bool:
        """True for a loss with a graph, which a block without one shows, and not for one that was worked out in it."""
        while isinstance(expression, p.Call):
            of = expression.positional(0)
            func = expression.func
            inner = func.base if isinstance(func, p.Attr) else of
            if inner is None:
                return False
            expression = inner
        value = self.machine.eval(expression)
        return isinstance(value, Unknown) and bool(value.networks)


def _came_through_a_wrapper(model: Object, networks: frozenset[str], given: list[Value]) -> bool:
    """True where something that a model is given came of the model's wrapper, whose backward reduces."""
    own = {model.text, model.text.removesuffix(".module")}
    # Whatever called the model before, it called the wrapper.
    taken_out = ".unwrap_model(" in model.text
    return any(
        (taken_out and not any(f.bypassed for f in a.forwards))
        or any(
            f.armed is not None
            and not f.bypassed
            and (f.model.text in own or a.networks == networks)
            for f in a.forwards
        )
        for a in given
        if isinstance(a, Unknown) and networks and a.networks >= networks
    )


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
