"""What loops go through: loaders, splits of a batch, ranges, wrappers, generators."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from accumlint.reading import ir as p
from accumlint.tracing.calls.call import Call
from accumlint.tracing.calls.cross_file import CrossFile
from accumlint.tracing.calls.functions import FunctionCalls
from accumlint.tracing.calls.numeric import is_handy
from accumlint.tracing.control.exceptions import Exceptions
from accumlint.tracing.control.exits import Leave, PythonError
from accumlint.tracing.control.streams import (
    LONGEST,
    adds_up_calls,
    alike,
    asks_a_length,
    compared_with_number,
    counted,
    counts,
    each_of,
    is_fixed,
    mapped,
    numbered,
    repeated,
    text_of,
)
from accumlint.tracing.machine import Machine
from accumlint.tracing.name_resolver import NameResolver
from accumlint.tracing.values import Bound, Key, Lazy, Number, Object, Stream, Unknown, Value


@dataclass(eq=False, repr=False)
class Iteration:
    """Turns values into streams for the machine's loops."""

    machine: Machine
    cross_file: CrossFile
    resolver: NameResolver
    exceptions: Exceptions
    function_calls: FunctionCalls

    def __post_init__(self) -> None:
        self.roles, self.objects = self.resolver.roles, self.resolver.objects
        self.trip_counts = self.resolver.trip_counts
        self._ends: dict[p.Node | None, frozenset[str]] = {}

    def stream(self, value: Value, node: p.Node | None) -> Stream:
        """What a loop at `node` (None: no loop statement) goes through."""
        match value:
            case list() | tuple() | set():
                if not value and (self._training(node) or adds_up_calls(node)):
                    # Filled by something that was not followed.
                    if isinstance(value, list):
                        value.append(Unknown("…"))
                    return each_of(list(value) or [Unknown("…")])
                if self._stands_for_many(value, node):
                    return self.unknown(Unknown("batches"), node)
                return each_of(list(value))
            case dict():
                return each_of(list(value))
            case str() | bytes() | None | bool() | int() | float():
                return each_of([])
            case Lazy():
                return self.lazy(value, node)
            case Object():
                return self.object(value, node)
            case Unknown():
                return self.unknown(value, node)
            case _:
                return self.unknown(Unknown("…"), node)

    def items(self, value: Value, limit: int = 64) -> list[Value]:
        """All items of something that is not a training loop's data."""
        found: list[Value] = []

        def take(item: Value) -> None:
            found.append(item)
            if len(found) >= limit:
                raise Leave("break")

        with suppress(Leave):
            self.stream(value, None).drive(take)
        return found

    def _stands_for_many(
        self, value: list[Value] | tuple[Value, ...] | set[Key], node: p.Node | None
    ) -> bool:
        """True for batches made in a loop of unknown length, of which one example is left."""
        items = list(value)
        if len(items) != 1 or not isinstance(items[0], Unknown) or items[0].networks:
            return False
        # What does not step goes through the parts of one window, whose number was perhaps asked for already.
        stepping = self.machine.relevance.stepping
        if not self._training(node) or not isinstance(node, p.For) or node not in stepping:
            return False
        read = (n.id for n in p.walk_expr(node.iterable) if isinstance(n, p.Name))
        return any(self.roles.of(name) == "loader" for name in read)

    def _training(self, node: p.Node | None) -> bool:
        return node is not None and node in self.machine.relevance.backwards

    def lazy(self, value: Lazy, node: p.Node | None) -> Stream:
        machine = self.machine
        match value.kind:
            case "range":
                return self.range(value, node)
            case "enumerate":
                start = value.args[1] if len(value.args) > 1 else 0
                inner = self.stream(value.args[0], node)
                return numbered(inner, start if isinstance(start, int) else 0)
            case "zip":
                return self.zip(value, node)
            case "islice":
                return self.islice(value, node)
            case "generator":
                return self.generator(value, node)
            case "items":
                return mapped(self.stream(value.args[0], node), lambda x: (Unknown("key"), x))
            case "cycle" | "count":
                return self.endless(value, node)
            case "map":
                inner, callee = self.stream(value.args[1], node), value.args[0]
                at = node if node is not None else machine.program.body[0]
                return mapped(inner, lambda x: machine.apply(callee, [x], {}, at))
            case "expression":
                assert value.made is not None
                return mapped(self.stream(value.args[0], node), value.made)
            case _:
                return self.stream(value.args[0], node) if value.args else each_of([])

    def range(self, value: Lazy, node: p.Node | None) -> Stream:
        machine = self.machine
        bounds = list(value.args)
        if len(bounds) == 1:
            bounds = [0, bounds[0]]
        elif isinstance(bounds[0], Unknown):
            # A run that resumes nothing begins at nothing.
            bounds[0] = 0
        start, stop, step = (*bounds, 1)[:3]
        if (
            isinstance(start, Number)
            and isinstance(stop, Number)
            and isinstance(step, Number)
            and all(map(is_handy, (start, stop, step)))
            and int(step)
        ):
            numbers = range(int(start), int(stop), int(step))
            full = len(numbers) == machine.scenario.length and machine.state.length_asked
            longest = len(numbers) if full and asks_a_length(node) else self.longest(node)
            if len(numbers) > longest and self._training(node):
                machine.state.cut = True
            return each_of(list(numbers[:longest]), full and self._training(node))
        first = start if isinstance(start, int) else 0
        each = step if isinstance(step, int) else 1
        rounds = self.trip_counts.taken(node)
        is_pass = start == 0 and step == 1 and self._is_a_pass(node, stop)
        whole = machine.state.guessed and rounds == machine.scenario.steps and each == step
        if isinstance(stop, Unknown) and start == 0:
            bound = [name for name, value in machine.frame.names.items() if value is stop]
            # The only round that is taken is the last one, too, where the body asks for that.
            if node not in self._ends:
                self._ends[node] = compared_with_number(node)
            ends = rounds == 1 and not self._ends[node].isdisjoint(bound)
            if is_pass or whole or ends:
                # From here on the unknown bound is the number that was taken for it.
                machine.frame.names.update(dict.fromkeys(bound, rounds))
            if is_pass or whole:
                machine.symbols[stop.text] = rounds
            machine.state.length_asked |= is_pass

        def drive(body: Callable[[Value], None]) -> None:
            for position in self._positions(node, rounds):
                body(first + position * each)

        guessed = machine.state.guessed or isinstance(step, Unknown)
        return Stream(drive, is_pass, rounds if guessed else 0)

    def _positions(self, node: p.Node | None, rounds: int) -> Iterator[int]:
        """The rounds of a loop of unknown length, with some more where its windows have not shown by then."""
        position, begun = 0, len(self.machine.state.events)
        while position < rounds or (position < 24 and self.trip_counts.unfinished(node, begun)):
            yield position
            position += 1

    def _is_a_pass(self, node: p.Node | None, stop: Value) -> bool:
        """True for a loop of unknown length that ends windows by itself, and is begun anew after each pass.

        Not where the code sees to it that the length is a multiple of the accumulation steps.
        """
        machine = self.machine
        loops = machine.state.loops
        if not isinstance(node, p.For) or not isinstance(stop, Unknown):
            return False
        if node not in machine.relevance.stepping or self.trip_counts.holds_loop(node):
            return False
        anew = machine.state.by_epochs or any(x.node in machine.relevance.backwards for x in loops)
        if not anew or any(x.loader for x in loops):
            return False
        asked = (n for n in p.walk_expr(node.iterable) if isinstance(n, p.Name | p.Attr | p.Call))
        written = {stop.text, *map(p.render, asked)}
        parted = {text.rpartition(".")[2] for text in machine.home.source.parted}
        steps = machine.scenario.steps
        multiple = re.search(rf"\* {steps}\b|\b{steps} \*", stop.text)
        return not multiple and parted.isdisjoint(x.rpartition(".")[2] for x in written)

    def longest(self, node: p.Node | None) -> int:
        """How many rounds of a loop with a known number of them are worth taking."""
        machine = self.machine
        if node is None:
            return LONGEST
        if not self._training(node):
            return 8
        if self.trip_counts.holds_loop(node):
            return 3 if node in machine.relevance.stepping else max(3, machine.scenario.steps)
        return 64 if node not in machine.relevance.stepping else max(24, machine.scenario.length)

    def zip(self, value: Lazy, node: p.Node | None) -> Stream:
        value = Lazy("zip", [counted(a, self.items) for a in value.args])
        streams = [self.stream(a, None if is_fixed(a) else node) for a in value.args]
        if not streams:
            return each_of([])
        fixed = {i: self.items(a, LONGEST) for i, a in enumerate(value.args) if is_fixed(a)}
        if len(fixed) == len(streams):
            return each_of([tuple(parts) for parts in zip(*fixed.values(), strict=False)])
        lead = next(i for i in range(len(streams)) if i not in fixed)

        def drive(body: Callable[[Value], None]) -> None:
            position = 0

            def one(item: Value) -> None:
                nonlocal position
                row: list[Value] = []
                for i, arg in enumerate(value.args):
                    if i in fixed:
                        given = fixed[i][position : position + 1]
                        row.append(given[0] if given else Unknown("…"))
                    else:
                        row.append(item if i == lead else alike(arg, item))
                position += 1
                body(tuple(row))

            streams[lead].drive(one)

        return Stream(drive, streams[lead].loader)

    def islice(self, value: Lazy, node: p.Node | None) -> Stream:
        stop = value.args[1] if len(value.args) > 1 else None
        source = value.args[0]
        # A list of the next few batches is made outside of the loop that goes through them.
        batches = (
            isinstance(source, Lazy) and source.kind == "iter" and self.is_loader(source.args[0])
        )
        if isinstance(stop, int) and (self._training(node) or batches):
            items: list[Value] = [
                self.machine.fetched(source, None) for _ in range(min(stop, LONGEST))
            ]
            state, whole = self.machine.state, self.machine.scenario.length
            return each_of(items, stop == whole and state.length_asked and self._training(node))
        return Stream(self.stream(source, node).drive)

    def endless(self, value: Lazy, node: p.Node | None) -> Stream:
        rounds = self.trip_counts.taken(node)
        if value.kind == "count":
            start = value.args[0] if value.args and isinstance(value.args[0], int) else 0
            return each_of(list(range(start, start + rounds)))
        source = value.args[0] if value.args else Unknown("…")
        return Stream(
            lambda body: repeated(rounds, lambda: body(self.machine.fetched(source, None))), False
        )

    def generator(self, value: Lazy, node: p.Node | None) -> Stream:
        machine = self.machine
        closure = value.closure
        assert closure is not None
        at = node if node is not None else machine.program.body[0]
        function = closure.closure.function if isinstance(closure, Bound) else closure.function
        endless = any(
            isinstance(n, p.While) and isinstance(n.test, p.Const) for n in p.walk(function.body)
        )

        def limit() -> int:
            return self.trip_counts.taken(node) if self._training(node) else 8

        most = max(limit(), 3) if endless else LONGEST

        def drive(body: Callable[[Value], None]) -> None:
            passed = 0
            frame = machine.frame

            def one(item: Value) -> None:
                nonlocal passed
                passed += 1
                inside, machine.frame = machine.frame, frame
                if isinstance(item, Unknown) and not item.batches and not item.networks:
                    # Data that came from nowhere known is a fetch of its own.
                    item = machine.fetched(item, None)
                try:
                    body(item)
                finally:
                    machine.frame = inside
                if passed >= most and endless:
                    raise Leave("exhausted")

            try:
                call = Call(function.name, value.args, value.kwargs, at)
                self.function_calls.run_generator(closure, call, one)
            except Leave as leave:
                if leave.signal != "exhausted":
                    raise
            if passed == 0:
                # Nothing could be followed inside: it still gives data.
                repeated(limit(), lambda: body(self.machine.fetched(Unknown(function.name), None)))

        return Stream(drive, self._training(node) and not endless and not counts(function))

    def object(self, value: Object, node: p.Node | None) -> Stream:
        if value.role in ("optimizer", "model", "scheduler", "scaler", "criterion"):
            return each_of([value])
        if value.cls is not None:
            found = self.cross_file.method_of(value, "__iter__")
            if found is not None and found.closure.function.yields:
                return self.generator(Lazy("generator", [], closure=found), node)
        return self.unknown(Unknown(value.text), node)

    def unknown(self, value: Unknown, node: p.Node | None) -> Stream:
        """A loader or a split batch, item by item; something else, once."""
        machine = self.machine
        if value.parameters:
            return each_of([value])
        if (one := self._one_of_several(value, node)) is not None:
            return each_of([one])
        if not self._training(node):
            if self.is_loader(value) and not value.batches and node is not None:
                return Stream(lambda body: body(self.machine.fetched(value, None)), False)
            item = Unknown(f"{value.text}[…]", value.batches, value.networks, value.forwards)
            item.loss, item.reduction = value.loss, value.reduction
            return each_of([item])
        rounds = self.trip_counts.taken(node)
        if (loader := self._loader_of(node)) is not None:
            return Stream(lambda body: repeated(rounds, lambda: body(loader)), False)
        if value.batches:
            newest = max(value.batches, key=lambda b: b.serial)
            return Stream(
                lambda body: repeated(rounds, lambda: body(self.machine.fetched(value, newest))),
                rounds=rounds,
            )
        last = value.text.rpartition(".")[2]
        if last.startswith(("loss", "losses", "all_loss", "task", "objectives")):
            return each_of([Unknown(f"{value.text}[…]", loss=True)])

        def drive(body: Callable[[Value], None]) -> None:
            begun = len(machine.state.events)
            for position in self._positions(node, rounds):
                last = position + 1 >= rounds and self.trip_counts.nearly_done(node, begun)
                machine.state.last.append(last)
                try:
                    body(self.machine.fetched(value, None))
                finally:
                    machine.state.last.pop()

        return Stream(drive, self.is_loader(value) or rounds == machine.scenario.length)

    def _one_of_several(self, value: Unknown, node: p.Node | None) -> Object | None:
        """What stands for all that a loop goes through: one of them (`for optimizer in self.optimizers`)."""
        if not isinstance(node, p.For) or value.batches or self.is_loader(value):
            return None
        roles = self.roles
        made = [
            (role, n)
            for n in p.target_names(node.target)
            if (role := roles.of(n)) in ("optimizer", "model", "scheduler")
        ]
        return self.objects.symbol(*made[0], node) if len(made) == 1 else None

    def _loader_of(self, node: p.Node | None) -> Object | None:
        """What a loop over several loaders (`for loader in self.loaders`) goes through."""
        if not isinstance(node, p.For) or not self.trip_counts.holds_windows(node):
            return None
        made = [n for n in p.target_names(node.target) if self.roles.of(n) == "loader"]
        return self.objects.symbol("loader", made[0], node) if len(made) == 1 else None

    def is_loader(self, value: Value) -> bool:
        """True for what is a loader by what is done with its name, or by that name."""
        named = isinstance(value, Unknown | Object)
        return named and self.roles.of(value.text.rpartition(".")[2]) == "loader"

    def pieces(self, batch: Unknown, number: Value) -> list[Value] | None:
        """A batch cut into as many pieces as there are accumulation steps; None for any other cut."""
        state = self.machine.state
        if not batch.batches or batch.networks or not state.asked:
            return None
        if number != self.machine.scenario.steps:
            return None
        parent = max(batch.batches, key=lambda b: b.serial)
        return [self.machine.fetched(batch, parent) for _ in range(self.machine.scenario.steps)]

    def next(self, source: Value) -> Value:
        """`next(source)`."""
        if isinstance(source, Lazy):
            inner = source.args[0] if source.args else Unknown("…")
            if source.kind == "iter" and isinstance(inner, list | tuple):
                if source.position >= len(inner):
                    if not self.exceptions.handled("StopIteration"):
                        return Unknown(f"{text_of(inner)}[…]")
                    raise PythonError("StopIteration")
                source.position += 1
                return inner[source.position - 1]
            if source.kind in ("iter", "cycle", "islice"):
                return self.next(inner)
            if source.kind == "enumerate":
                source.position += 1
                return (source.position - 1, self.next(inner))
            if source.kind == "count":
                source.position += 1
                return source.position - 1
            if source.made is not None:
                return source.made(self.next(inner))
        if isinstance(source, Unknown) and source.parameters:
            # The first of a model's parameters is no data.
            return source
        return self.machine.fetched(source, None)

    def length(self, value: Value) -> Value:
        """`len(value)`."""
        match value:
            case list() | tuple() | dict() | str() | set() | bytes():
                return len(value)
            case Lazy(kind="range"):
                return len(self.items(value, LONGEST))
            case Lazy(args=[inner, *_]):
                return self.length(inner)
            case Object(text=text) | Unknown(text=text):
                if isinstance(value, Unknown) and value.batches:
                    return Unknown(f"len({text})", value.batches, count=True)
                length = self.roles.length(text.rpartition(".")[2].strip("[…]"))
                if length is not None:
                    return length
                if isinstance(value, Object) and value.role in ("optimizer", "model"):
                    return 1
                return Unknown(f"len({text})", count=True)
            case _:
                return Unknown("len(…)", count=True)
