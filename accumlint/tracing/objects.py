"""What has a role: models, optimizers, loaders …, and how they come to be."""

from __future__ import annotations

from collections.abc import Iterable

from accumlint.reading import frameworks
from accumlint.reading import ir as p
from accumlint.tracing import trace as t
from accumlint.tracing.calls.cross_file import CrossFile, works_out_a_loss
from accumlint.tracing.gradients.tensors import flat
from accumlint.tracing.machine import Machine
from accumlint.tracing.values import Object, Unknown, Value

_MODULES = frozenset(
    {"Module", "LightningModule", "PreTrainedModel", "ModelMixin", "Sequential", "GPTPreTrainedModel"}
)  # fmt: skip


class Objects:
    """Makes objects with roles."""

    def __init__(self, machine: Machine, cross_file: CrossFile) -> None:
        self.machine = machine
        self.cross_file = cross_file

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
        self.machine.lead(node)
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
        self.machine.lead(node)
        networks = frozenset({self._fresh(cls.name)}) if role == "model" else self.networks_of(args)
        inner = next((a for a in args if isinstance(a, Object) and a.role == "model"), None)
        if role == "model" and inner is not None:
            networks = networks | inner.networks
        return Object(
            role, t.TrainingObject(role, role, cls.name, node, True), cls, networks=networks
        )

    def told_a_model(self, value: Object, name: str, node: p.Node) -> None:
        """An instance called a model, of a class that works out a loss and whose bases are not read to the end."""
        cls, cross_file = value.cls, self.cross_file
        if cls is None or value.networks or not works_out_a_loss(cls):
            return
        read = (cross_file.cls(b, c.source) for c in self.cross_file.lineage(cls) for b in c.bases)
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
