"""What attributes and items mean, and how a value falls apart into several names."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass

from accumlint.reading import ir as p
from accumlint.reading import names
from accumlint.tracing import trace as t
from accumlint.tracing.calls.cross_file import CrossFile
from accumlint.tracing.calls.numeric import word
from accumlint.tracing.gradients.tensors import derived, detached
from accumlint.tracing.machine import Machine
from accumlint.tracing.name_resolver import NameResolver
from accumlint.tracing.object_methods import ObjectMethods
from accumlint.tracing.values import (
    Batch,
    ClassValue,
    Counted,
    Key,
    Lazy,
    Library,
    Method,
    Number,
    Object,
    Unknown,
    Value,
)  # fmt: skip

_UNBOUND = frozenset(
    {
        "no_sync", "backward", "step", "zero_grad", "accumulate", "clip_grad_norm_", "scale", "forward",
        "no_backward_sync",
    }
)  # fmt: skip
_PLAIN_ATTRIBUTES = frozenset(
    {
        "config", "cfg", "training", "device", "dtype", "args", "hparams", "name", "shape", "device_ids",
        "generation_config",
    }
)  # fmt: skip

# Where a table keeps what was put under a key that is not known.
_EACH = "[…]"


@dataclass(eq=False, repr=False)
class Attributes:
    """The meaning of attributes and items for one machine."""

    machine: Machine
    cross_file: CrossFile
    resolver: NameResolver
    object_methods: ObjectMethods

    def __post_init__(self) -> None:
        self.objects, self.roles = self.resolver.objects, self.resolver.roles
        engines = self.object_methods.engines
        self.updates, self.sync_contexts = engines.updates, engines.sync_contexts

    def attribute(self, base: Value, name: str, node: p.Node) -> Value:
        match base:
            case Object():
                return self.object_attribute(base, name, node)
            case Unknown():
                return self.unknown_attribute(base, name, node)
            case Library(path=path, importer=importer):
                full = f"{path}.{name}"
                if full in self.machine.symbols:
                    return self.machine.symbols[full]
                found = self.resolver.imported(full, importer)
                if isinstance(found, Library) and self.roles.is_steps(name):
                    return self.resolver.symbol(full, name, node)
                return found
            case ClassValue(cls=cls):
                method = self.cross_file.find_method(cls, name)
                if method is not None:
                    return method
                return self.class_attribute(cls, name, f"{cls.name}.{name}", node)
            case None:
                return Unknown(f"None.{name}")
            case slice():
                return Unknown(name)
            case _:
                return Method(base, name, f"{word(base)}.{name}")

    def object_attribute(self, base: Object, name: str, node: p.Node) -> Value:
        if name in base.attributes:
            return base.attributes[name]
        special = self.object_methods.attribute(base, name, node)
        if special is not None:
            return special
        if base.cls is not None:
            method = self.cross_file.method_of(base, name)
            if method is not None:
                if "property" in method.closure.function.decorators or any(
                    d.endswith("cached_property") for d in method.closure.function.decorators
                ):
                    return self.machine.apply(method, [], {}, node)
                return method
        if name in _UNBOUND and base.role:
            return Method(base, name, f"{base.text}.{name}")
        if name == "training" and base.role in ("model", "criterion"):
            return not self.machine.state.no_grad
        text = f"{base.text}.{name}"
        if base.cls is not None:
            return self.class_attribute(base.cls, name, text, node)
        if base.networks and name not in _PLAIN_ATTRIBUTES and base.role == "model":
            if text not in self.machine.symbols:
                self.machine.symbols[text] = self.objects.part(base, text)
            return self.machine.symbols[text]
        return self.resolver.symbol(text, name, node)

    def class_attribute(self, cls: p.Class, name: str, text: str, node: p.Node) -> Value:
        if text in self.machine.symbols:
            return self.machine.symbols[text]
        for owner in self.cross_file.lineage(cls):
            for statement in owner.body:
                if isinstance(statement, p.Assign):
                    for target in statement.targets:
                        if isinstance(target, p.Name) and target.id == name:
                            value = self.machine.eval(statement.value)
                            # A default of a configuration class may be overridden by whoever makes it.
                            if isinstance(value, Number) and self.roles.is_steps(name):
                                return self.resolver.symbol(text, name, node)
                            if isinstance(value, bool) and any(
                                "dataclass" in d for d in owner.decorators
                            ):
                                return self.resolver.symbol(text, name, node, hint=value)
                            return value
        if text == f"self.{name}" and self._is_handed_around(name):
            # What nobody was seen to set is the configuration that goes by its plain name elsewhere.
            text = name
        return self.resolver.symbol(text, name, node)

    def _is_handed_around(self, name: str) -> bool:
        """True for a configuration that functions of the file are given under this name."""
        functions = self.machine.program.functions
        return names.is_configuration(f"{name}.") and any(
            param.name == name for function in functions for param in function.params
        )

    def unknown_attribute(self, base: Unknown, name: str, node: p.Node) -> Value:
        if name in base.attributes:
            return base.attributes[name]
        text = f"{base.text}.{name}"
        if name == "grad" and _is_data(base):
            return Unknown(text, base.batches)
        if name == "grad" or base.parameters:
            return Unknown(text, frozenset(), base.networks, parameters=True)
        if self.roles.is_epoch(text, name) and not base.batches:
            return self.machine.passed()
        if base.tensor:
            if name == "requires_grad" and base.networks:
                return True
            if name == "data" and base.loss:
                return detached(base)
            if self.roles.is_steps(name) and not base.networks:
                return self.resolver.symbol(text, name, node)
            if name in ("shape", "device", "dtype", "is_cuda", "ndim"):
                found = Unknown(text, base.batches, count=name == "shape")
                found.counted = Counted("rows", (base,)) if name == "shape" else None
                return found
            found = derived(text, base, node=node)
            if names.is_mask_of_lengths(name):
                # What a model makes of lengths has no gradient.
                found = detached(found)
            found.loss = base.loss or self.roles.file.is_loss(name)
            found.lost = base.lost and base.loss
            if base.terms is not None:
                # What was divided as a whole is divided in its parts.
                found.terms = base.terms
            base.attributes[name] = found
            return found
        return self.resolver.symbol(text, name, node)

    def set_attribute(
        self, receiver: Value, name: str, value: Value, node: p.Node, path: str
    ) -> None:
        if name == "grad" and not _is_data(receiver):
            # What goes by a name is a gradient of an earlier batch, which there is none of yet.
            kept = isinstance(node, p.Assign) and isinstance(node.value, p.Name)
            if value is None and not kept:
                self.updates.clear_parameters(receiver, node)
            else:
                self.updates.replaced(receiver, value, node)
            return
        if name == "require_backward_grad_sync":
            self.sync_contexts.sync_flag(receiver, value, node, path)
            return
        if isinstance(receiver, Object):
            self.object_methods.set_attribute(receiver, name, value)
            receiver.attributes[name] = value
        elif isinstance(receiver, Unknown):
            receiver.attributes[name] = value
        elif isinstance(receiver, Library | ClassValue):
            text = receiver.path if isinstance(receiver, Library) else receiver.cls.name
            self.machine.symbols[f"{text}.{name}"] = value

    def set_item(self, base: Value, index: Value, value: Value) -> None:
        if isinstance(base, dict):
            if isinstance(index, str | int | float | bool | type(None) | Unknown):
                base[_key(base, index)] = value
        elif isinstance(base, list) and isinstance(index, int) and -len(base) <= index < len(base):
            base[index] = value
        elif isinstance(base, Unknown) and isinstance(index, str | int):
            base.attributes[f"[{index!r}]"] = value
        elif isinstance(base, Unknown) and isinstance(value, Unknown) and value.networks:
            # One key after the other (`for k, v in losses.items(): losses[k] = v / n`).
            base.attributes[_EACH] = value
        elif isinstance(base, list) and base and isinstance(value, Unknown) and value.loss:
            base.append(value)

    def item(self, base: Value, index: Value, node: p.Item) -> Value:
        match base:
            case dict():
                if isinstance(index, str | int | float | bool | type(None) | Unknown):
                    key = _key(base, index)
                    if key in base or isinstance(base, defaultdict):
                        return base[key]
                    if not isinstance(index, Unknown) and not any(
                        isinstance(k, Unknown) for k in base
                    ):
                        return Unknown(p.dotted(node))
                picked = self.cross_file.picked(base, index, p.dotted(node.index))
                if picked is not None:
                    return picked
                values = list(base.values())
                return values[0] if len(values) == 1 else derived(p.dotted(node), *values)
            case list() | tuple() | str():
                if isinstance(index, int) and -len(base) <= index < len(base):
                    return base[index]
                held = derived(p.dotted(node), base) if base else Unknown(p.dotted(node))
                if isinstance(index, slice):
                    with suppress(TypeError, ValueError):
                        return base[index]
                    if not held.batches or held.networks:
                        return base
                # An unknown part of a list of data is cut like a batch.
                part = held.batches and not held.networks
                return self.unknown_item(held, index, node) if part else held
            case Object():
                return self.object_methods.item(base, index, node)
            case Unknown():
                return self.unknown_item(base, index, node)
            case Lazy():
                return Unknown(p.dotted(node))
            case _:
                text = p.dotted(node)
                if isinstance(index, str):
                    return self.resolver.symbol(text, index, node)
                return Unknown(text)

    def unknown_item(self, base: Unknown, index: Value, node: p.Item) -> Value:
        if isinstance(index, str):
            key = f"[{index!r}]"
            if key in base.attributes:
                return base.attributes[key]
            if _EACH in base.attributes:
                return base.attributes[_EACH]
            if not base.tensor:
                return self.resolver.symbol(f"{base.text}{key}", index, node)
            found = derived(f"{base.text}{key}", base, node=node)
            found.loss = self.roles.file.is_loss(index) or base.loss
            base.attributes[key] = found
            return found
        if not base.tensor:
            if isinstance(index, int):
                return self.resolver.symbol(
                    f"{base.text}[{index}]", base.text.rpartition(".")[2], node
                )
            if isinstance(index, Unknown) and index.batches:
                return derived(f"{base.text}[…]", base, index, node=node)
            return Unknown(f"{base.text}[…]")
        if base.parameters:
            return base
        if isinstance(index, int) and f"[{index}]" in base.attributes:
            return base.attributes[f"[{index}]"]
        cut = self._cuts(index, node)
        if base.networks or not cut or _picks(index, node.index):
            # Which side of a shape it is tells rows from classes.
            shown = index if base.count and isinstance(index, int) else "…"
            found = derived(f"{base.text}[{shown}]", base, node=node)
            found.rows = base.rows or (isinstance(index, tuple) and _one_of_each_row(index, node))
            found.loss = base.loss
            if base.terms is not None:
                found.terms = base.terms
            found.reduction = base.reduction
            found.count = base.count
            found.counted = base.counted
            found.whole = base if _drops_first(node) else base.whole
            if _picks(index, node.index):
                picked = f"{t.PICKED} `{p.render(node.index)}`"
                # Of data, only a loss that takes them as its targets counts them.
                found.varies = picked if base.networks else found.varies
                found.left_out = "" if base.networks else picked
            return found
        return Unknown(f"{base.text}[…]", frozenset({self.piece(base, index)}))

    def _cuts(self, index: Value, node: p.Item) -> bool:
        """True when an index takes a varying part of the batch (not a column, not always the same part)."""
        if isinstance(index, tuple):
            return bool(index) and self._cuts(index[0], node)
        shown = node.index
        if isinstance(shown, p.Sequence) and shown.items:
            shown = shown.items[0]
        if isinstance(shown, p.Slice):
            return any(
                not isinstance(b, p.Const | p.Unary)
                for b in (shown.lower, shown.upper)
                if b is not None
            )
        return not isinstance(shown, p.Const | p.Unary | p.Compare)

    def piece(self, base: Unknown, index: Value) -> Batch:
        """The part of a batch that an index takes; the same index in the same iteration is the same part."""
        parent = max(base.batches, key=lambda b: b.serial)
        key = (parent, _index_key(index), self.machine.loop_position())
        if key not in self.machine.cut:
            self.machine.cut[key] = self.machine.fetch(parent, (parent.serial, _index_key(index)))
        return self.machine.cut[key]

    def unpacked(self, value: Value, items: tuple[p.Expr, ...], node: p.Node) -> list[Value]:
        """The parts of a value for the targets of a tuple assignment."""
        wanted = len(items)
        starred = next((i for i, item in enumerate(items) if isinstance(item, p.Star)), None)
        if isinstance(value, list | tuple):
            values = list(value)
            if starred is not None and len(values) >= wanted - 1:
                after = wanted - starred - 1
                middle = values[starred : len(values) - after]
                return [*values[:starred], middle, *values[len(values) - after :]]
            if len(values) == wanted:
                return values
            if len(values) == 1 and isinstance(values[0], Unknown):
                # `tuple(t.to(device) for t in batch)`: one stands for as many as there are.
                value = values[0]
        if isinstance(value, Unknown):
            found: list[Value] = []
            for i, item in enumerate(items):
                if f"[{i}]" in value.attributes and starred is None:
                    found.append(value.attributes[f"[{i}]"])
                    continue
                name = p.dotted(item.value if isinstance(item, p.Star) else item).rpartition(".")[2]
                part = derived(f"{value.text}[{i}]", value, node=node)
                part.loss = self.roles.file.is_loss(name) and value.tensor
                part.lost = value.lost and part.loss
                if part.loss and value.left_out:
                    part.reduction, part.varies = "mean", value.left_out
                part.objects = value.objects
                part.counted = value.counted
                if "mask" in name.lower() and value.batches:
                    # What is masked with it is known by its name.
                    part.text = name
                if names.is_count(name):
                    part = detached(part)
                    part.count = True
                found.append(part)
            return found
        if isinstance(value, Object) and value.text.endswith(".optimizers()"):
            # Lightning hands out as many as the module configured.
            return [
                self.objects.symbol("optimizer", p.dotted(i), node) if wanted > 1 else value
                for i in items
            ]
        if isinstance(value, Object) and value.role in ("model", "optimizer", "loader"):
            return [
                value
                if self.roles.of(p.dotted(i).rpartition(".")[2]) == value.role
                else Unknown(f"{value.text}[…]")
                for i in items
            ]
        return [Unknown(f"{word(value)}[{i}]") for i in range(wanted)]


def _is_data(value: Value) -> bool:
    """True for a tensor that is no parameter: an input that is perturbed along its gradient, say."""
    return isinstance(value, Unknown) and bool(value.batches) and not value.parameters


def _index_key(index: Value) -> object:
    if isinstance(index, slice):
        return ("slice", _index_key(index.start), _index_key(index.stop))
    if isinstance(index, tuple):
        return tuple(_index_key(i) for i in index)
    if isinstance(index, Number | str | None):
        return index
    return word(index)


# A mask by its name; positions of masked tokens may be as many in every row.
_MASK = re.compile(r"(mask|valid)(?!\w*(pos|ind|idx|len))")


def _picks(index: Value, written: p.Expr) -> bool:
    """True for a mask: how many elements it leaves differs between micro-batches."""
    if not isinstance(index, Unknown) or not index.batches or "ones_like" in index.text:
        return False
    compared = index.counted is not None and index.counted.kind == "some"
    said = f"{index.text} {p.dotted(written)}"
    return compared or _MASK.search(said.lower()) is not None


def _one_of_each_row(index: tuple[Value, ...], node: p.Item) -> bool:
    """True for `[:, 0]`; `[:, 0, 1:]` is a row of several still, and `[..., 0]` leaves out another dimension."""
    if len(index) < 2 or isinstance(index[1], slice):
        return False
    first = node.index.items[0].at if isinstance(node.index, p.Sequence) else None
    cut = any(isinstance(i, slice) and i != slice(None) for i in index[2:])
    return not isinstance(first, ast.Constant) and not cut


def _drops_first(node: p.Item) -> bool:
    """True for `labels[..., 1:]` and `labels[:, 1:]`."""
    index = node.index
    last = index.items[-1] if isinstance(index, p.Sequence) and len(index.items) == 2 else None
    return isinstance(last, p.Slice) and last.upper is None and p.text_of(last) == "1:"


def _key(base: dict[Key, Value], index: Key) -> Key:
    """The key of a dict that an index stands for: an unknown one is the one that was written alike."""
    if not isinstance(index, Unknown):
        return index
    return next((k for k in base if isinstance(k, Unknown) and k.text == index.text), index)
