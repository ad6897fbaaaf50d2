"""What a name means: what nobody bound, what is assigned to it, what reads like steps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from accumlint.reading import ir as p
from accumlint.reading import names
from accumlint.tracing.calls.cross_file import CrossFile
from accumlint.tracing.control.guards import Guards
from accumlint.tracing.control.trip_counts import TripCounts
from accumlint.tracing.gradients.tensors import detached
from accumlint.tracing.machine import Machine
from accumlint.tracing.name_roles import NameRoles
from accumlint.tracing.objects import Objects
from accumlint.tracing.values import ClassValue, Library, Object, Ranks, Unknown, Value

_BUILTINS = frozenset(
    {
        "range", "enumerate", "zip", "len", "iter", "next", "list", "tuple", "dict", "set", "int", "float", "bool",
        "str", "abs", "max", "min", "sum", "round", "print", "isinstance", "hasattr", "getattr", "setattr", "map",
        "filter", "sorted", "reversed", "any", "all", "super", "type", "callable", "divmod", "pow", "object", "open",
        "id", "repr", "vars", "delattr", "issubclass", "property", "globals", "exit", "quit", "input", "slice",
    }
)  # fmt: skip

# A call in a text, where other parentheses only group.
_CALLED = re.compile(r"[\w\])]\(")


@dataclass(eq=False, repr=False)
class NameResolver:
    """The meaning of names for one machine."""

    machine: Machine
    guards: Guards
    roles: NameRoles
    cross_file: CrossFile
    objects: Objects
    trip_counts: TripCounts

    def free(self, name: str, node: p.Node) -> Value:
        """A name that nothing in reach has bound."""
        if name == "__name__":
            return "__main__"
        if name in _BUILTINS:
            return Library(name)
        home = self.machine.home
        if home.module is not None:
            found = self.cross_file.bound(home, name)
            return found[0] if found is not None else self.symbol(name, name, node)
        if name in self.machine.program.classes and name not in self.machine.program.imports:
            return ClassValue(self.machine.program.classes[name], None)
        if name in self.machine.program.imports:
            return self.imported(self.machine.program.imports[name])
        match self.cross_file.starred(name):
            case (Library(path=path, importer=importer),):
                return self.imported(path, importer)
            case _:
                return self.symbol(name, name, node)

    def imported(self, path: str, importer: str = "") -> Value:
        """What a file imports under a dotted path: accumulation steps as the number that another file gives them."""
        found = Library(path, importer or self.machine.home.source.path)
        name = path.rpartition(".")[2]
        size = self.roles.is_steps(name) or name in self.roles.file.windows
        cross_file = self.cross_file
        number = cross_file.constant(found) if size else None
        if number is not None:
            return self.size(number[0], name)
        picked = cross_file.definitions(found)
        return picked[0] if picked is not None else found

    def symbol(self, text: str, name: str, node: p.Node, hint: object = None) -> Value:
        """Something that comes from elsewhere, known by its name alone; the same text is the same value."""
        machine = self.machine
        windows = self.roles.file.windows
        # As written, too: a helper's `args` is its caller's `train_args`.
        written = isinstance(node, p.Name | p.Attr) and p.dotted(node) in windows
        # A flag (`accumulate_gradients=False`) is no number of steps, whatever its name says.
        if not isinstance(hint, bool) and (self.roles.is_steps(name) or text in windows or written):
            if name in machine.home.source.asserted_one:
                return 1
            return machine.steps()
        if self.roles.is_epoch(text, name):
            return machine.passed()
        if names.is_updates_per_epoch(name):
            return self._updates_per_epoch()
        if names.is_length(name) and self._is_of_a_loader(text, name):
            return self.roles.length("loader") or Unknown("len(loader)", count=True)
        if text in machine.symbols:
            return machine.symbols[text]
        value = self._symbol(text, name, node, hint)
        machine.symbols[text] = value
        return value

    def _is_of_a_loader(self, text: str, name: str) -> bool:
        """True for a loader's own length, and where one is told; what ends a range or is set may be any number."""
        owner = text.removesuffix(name).rstrip(".").rpartition(".")[2]
        if self.roles.file.of(owner) == "loader":
            return True
        bounds = self.machine.home.relevance.bounds
        return name not in bounds and not names.is_configuration(text)

    def _symbol(self, text: str, name: str, node: p.Node, hint: object) -> Value:
        relevance = self.machine.home.relevance
        role = "" if names.is_configuration(text) else self.roles.of(name)
        if role and not isinstance(hint, bool):
            chosen = self._chosen_elsewhere(text)
            if chosen is not None:
                value = self.machine.eval(chosen)
                if not self.guards.truth(value, chosen, node):
                    return None
            return self.objects.symbol(role, text, node)
        if self.roles.file.is_ranks(name):
            return Unknown(text, ranks=Ranks(text))
        # What ends a range is no counter, though another function counts under its name.
        if (name not in relevance.bounds and self.roles.is_counter(text, name)) or names.is_start(
            name
        ):
            return self._beginning(text)
        return Unknown(text, hint=hint)

    def _chosen_elsewhere(self, attribute: str) -> p.Expr | None:
        """The setting without which an attribute is None (`self.scaler = GradScaler() if self.amp else None`)."""
        match self.machine.program.assigned.get(attribute, ()):
            case (p.Choice(test=test, orelse=p.Const(value=None)),):
                read = {n.id for n in p.walk_expr(test) if isinstance(n, p.Name)}
                return test if attribute.startswith("self.") and read == {"self"} else None
            case _:
                return None

    def _beginning(self, counter: str) -> int:
        """Where a counter begins that was set in a method which is not run: at the one number it is ever set to."""
        values = self.machine.program.assigned.get(counter, ())
        numbers = {v.value for v in values if isinstance(v, p.Const) and type(v.value) is int}
        return numbers.pop() if len(numbers) == 1 else 0

    def named(self, name: str, path: str, value: Value, node: p.Node) -> Value:
        """A value that is being given a name: the name may tell what it is."""
        if isinstance(value, int) and not isinstance(value, bool) and self.roles.is_steps(name):
            return self._named_steps(path, value, node)
        if isinstance(value, Object):
            return self._named_object(name, path, value, node)
        return self._named_unknown(name, path, value, node) if isinstance(value, Unknown) else value

    def _named_steps(self, path: str, value: int, node: p.Node) -> Value:
        """A number that is called the accumulation steps."""
        state = self.machine.state
        computed = isinstance(node, p.Assign) and not isinstance(node.value, p.Const)
        if computed and not state.asked and state.literal is None and not state.loops:
            # The number comes from sizes that somebody may choose otherwise.
            return self.machine.steps()
        if self._is_left_alone(path, node) and (size := self.size(value, path)) != value:
            return size
        # A loop's own number (`for micro_step in range(5)`) is none of the steps.
        if value > 1 and not state.asked and not isinstance(node, p.For):
            state.literal = value
        return value

    def _named_object(self, name: str, path: str, value: Object, node: p.Node) -> Value:
        if value.traced is not None:
            if not value.used:
                self.objects.rename(value, path)
        elif self.roles.of(name) == "model":
            self.objects.told_a_model(value, path, node)
        elif value.cls is None and self._is_counter_named(name):
            # What is taken for a part of a model is the number of steps that it keeps.
            return 0
        return value

    def _is_counter_named(self, name: str) -> bool:
        return name in self.machine.home.relevance.counters or names.is_start(name)

    def _named_unknown(self, name: str, path: str, value: Unknown, node: p.Node) -> Value:
        if value.networks and not value.loss and names.is_mask_of_lengths(name):
            # What a model makes of lengths has no gradient.
            return detached(value)
        if self.roles.file.is_ranks(name) and not value.tensor:
            return Unknown(path, ranks=Ranks(path))
        if value.batches and not value.networks and self._is_made_before(name, node):
            # What it is made of was gone through while datasets were set up; it is none of their items.
            return self.objects.symbol("loader", path, node)
        if value.objects and not value.batches and (back := self._given_back(name, path, value)):
            return back
        if (size := self.size(value, path)) is not value:
            return size
        if not value.tensor and names.is_updates_per_epoch(name):
            return self._updates_per_epoch()
        if value.networks and self.roles.of(name) == "model" and self._is_built_anew(value):
            return Unknown(path)
        if (found := self._of_role(name, path, value, node)) is not None:
            return found
        if self.roles.file.is_loss(name) and value.tensor and not value.loss:
            value.loss = True
            if value.left_out:
                value.reduction, value.varies = "mean", value.left_out
        from_call = _CALLED.search(value.text) and not names.is_skipped_step(value.text)
        if not value.tensor and from_call and not value.attributes and not value.count:
            # What a call returned is known to the reader by the name that it got.
            value.text = path
        return value

    def _given_back(self, name: str, path: str, value: Unknown) -> Object | None:
        """The object that a call hands back of those that it was given."""
        objects = value.objects
        back = next((x for x in objects if x.text == path), None)
        if back and (back.role == "engine" or sum(x.role == back.role for x in objects) > 1):
            return back
        same = [x for x in objects if x.role == self.roles.of(name)]
        kept = len(same) == 1 and same[0].role in ("optimizer", "scheduler")
        return same[0] if kept or (len(same) == 1 and "wrap" in value.text) else None

    def _of_role(self, name: str, path: str, value: Unknown, node: p.Node) -> Value:
        """What a value is by the role that its name tells; None where that tells nothing."""
        role, objects = self.roles.of(name), self.objects
        if not value.tensor and value.terms is None and value.hint is None and not value.loss:
            if not role and self._is_counter_named(name) and not value.count:
                # A counter taken up from a checkpoint starts at nothing in a fresh run.
                return 0
            given = [x for x in value.objects if x.role == role == "model"]
            if given and not names.is_another(name):
                # What a helper makes of a model, or takes out of its wrapper, has its parameters.
                networks = frozenset[str]().union(*(x.networks for x in given))
                return Object(path, given[0].traced, networks=networks)
            if role and not value.parameters and not value.count:
                return objects.symbol(role, path, node)
        elif value.networks and not value.batches and role in ("model", "optimizer", "scheduler"):
            # What a factory makes of parameters is an optimizer; what is called a model then is only a part of one.
            whole = role == "optimizer" or not value.parameters
            if whole and not value.loss and value.terms is None:
                # One factory makes an optimizer for each network that it is given.
                made, symbols = (
                    f"{role} of {value.text} {sorted(value.networks)}",
                    self.machine.symbols,
                )
                if made not in symbols:
                    symbols[made] = objects.made(role, path, "", value.networks, node)
                return symbols[made]
        return None

    def used(self, node: p.Expr) -> Value:
        """What an attribute holds that is used, although only None was seen to be put into it."""
        owner = self.machine.eval(node.base) if isinstance(node, p.Attr) else None
        if not isinstance(node, p.Attr) or not isinstance(owner, Object):
            return None
        return self.put_later(owner, node.name, node)

    def put_later(self, owner: Object, name: str, node: p.Node) -> Value:
        """What somebody put into an attribute by the time it is used; None where its name does not tell."""
        if owner.cls is None or not self.roles.of(name):
            return None
        found = self.symbol(f"{owner.text}.{name}", name, node)
        owner.attributes[name] = found
        return found

    def _updates_per_epoch(self) -> int:
        self.machine.state.length_asked = True
        return self.machine.scenario.length // self.machine.steps()

    def _is_built_anew(self, value: Unknown) -> bool:
        """True for what a class makes of a model for one micro-batch: a copy, since a wrapper is built once."""
        loops = self.machine.state.loops
        callee = value.text.partition("(")[0].rpartition(".")[2]
        return (
            callee[:1].isupper()
            and bool(loops)
            and loops[-1].node in self.machine.relevance.backwards
            and not self.trip_counts.holds_loop(loops[-1].node)
        )

    def _is_left_alone(self, path: str, node: p.Node) -> bool:
        """True for a setting that is written as a number here, and by nobody who calls the function."""
        if self.machine.state.loops:
            return False
        if isinstance(node, p.Function):
            # `train(loader, accumulation_steps=1)`: who else calls it may give another number.
            given = [call.keyword(path) for call in self.machine.program.calls.get(node.name, ())]
            return all(v is None or p.render(v) == "1" for v in given)
        return isinstance(node, p.Assign) and isinstance(node.value, p.Const)

    def size(self, value: Value, text: str) -> Value:
        """A number of accumulation steps as it is set or read: where it is 1, it is left at that for now."""
        machine, name = self.machine, text.rpartition(".")[2]
        told = self.roles.is_steps(name)
        if not told and text not in self.roles.file.windows:
            return value
        if isinstance(value, Unknown):
            told = told or not names.is_count(name)
            free = told and not (value.tensor or value.loss or isinstance(value.hint, bool))
        else:
            made = machine.program.assigned.get(text, ())
            alone = len(made) < 2 and all(isinstance(m, p.Const) for m in made)
            here = machine.home.module is None and name not in machine.home.source.asserted_one
            free = type(value) is int and value >= 1 and alone and here
            free = free and (value == 1 or value not in self._written_out)
            if free and value == 1:
                machine.state.single = text
        if free:
            machine.state.asked = True
            if type(value) is int and value > 1:
                machine.state.written.add(value)
        return machine.scenario.steps if free else value

    @cached_property
    def _written_out(self) -> frozenset[object]:
        """The numbers that the file divides or counts by without a name: `loss / 4` beside `STEPS = 4`."""
        return frozenset(
            node.right.value
            for node in self.machine.program.of(p.Binary)
            if isinstance(node.right, p.Const)
            and (
                node.op == "%" or (node.op == "/" and self.roles.file.is_loss(p.dotted(node.left)))
            )
        )

    def _is_made_before(self, name: str, node: p.Node) -> bool:
        """True for a loader by its name, that a call makes outside of all training loops."""
        machine = self.machine
        called = isinstance(node, p.Assign) and isinstance(node.value, p.Call)
        training = any(x.node in machine.relevance.backwards for x in machine.state.loops)
        return called and self.roles.of(name) == "loader" and not training
