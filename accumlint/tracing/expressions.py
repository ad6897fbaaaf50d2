"""The value of an expression: exact on numbers, linear on losses, unknown elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from accumlint.reading import ir as p
from accumlint.reading import names
from accumlint.tracing.budget import LATE
from accumlint.tracing.control.exits import Stopped, TooFar
from accumlint.tracing.gradients.tensors import derived
from accumlint.tracing.operators import (
    AT_THE_END,
    MIRRORED,
    ORDERED,
    data_of,
    known,
    made_from,
    on_numbers,
    on_sequences,
    size_of_pieces,
    skipped,
    text_of,
    undecided,
)
from accumlint.tracing.state import MAX_NODES, Loop
from accumlint.tracing.values import (
    Closure,
    Frame,
    Key,
    Lazy,
    Method,
    Number,
    Object,
    Unknown,
    Value,
)  # fmt: skip

if TYPE_CHECKING:
    from accumlint.tracing.interpreter import Machine


def _number(value: Value) -> Value:
    """An attribute of a model (`model.last_loss`) as what it is reckoned with."""
    match value:
        case Method(path=text):
            return Unknown(text)
        case Object(text=text, traced=None, cls=None, networks=networks):
            return Unknown(text, networks=networks)
        case _:
            return value


class Expressions:
    """Evaluates the expressions of one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._kinds: dict[type, Callable[[Any], Value]] = {
            p.Const: attrgetter("value"), p.Name: self._name, p.Attr: self._attr, p.Call: self._call,
            p.Binary: self._binary, p.Unary: self._unary, p.Bool: self._bool, p.Compare: self._compare,
            p.Choice: self._choice, p.Item: self._item, p.Sequence: self._sequence, p.Star: self._opaque,
            p.Table: self._table, p.Comprehension: self._comprehension, p.Text: self._text, p.Yield: self._yield,
            p.Walrus: self._walrus, p.Lambda: self._lambda, p.Opaque: self._opaque, p.Slice: self._slice,
        }  # fmt: skip

    def eval(self, node: p.Expr) -> Value:
        state = self.machine.state
        state.nodes += 1
        # The clock is asked now and then: on some machines that takes longer than many expressions.
        if state.nodes % 4096 == 0 and self.machine.budget.is_late():
            raise Stopped(LATE)
        if state.nodes > self.machine.ceiling:
            raise Stopped("too many steps") if state.nodes > MAX_NODES else TooFar
        return self._kinds[type(node)](node)

    def _name(self, node: p.Name) -> Value:
        return self.lookup(node.id, node)

    def lookup(self, name: str, node: p.Node) -> Value:
        frame: Frame | None = self.machine.frame
        if name not in self.machine.frame.globals_:
            while frame is not None:
                if name in frame.names:
                    return frame.names[name]
                frame = frame.outer
        names = self.machine.home.frame.names
        if name in names:
            return names[name]
        return self.machine.resolver.free(name, node)

    def _attr(self, node: p.Attr) -> Value:
        base = self.eval(node.base)
        found = self.machine.attributes.attribute(base, node.name, node)
        # A framework's object tells its own number.
        framework = isinstance(base, Object) and base.role
        return found if framework else self.machine.resolver.size(found, p.dotted(node))

    def _call(self, node: p.Call) -> Value:
        return self.machine.dispatch.call(node)

    def _binary(self, node: p.Binary) -> Value:
        left, right = self.eval(node.left), self.eval(node.right)
        found = self.arithmetic(node.op, left, right, node)
        if found == 0 and node.op == "//" and left != 0 and "len(" in p.render(node.left):
            # The data is longer than the few batches that are tried: no loop goes round zero times.
            return Unknown(p.shown(node))
        return found

    def arithmetic(self, op: str, left: Value, right: Value, node: p.Node) -> Value:
        """`left op right`: exact on numbers, linear on losses, unknown elsewhere."""
        if isinstance(left, Number) and isinstance(right, Number):
            if op == "%" and right and isinstance(right, int) and isinstance(left, int):
                self.machine.resolver.modulus(right)
            return on_numbers(op, left, right)
        if isinstance(left, list | tuple | str) and op in "+*%":
            return on_sequences(op, left, right, node)
        left, right = map(_number, (left, right))
        if isinstance(left, Unknown) or isinstance(right, Unknown):
            return self.machine.tensors.linear(op, left, right, node)
        return Unknown(p.dotted(node.target) if isinstance(node, p.Augment) else p.shown(node))

    def _unary(self, node: p.Unary) -> Value:
        if node.op == "not" and self.machine.guards.goal is not None:
            self.machine.guards.goal = not self.machine.guards.goal
        value = self.eval(node.operand)
        if node.op == "not":
            known = self.machine.guards.known_truth(value)
            if known is not None:
                return not known
            return Unknown(f"not {text_of(value, node.operand)}", *data_of(value))
        if isinstance(value, Number):
            if node.op == "-":
                return -value
            return value if node.op == "+" else Unknown(f"~{value}")
        if isinstance(value, Unknown) and node.op == "-":
            return self.machine.tensors.linear("*", value, -1, node)
        if isinstance(value, Unknown) and node.op == "~" and value.batches:
            # The opposite mask is one of the same data.
            found = derived(p.render(node), value, node=node)
            found.counted = value.counted
            return found
        return Unknown(p.render(node))

    def _bool(self, node: p.Bool) -> Value:
        guards, goal = self.machine.guards, self.machine.guards.goal
        left = self.eval(node.left)
        guards.goal = goal
        known = guards.known_truth(left)
        deciding = guards.deciding is not None
        if known is None and not deciding and isinstance(left, Unknown) and not left.tensor:
            # A flag made of flags is decided where it is asked for, not where it is made.
            right = self.eval(node.right)
            if isinstance(right, bool):
                return left if right == (node.op == "and") else right
            if isinstance(right, Unknown) and not right.tensor:
                return Unknown(f"{left.text} {node.op} {right.text}")
            if node.op == "or" and isinstance(right, Number):
                # The loader's length, unless somebody chooses another number; what else may be chosen is not known.
                return right if "len(" in p.render(node.right) else left
        if known is None:
            known = guards.truth(left, node.left, node)
            return known if (node.op == "and") != known else self.eval(node.right)
        if (node.op == "or") == known:
            return left
        right = self.eval(node.right)
        if left is False and guards.deciding is None and isinstance(right, Unknown):
            if not right.tensor and " % " in right.text:
                # A step that comes also with a checkpoint, say, comes on most micro-batches with the count alone.
                return False
        return right

    def _compare(self, node: p.Compare) -> Value:
        left = self.eval(node.left)
        chained: Value = True
        shown = node.left
        for op, expression in node.rest:
            right = self.eval(expression)
            result = self.compared(op, left, right, shown, expression)
            if isinstance(result, Unknown) and not result.tensor:
                reached = self.machine.guards.reached(node)
                result = result if reached is None else reached
            if result is False:
                # `0 < limit < count`: the link that is known not to hold decides.
                return False
            chained = result if chained is True else chained
            left, shown = right, expression
        return chained

    def compared(self, op: str, left: Value, right: Value, shown: p.Expr, other: p.Expr) -> Value:
        guards = self.machine.guards
        found = known(op, left, right, shown, other, guards.choice)
        if found is None:
            found = self.machine.tensors.threshold(op, left, right, guards.ends_by_size)
        if found is None and op in MIRRORED:
            found = self.machine.tensors.threshold(MIRRORED[op], right, left, guards.ends_by_size)
        if found is None:
            found = skipped(op, left, right)
        # Data of a batch is no loop's number.
        data = isinstance(left, Unknown) and left.tensor and not left.count
        if found is None and not data:
            found = self._at_the_end(op, right, shown)
        if found is None:
            found = self._beyond(op, left, right, shown, other)
        if found is not None:
            return found
        if isinstance(right, Unknown) and not isinstance(left, Unknown) and op in MIRRORED:
            return self.compared(MIRRORED[op], right, left, other, shown)
        return undecided(op, left, right, shown, other)

    def _at_the_end(self, op: str, right: Value, shown: p.Expr) -> bool | None:
        """A loop's own number against something unknown, where a step is decided: the end of the loader.

        None for any other comparison; a limit (`i == max_steps`) is far away.
        """
        machine = self.machine
        if not isinstance(right, Unknown) or not machine.state.loops:
            return None
        inner = machine.state.loops[-1]
        loop = inner.node
        size = size_of_pieces(loop)
        if op not in AT_THE_END or not isinstance(loop, p.For) or isinstance(right.hint, int):
            return None
        if (
            (right.tensor and not (size and right.count))
            or not (machine.state.last or inner.rounds)
            or names.is_behind(right.text)
            or (machine.guards.deciding is not None and not machine.guards.ends_windows())
        ):
            return None
        own = p.target_names(loop.target) | size
        read = {n.id for n in p.walk_expr(shown) if isinstance(n, p.Name)}
        if inner.rounds and read.isdisjoint(own):
            # The end of this round's part (`stop = min((i + 1) * size, rows)`) is the loop's own, too.
            own |= made_from(own, loop)
        if not read or not read <= own:
            return None
        machine.guards.supposed = True
        last = inner.index >= inner.rounds if inner.rounds else machine.state.last[-1]
        return last == AT_THE_END[op]

    def _beyond(
        self, op: str, left: Value, right: Value, shown: p.Expr, other: p.Expr
    ) -> bool | None:
        """A counter against an unknown limit: limits are far away, starts and warm-ups are behind."""
        machine = self.machine
        if isinstance(right, Number) and isinstance(left, Unknown) and op in MIRRORED:
            if left.text.endswith(f" % {machine.scenario.steps}"):
                # What is left over comes round again and again.
                return None
            return self._beyond(MIRRORED[op], right, left, other, shown)
        if not isinstance(left, Number) or isinstance(left, bool) or op not in ORDERED:
            return None
        if not isinstance(right, Unknown) or right.tensor or isinstance(shown, p.Const | p.Unary):
            return None
        if not machine.state.loops:
            return None
        machine.guards.supposed = True
        if op in ("==", "!=") and (chosen := machine.guards.the_chosen_one(left)) is not None:
            return chosen == (op == "==")
        if isinstance(right.hint, int) or names.is_behind(right.text):
            return op in (">", ">=", "!=")
        if op in ("<", "<=") and _passes_over(machine.guards.deciding):
            return False
        return op in ("<", "<=", "!=")

    def _choice(self, node: p.Choice) -> Value:
        test = self.eval(node.test)
        known = self.machine.guards.known_truth(test)
        if known is None:
            known = self.machine.guards.truth(test, node.test, node)
        return self.eval(node.body if known else node.orelse)

    def _item(self, node: p.Item) -> Value:
        found = self.machine.attributes.item(self.eval(node.base), self.eval(node.index), node)
        return self.machine.resolver.size(found, p.dotted(node))

    def _slice(self, node: p.Slice) -> Value:
        bounds = [
            self.eval(b) if b is not None else None for b in (node.lower, node.upper, node.step)
        ]
        return slice(*bounds)

    def _sequence(self, node: p.Sequence) -> Value:
        found: list[Value] = []
        for item in node.items:
            if isinstance(item, p.Star):
                found.extend(self.machine.items(self.eval(item.value)))
            else:
                found.append(self.eval(item))
        return tuple(found) if node.kind == "tuple" else found

    def _table(self, node: p.Table) -> Value:
        found: dict[Key, Value] = {}
        for written, value in node.items:
            name = self.eval(written) if written is not None else None
            held = self.eval(value)
            if written is None:
                found.update(held if isinstance(held, dict) else {})
            elif isinstance(name, str | int | float | bool | type(None)):
                found[name] = held
        return found

    def _comprehension(self, node: p.Comprehension) -> Value:
        if node.kind == "generator" and (loader := self._loader_of(node)) is not None:
            return self._expression(node, loader)
        found: list[Value] = []
        with self._inside(self.machine.frame):
            self._clause(node, 0, found)
        if node.kind == "dict":
            table: dict[Key, Value] = {}
            for pair in found:
                if isinstance(pair, tuple) and isinstance(pair[0], str | int):
                    table[pair[0]] = pair[1]
                elif isinstance(pair, tuple):
                    # A mapping over unknown keys is unknown; what its values carry is not.
                    return pair[1] if isinstance(pair[1], Unknown) else Unknown("{…}")
            return table
        return found

    def _loader_of(self, node: p.Comprehension) -> Value:
        """The loader that a comprehension goes through batch by batch; None for anything else."""
        _, iterable, tests = node.clauses[0]
        if len(node.clauses) > 1 or tests or not isinstance(iterable, p.Name | p.Attr):
            return None
        source = self.eval(iterable)
        return source if self.machine.iteration.is_loader(source) else None

    def _expression(self, node: p.Comprehension, source: Value) -> Lazy:
        """A generator expression over a loader, which gives a batch when it is asked for one."""
        frame = self.machine.frame

        def made(item: Value) -> Value:
            with self._inside(frame):
                self.machine.bind(node.clauses[0][0], item, node)
                return self.eval(node.element)

        return Lazy("expression", [source], made=made)

    @contextmanager
    def _inside(self, outer: Frame) -> Generator[None, None, None]:
        """A frame inside another one, whose names are known in it."""
        saved = self.machine.frame
        self.machine.frame = Frame(
            {}, outer, owner=outer.owner, receiver=outer.receiver, home=outer.home
        )
        try:
            yield
        finally:
            self.machine.frame = saved

    def _clause(self, node: p.Comprehension, position: int, found: list[Value]) -> None:
        if position == len(node.clauses):
            found.append(self.eval(node.element))
            return
        target, iterable, tests = node.clauses[position]
        loop = Loop(node, 0, False)
        self.machine.state.loops.append(loop)
        try:
            items = self.machine.items(self.eval(iterable))
            if len(items) == 1 and _leaves_the_last_out(iterable):
                # Perhaps the parts of a window (`[True for _ in range(len(parts) - 1)] + [False]`).
                items = list[Value](range(self.machine.scenario.steps - 1))
            for item in items:
                loop.index += 1
                if isinstance(item, Unknown) and item.parameters and _is_pair(target):
                    # Each of `model.named_parameters()` is a name and a parameter.
                    item = (Unknown(f"{item.text}[0]"), item)
                self.machine.bind(target, item, node)
                if not any(
                    self.machine.guards.known_truth(self.eval(part)) is False
                    for test in tests
                    for part in _conjuncts(test)
                ):
                    self._clause(node, position + 1, found)
        finally:
            self.machine.state.loops.pop()

    def _text(self, node: p.Text) -> Value:
        for part in node.parts:
            self.eval(part)
        return Unknown("text")

    def _yield(self, node: p.Yield) -> Value:
        frame: Frame | None = self.machine.frame
        while frame is not None and frame.on_yield is None:
            frame = frame.outer
        value = self.eval(node.value) if node.value is not None else None
        if frame is None or frame.on_yield is None:
            return None
        if node.delegates:
            self.machine.iteration.stream(value, frame.driver or node).drive(frame.on_yield)
        else:
            frame.on_yield(value)
        return None

    def _walrus(self, node: p.Walrus) -> Value:
        value = self.eval(node.value)
        self.machine.bind(node.target, value, node)
        return value

    def _lambda(self, node: p.Lambda) -> Value:
        frame = self.machine.frame
        return Closure(node.function, frame if frame is not self.machine.home.frame else None)

    def _opaque(self, node: p.Node) -> Value:
        if isinstance(node, p.Star):
            return self.eval(node.value)
        return Unknown("…")


def _passes_over(guard: p.Node | None) -> bool:
    """True for a guard that only leaves rounds out: those that a run has behind it when it goes on."""
    match guard:
        case p.If(body=(*_, p.Jump(kind="continue"))):
            return True
        case _:
            return False


def _is_pair(target: p.Expr) -> bool:
    return isinstance(target, p.Sequence) and len(target.items) == 2


def _leaves_the_last_out(iterable: p.Expr) -> bool:
    """`range(len(parts) - 1)`."""
    match iterable:
        case p.Call(
            func=p.Name(id="range"),
            args=[p.Argument(value=p.Binary(op="-", left=p.Call() as of, right=p.Const(value=1)))],
        ):
            return p.dotted(of.func) == "len"
        case _:
            return False


def _conjuncts(test: p.Expr) -> Iterator[p.Expr]:
    """The parts of a test that all have to hold."""
    if isinstance(test, p.Bool) and test.op == "and":
        yield from _conjuncts(test.left)
        yield from _conjuncts(test.right)
    else:
        yield test
