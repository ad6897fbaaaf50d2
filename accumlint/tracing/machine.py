"""Executes a program abstractly: statements, expressions, guards and loops.

What calls mean is in `calling`; this module knows only Python. Statements outside the slice are passed over.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction

from accumlint.reading import names
from accumlint.reading import program as p
from accumlint.reading.relevance import Relevance, called, key
from accumlint.tracing import trace as t
from accumlint.tracing.calling import Calling
from accumlint.tracing.elsewhere import Borders, Elsewhere
from accumlint.tracing.leaving import Leave, PythonError, Stopped, TooFar
from accumlint.tracing.ledger import Ledger
from accumlint.tracing.values import (
    Batch,
    ClassValue,
    Closure,
    Counted,
    Frame,
    Home,
    Key,
    Number,
    Object,
    Stream,
    Unknown,
    Value,
)  # fmt: skip

MAX_NODES = 60_000


@dataclass(frozen=True)
class Scenario:
    """The accumulation steps and the loader's length that a run assumes."""

    steps: int
    length: int


@dataclass(eq=False)
class Decision:
    """One guard decided on this path. `options` are the choices it could take, the taken one first."""

    key: str
    choice: str
    options: tuple[str, ...]
    matters: bool
    data: bool


@dataclass(eq=False)
class Loop:
    """A loop being executed: its statement, how many times its body was begun, whether it passes over data."""

    node: p.Node
    index: int
    loader: bool


@dataclass(eq=False)
class State:
    """All that a run changes."""

    events: list[t.Event] = field(default_factory=list[t.Event])
    unread: list[t.Unread] = field(default_factory=list[t.Unread])
    ledger: Ledger = field(default_factory=Ledger)
    loops: list[Loop] = field(default_factory=list[Loop])
    epoch: int = 0
    serial: int = 0
    fetched: dict[object, int] = field(default_factory=dict[object, int])
    ordinals: dict[object, int] = field(default_factory=dict[object, int])
    current: int = 0
    no_grad: int = 0
    autocast: int = 0
    inside: int = 0
    closures: int = 0
    silenced: list[str] = field(default_factory=list[str])
    flags: dict[str, bool | None] = field(default_factory=dict[str, bool | None])
    wrappers: dict[str, str] = field(default_factory=dict[str, str])
    wrapped: set[Object] = field(default_factory=set[Object])
    networks: dict[str, int] = field(default_factory=dict[str, int])
    accumulating: list[Object] = field(default_factory=list[Object])
    last: list[bool] = field(default_factory=list[bool])
    asked: bool = False
    guessed: bool = False
    literal: int | None = None
    length_asked: bool = False
    depth: int = 0
    nodes: int = 0
    skipping: int = 0
    step_guards: dict[p.Node, bool] = field(default_factory=dict[p.Node, bool])
    rounds: dict[object, int] = field(default_factory=dict[object, int])
    cut: bool = False


_COMPARISONS: dict[str, Callable[[Number, Number], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_NEGATED = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">", "is": "is not", "is not": "is",
            "in": "not in", "not in": "in"}  # fmt: skip
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}


class Machine:
    """One run of one program on one path."""

    def __init__(
        self,
        program: p.Program,
        relevance: Relevance,
        scenario: Scenario,
        chosen: dict[str, str],
        until: float,
        borders: Borders,
    ) -> None:
        self.program = program
        self.relevance = relevance
        self.scenario = scenario
        self.chosen = chosen
        self.until = until
        self.state = State()
        self.decisions: dict[str, Decision] = {}
        self.asked_data: dict[str, int] = {}
        self.main = Home(program.source, Frame({}), relevance, None)
        self.frame = self.main.frame
        self.ceiling = MAX_NODES
        self.symbols: dict[str, Value] = {}
        self.elsewhere = Elsewhere(self, borders)
        self.calling = Calling(self)
        self.inner_loops: dict[p.Node, bool] = {}
        self.entered: set[p.Function] = set()
        self.captured: dict[p.Function, Closure] = {}
        self._expressions: dict[type, Callable[[p.Node], Value]] = {
            p.Const: self._const, p.Name: self._name, p.Attr: self._attr, p.Call: self._call, p.Binary: self._binary,
            p.Unary: self._unary, p.Bool: self._bool, p.Compare: self._compare, p.Choice: self._choice,
            p.Item: self._item, p.Sequence: self._sequence, p.Star: self._opaque, p.Table: self._table,
            p.Comprehension: self._comprehension, p.Text: self._text, p.Yield: self._yield, p.Walrus: self._walrus,
            p.Lambda: self._lambda, p.Opaque: self._opaque, p.Slice: self._slice,
        }  # fmt: skip
        self._statements: dict[type, Callable[[p.Node], str | None]] = {
            p.Assign: self._assign, p.Augment: self._augment, p.Do: self._do, p.If: self._if, p.For: self._for,
            p.While: self._while, p.With: self._with, p.Try: self._try, p.Return: self._return, p.Jump: self._jump,
            p.Raise: self._raise, p.Delete: self._delete, p.Scope: self._scope, p.Import: self._import,
            p.Function: self._function, p.Class: self._class,
        }  # fmt: skip
        self._spoken: bool | None = None
        self.returned: Value = None
        # The side that the guard being evaluated had better take (None: either).
        self.goal: bool | None = None
        # The statement whose test is being evaluated.
        self.deciding: p.Node | None = None
        # A flag was decided, or an unknown limit taken to be far away or behind.
        self.supposed = False

    @property
    def home(self) -> Home:
        """The file whose code is being executed."""
        return self.frame.home or self.main

    # Places in time

    def emit(self, event: t.Event) -> None:
        if self.elsewhere.hears(event):
            self.elsewhere.lead(event.node)
            self.state.events.append(event)

    def stamp(self, node: p.Node, subject: str) -> tuple[p.Node, int, int, int, str]:
        """The fields that every event begins with."""
        return (node, len(self.state.events), self.state.current, self.state.epoch, subject)

    def iteration(self) -> object:
        """What tells this pass through the innermost loops from any other."""
        return (*((loop.node, loop.index) for loop in self.state.loops), self.state.epoch)

    def fetch(self, parent: Batch | None = None, source: object = "") -> Batch:
        """New data. What several sources give in one iteration is one micro-batch, what one gives twice are two."""
        state = self.state
        state.serial += 1
        here = (self.iteration(), source)
        state.fetched[here] = number = state.fetched.get(here, 0) + 1
        return Batch(state.serial, parent, (here[0], number))

    def passed(self) -> int:
        """How many passes over the data are over."""
        return self.state.epoch - any(loop.loader for loop in self.state.loops)

    def speaks_of_steps(self) -> bool:
        """True when the program names the accumulation steps anywhere, or asks whether they are over."""
        if self._spoken is None:
            self._spoken = any(
                names.is_steps(written) or "gradient_accumulation" in written
                for node in self.program.nodes
                for written in _written(node)
            )
        return self._spoken

    def ordinal(self, key: object) -> int:
        """The number of a micro-batch, given when it is first met."""
        return self.state.ordinals.setdefault(key, len(self.state.ordinals) + 1)

    def newest(self, batches: frozenset[Batch]) -> int:
        """The number of the micro-batch that some data belongs to, 0 where it has none yet."""
        latest = max(batches, key=lambda b: b.serial, default=None)
        return self.state.ordinals.get(latest.when, 0) if latest is not None else 0

    # Statements

    def block(self, statements: tuple[p.Stmt, ...]) -> str | None:
        kept = self.relevance.kept
        for statement in statements:
            if statement not in kept and not isinstance(
                statement, p.Import | p.Function | p.Class | p.Scope
            ):
                continue
            signal = self._statements[type(statement)](statement)
            if signal is not None:
                return signal
        return None

    def _assign(self, node: p.Node) -> str | None:
        assert isinstance(node, p.Assign)
        value = self.eval(node.value)
        for target in node.targets:
            self.bind(target, value, node)
        return None

    def bind(self, target: p.Expr, value: Value, node: p.Node) -> None:
        match target:
            case p.Name(id=name):
                self.store(name, self.calling.named(name, name, value, node))
                self.calling.assigned(target, value, node)
            case p.Attr(base=base, name=name):
                receiver = self.eval(base)
                value = self.calling.named(name, p.dotted(target), value, node)
                self.calling.set_attribute(receiver, name, value, node, p.dotted(target))
                self.calling.assigned(target, value, node)
            case p.Item(base=base, index=index):
                self.calling.set_item(self.eval(base), self.eval(index), value)
            case p.Sequence(items=items):
                for item, part in zip(
                    items, self.calling.unpacked(value, items, node), strict=True
                ):
                    self.bind(item.value if isinstance(item, p.Star) else item, part, node)
            case p.Star(value=inner):
                self.bind(inner, value, node)
            case _:
                pass

    def store(self, name: str, value: Value) -> None:
        frame = self.frame
        if name in frame.globals_:
            self.home.frame.names[name] = value
        elif name in frame.nonlocals:
            outer = frame.outer
            while outer is not None and name not in outer.names:
                outer = outer.outer
            (outer or frame).names[name] = value
        else:
            frame.names[name] = value

    def _augment(self, node: p.Node) -> str | None:
        assert isinstance(node, p.Augment)
        old = self.eval(node.target)
        value = self.eval(node.value)
        target = p.dotted(node.target)
        if isinstance(old, list) and node.op == "+":
            if isinstance(value, list | tuple):
                old.extend(value)
            return None
        new = self.arithmetic(node.op, old, value, node)
        if node.op in ("+", "-") and isinstance(new, Unknown):
            new = self.calling.added(target, old, value, new, node)
        self.calling.gradient_changed(node.target, old, node.op, value, node)
        self.bind(node.target, new, node)
        return None

    def _do(self, node: p.Node) -> str | None:
        assert isinstance(node, p.Do)
        self.eval(node.value)
        return None

    def _if(self, node: p.Node) -> str | None:
        assert isinstance(node, p.If)
        then, other = self._weight(node.body), self._weight(node.orelse)
        self.goal = None if then == other else then > other
        self.deciding = node
        self.supposed = False
        value = self.eval(node.test)
        self.goal = self.deciding = None
        worked_out = not self.supposed
        if value is False and _sets_steps(node.body):
            # Whether anything is accumulated hangs on sizes that are only an example here.
            value = Unknown(p.render(node.test))
        taken = self.truth(value, node.test, node)
        if self._guards_step(node):
            shut = value is False and worked_out
            self.state.step_guards[node] = shut and self.state.step_guards.get(node, True)
        return self.block(node.body if taken else node.orelse)

    def _guards_step(self, node: p.If) -> bool:
        """True when a step hangs on this test, and no backward."""
        inside = [s for s in node.body if s in self.relevance.stepping]
        return bool(inside) and not any(s in self.relevance.backwards for s in node.body)

    def _for(self, node: p.Node) -> str | None:
        assert isinstance(node, p.For)
        iterable = self.eval(node.iterable)
        stream = self.stream(iterable, self._driver(node))
        training = node in self.relevance.backwards
        loop = Loop(node, 1, stream.loader and training)
        state = self.state
        state.loops.append(loop)
        begun = len(state.events)
        if loop.loader:
            state.epoch += 1
        passed = 0

        def body(item: Value) -> None:
            nonlocal passed
            passed += 1
            self.bind(node.target, item, node)
            signal = self.block(node.body)
            # The next item is fetched before its round begins, and belongs to it.
            loop.index = passed + 1
            if signal in ("break", "return"):
                raise Leave(signal)

        signal: str | None = None
        try:
            stream.drive(body)
        except Leave as leave:
            signal = leave.signal
        finally:
            state.loops.pop()
        if loop.loader and signal is None and self._is_epoch(loop, begun):
            pending = state.ledger.pending()
            self.emit(t.EpochEnd(*self.stamp(node, p.render(node.iterable)), pending, passed))
        if signal == "return":
            return signal
        if signal is None and node.orelse:
            return self.block(node.orelse)
        return None

    def _driver(self, node: p.For) -> p.Node:
        """A loop that yields to a training loop goes on as long as that one asks."""
        driver = self.frame.driver
        if driver is not None and any(
            isinstance(n, p.Yield) for n in p.walk(node.body, into_functions=False)
        ):
            return driver
        return node

    def _is_epoch(self, loop: Loop, begun: int) -> bool:
        """True when this loop was the one over the data: nothing further out is one already."""
        return not any(outer.loader for outer in self.state.loops)

    def _while(self, node: p.Node) -> str | None:
        assert isinstance(node, p.While)
        loop = Loop(node, 0, False)
        self.state.loops.append(loop)
        limit = self.rounds(node, p.render(node.test))
        begun = len(self.state.events)
        try:
            while True:
                if loop.index == limit and limit < 24 and self.unfinished(node, begun):
                    limit += 1
                value = self.eval(node.test)
                known = self.known_truth(value)
                if known is False:
                    break
                if known is None and loop.index >= limit:
                    break
                if loop.index >= (limit if self._far(node) else 400):
                    self.state.cut = True
                    break
                if known is True and loop.index >= limit and not self._progresses(node):
                    self.state.cut = True
                    break
                loop.index += 1
                signal = self.block(node.body)
                if signal == "break":
                    return None
                if signal == "return":
                    return signal
        finally:
            self.state.loops.pop()
        return self.block(node.orelse)

    def _far(self, node: p.While) -> bool:
        """True when the test compares a counter with a limit that nobody knows: it holds as long as one likes."""
        if not isinstance(node.test, p.Compare) or len(node.test.rest) != 1:
            return not isinstance(node.test, p.Const)
        values = [self.eval(node.test.left), self.eval(node.test.rest[0][1])]
        return any(isinstance(v, Unknown) for v in values)

    def _progresses(self, node: p.While) -> bool:
        """True when the test compares numbers, so that the loop ends by itself."""
        return not isinstance(node.test, p.Const)

    def _with(self, node: p.Node) -> str | None:
        assert isinstance(node, p.With)
        return self._entered(node, 0)

    def _entered(self, node: p.With, position: int) -> str | None:
        if position == len(node.items):
            return self.block(node.body)
        expression, target = node.items[position]
        context = self.calling.context(self.eval(expression), expression)
        if context.generator is not None:
            signals: list[str | None] = []

            def body(value: Value) -> None:
                if target is not None:
                    self.bind(target, value, node)
                saved = self.frame
                self.frame = here
                try:
                    signals.append(self._entered(node, position + 1))
                finally:
                    self.frame = saved

            here = self.frame
            self.calling.run_generator(context.generator, context.args, context.kwargs, body, node)
            return signals[0] if signals else self._entered(node, position + 1)
        value = context.enter(expression) if context.enter is not None else None
        if target is not None:
            self.bind(target, value, node)
        try:
            return self._entered(node, position + 1)
        finally:
            if context.leave is not None:
                context.leave(expression)

    def _try(self, node: p.Node) -> str | None:
        assert isinstance(node, p.Try)
        try:
            try:
                signal = self.block(node.body)
                if signal is None:
                    signal = self.block(node.orelse)
                return signal
            except PythonError as error:
                for kind, name, body in node.handlers:
                    if not kind or error.kind in kind or kind.endswith("Exception"):
                        if name:
                            self.store(name, Unknown(name))
                        return self.block(body)
                raise
        finally:
            if node.final:
                self.block(node.final)

    def _return(self, node: p.Node) -> str | None:
        assert isinstance(node, p.Return)
        self.returned = self.eval(node.value) if node.value is not None else None
        return "return"

    def _jump(self, node: p.Node) -> str | None:
        assert isinstance(node, p.Jump)
        return node.kind

    def _raise(self, node: p.Node) -> str | None:
        assert isinstance(node, p.Raise)
        raise PythonError(node.exception.strip("()") or "Exception")

    def _delete(self, node: p.Node) -> str | None:
        assert isinstance(node, p.Delete)
        for target in node.targets:
            if isinstance(target, p.Item) and isinstance(held := self.eval(target.base), list):
                index = self.eval(target.index)
                with suppress(IndexError, TypeError, ValueError):
                    if isinstance(index, int | slice):
                        del held[index]
        return None

    def _scope(self, node: p.Node) -> str | None:
        assert isinstance(node, p.Scope)
        (self.frame.globals_ if node.kind == "global" else self.frame.nonlocals).update(node.names)
        return None

    def _import(self, node: p.Node) -> str | None:
        assert isinstance(node, p.Import)
        for name, path in node.names:
            self.store(name, self.calling.imported(path))
        return None

    def _function(self, node: p.Node) -> str | None:
        assert isinstance(node, p.Function)
        scope = self.frame if self.frame is not self.home.frame else None
        closure = Closure(node, scope, self.frame.owner)
        self.captured[node] = closure
        self.store(node.name, closure)
        return None

    def _class(self, node: p.Node) -> str | None:
        assert isinstance(node, p.Class)
        scope = self.frame if self.frame is not self.home.frame else None
        self.store(node.name, ClassValue(node, scope))
        return None

    # Expressions

    def eval(self, node: p.Expr) -> Value:
        state = self.state
        state.nodes += 1
        if state.nodes & 255 == 0 and time.process_time() > self.until:
            raise Stopped("out of time")
        if state.nodes > self.ceiling:
            raise Stopped("too many steps") if state.nodes > MAX_NODES else TooFar
        return self._expressions[type(node)](node)

    def _const(self, node: p.Node) -> Value:
        assert isinstance(node, p.Const)
        return node.value

    def _name(self, node: p.Node) -> Value:
        assert isinstance(node, p.Name)
        return self.lookup(node.id, node)

    def lookup(self, name: str, node: p.Node) -> Value:
        frame: Frame | None = self.frame
        if name not in self.frame.globals_:
            while frame is not None:
                if name in frame.names:
                    return frame.names[name]
                frame = frame.outer
        names = self.home.frame.names
        if name in names:
            return names[name]
        return self.calling.free(name, node)

    def _attr(self, node: p.Node) -> Value:
        assert isinstance(node, p.Attr)
        return self.calling.attribute(self.eval(node.base), node.name, node)

    def _call(self, node: p.Node) -> Value:
        assert isinstance(node, p.Call)
        return self.calling.call(node)

    def _binary(self, node: p.Node) -> Value:
        assert isinstance(node, p.Binary)
        return self.arithmetic(node.op, self.eval(node.left), self.eval(node.right), node)

    def arithmetic(self, op: str, left: Value, right: Value, node: p.Node) -> Value:
        """`left op right`: exact on numbers, linear on losses, unknown elsewhere."""
        if isinstance(left, Number) and isinstance(right, Number):
            return self._numbers(op, left, right)
        if isinstance(left, list | tuple | str) and op in "+*%":
            return self._sequences(op, left, right, node)
        if isinstance(left, Unknown) or isinstance(right, Unknown):
            return self.calling.linear(op, left, right, node)
        return Unknown(p.dotted(node.target) if isinstance(node, p.Augment) else p.shown(node))

    def _numbers(self, op: str, left: Number, right: Number) -> Value:
        if op == "%" and right and isinstance(right, int) and isinstance(left, int):
            self.calling.modulus(right)
        if op == "/" and not isinstance(left, float) and not isinstance(right, float) and right:
            found = Fraction(left) / Fraction(right)
            return int(found) if found.denominator == 1 else found
        try:
            result = _worked_out(op, left, right)
        except (ArithmeticError, ValueError, TypeError):
            return Unknown(f"{left} {op} {right}")
        return result if isinstance(result, Number) else Unknown(f"{left} {op} {right}")

    def _sequences(
        self, op: str, left: list[Value] | tuple[Value, ...] | str, right: Value, node: p.Node
    ) -> Value:
        if op == "+" and isinstance(left, list) and isinstance(right, list):
            return [*left, *right]
        if op == "+" and isinstance(left, tuple) and isinstance(right, tuple):
            return (*left, *right)
        if op == "+" and isinstance(left, str) and isinstance(right, str):
            return left + right
        if op == "*" and isinstance(left, list) and isinstance(right, int) and right < 1000:
            return left * right
        return Unknown(p.shown(node))

    def _unary(self, node: p.Node) -> Value:
        assert isinstance(node, p.Unary)
        if node.op == "not" and self.goal is not None:
            self.goal = not self.goal
        value = self.eval(node.operand)
        if node.op == "not":
            known = self.known_truth(value)
            if known is not None:
                return not known
            return Unknown(f"not {self.text(value, node.operand)}", *_data(value))
        if isinstance(value, Number):
            if node.op == "-":
                return -value
            return value if node.op == "+" else Unknown(f"~{value}")
        if isinstance(value, Unknown) and node.op == "-":
            return self.calling.linear("*", value, -1, node)
        return Unknown(p.render(node))

    def _bool(self, node: p.Node) -> Value:
        assert isinstance(node, p.Bool)
        goal = self.goal
        left = self.eval(node.left)
        self.goal = goal
        known = self.known_truth(left)
        if (
            known is None
            and self.deciding is None
            and isinstance(left, Unknown)
            and not left.tensor
        ):
            # A flag made of flags is decided where it is asked for, not where it is made.
            right = self.eval(node.right)
            if isinstance(right, bool):
                return left if right == (node.op == "and") else right
            if isinstance(right, Unknown) and not right.tensor:
                return Unknown(f"{left.text} {node.op} {right.text}")
        if known is None:
            known = self.truth(left, node.left, node)
            if (node.op == "and") != known:
                return known
            return self.eval(node.right)
        return left if (node.op == "or") == known else self.eval(node.right)

    def _compare(self, node: p.Node) -> Value:
        assert isinstance(node, p.Compare)
        left = self.eval(node.left)
        result: Value = True
        shown = node.left
        for op, expression in node.rest:
            right = self.eval(expression)
            result = self.compared(op, left, right, shown, expression)
            if result is not True:
                return result
            left, shown = right, expression
        return result

    def compared(self, op: str, left: Value, right: Value, shown: p.Expr, other: p.Expr) -> Value:
        if isinstance(left, Number) and isinstance(right, Number) and op in _COMPARISONS:
            return _COMPARISONS[op](left, right)
        if op in ("is", "is not"):
            return self._identical(op, left, right, shown, other)
        if op in ("in", "not in"):
            return self._contained(op, left, right, shown, other)
        plain = (str, bytes, bool, int, float, type(None), tuple, list)
        if isinstance(left, plain) and isinstance(right, plain) and op in ("==", "!="):
            if not _holds_unknown(left) and not _holds_unknown(right):
                return (left == right) == (op == "==")
        window = self.calling.threshold(op, left, right)
        if window is not None:
            return window
        skipped = _skipped(op, left, right)
        if skipped is not None:
            return skipped
        far = self._beyond(op, left, right, shown, other)
        if far is not None:
            return far
        if isinstance(right, Unknown) and not isinstance(left, Unknown) and op in _MIRRORED:
            return self.compared(_MIRRORED[op], right, left, other, shown)
        text = self.text(left, shown)
        against = self.text(right, other)
        batches, networks = _data(left)
        more, further = _data(right)
        if batches or more:
            # A comparison has data, and no graph.
            networks = further = frozenset[str]()
        # Negations are written one way, so that `!=` and `==` are one decision.
        negated = op in ("!=", ">=", "<=")
        key = f"not {text} {_NEGATED[op]} {against}" if negated else f"{text} {op} {against}"
        found = Unknown(key, batches | more, networks | further)
        if isinstance(left, Unknown) and batches:
            found.counted = Counted("some", (left,))
        return found

    def _beyond(
        self, op: str, left: Value, right: Value, shown: p.Expr, other: p.Expr
    ) -> bool | None:
        """A counter against an unknown limit: limits are far away, starts and warm-ups are behind."""
        if isinstance(right, Number) and isinstance(left, Unknown) and op in _MIRRORED:
            return self._beyond(_MIRRORED[op], right, left, other, shown)
        if (
            not isinstance(left, Number)
            or isinstance(left, bool)
            or isinstance(shown, p.Const | p.Unary)
        ):
            return None
        if (
            not isinstance(right, Unknown)
            or right.tensor
            or op not in _COMPARISONS
            or not self.state.loops
        ):
            return None
        self.supposed = True
        if isinstance(right.hint, int) or names.is_behind(right.text):
            return op in (">", ">=", "!=")
        return op in ("<", "<=", "!=")

    def _identical(self, op: str, left: Value, right: Value, shown: p.Expr, other: p.Expr) -> Value:
        positive = op == "is"
        if right is None or left is None:
            value = left if right is None else right
            if value is None:
                return positive
            if isinstance(value, Unknown) and not value.tensor:
                text = f"{self.text(value, shown)} is None"
                return Unknown(text if positive else f"not {text}")
            return not positive
        if isinstance(left, bool) and isinstance(right, bool):
            return (left is right) == positive
        if isinstance(left, Object) and isinstance(right, Object):
            return (left is right) == positive
        if isinstance(right, bool) and isinstance(left, Unknown):
            text = self.text(left, shown)
            return Unknown(text if positive == right else f"not {text}")
        text = f"{self.text(left, shown)} is {self.text(right, other)}"
        return Unknown(text if positive else f"not {text}")

    def _contained(self, op: str, left: Value, right: Value, shown: p.Expr, other: p.Expr) -> Value:
        positive = op == "in"
        if isinstance(right, dict | list | tuple | set) and not isinstance(left, Unknown):
            if not any(isinstance(x, Unknown) for x in right):
                try:
                    return (left in right) == positive
                except TypeError:
                    pass
        if isinstance(right, str) and isinstance(left, str):
            return (left in right) == positive
        if isinstance(right, list | tuple) and isinstance(left, Unknown) and not left.tensor:
            literals = [x for x in right if isinstance(x, str)]
            chosen = self.chosen.get(left.text) or (
                self.decisions[left.text].choice if left.text in self.decisions else None
            )
            if chosen is not None and literals:
                return (chosen in literals) == positive
        text = f"{self.text(left, shown)} in {self.text(right, other)}"
        batches, networks = _data(left)
        return Unknown(text if positive else f"not {text}", batches, networks)

    def _choice(self, node: p.Node) -> Value:
        assert isinstance(node, p.Choice)
        test = self.eval(node.test)
        known = self.known_truth(test)
        if known is None:
            known = self.truth(test, node.test, node)
        return self.eval(node.body if known else node.orelse)

    def _item(self, node: p.Node) -> Value:
        assert isinstance(node, p.Item)
        return self.calling.item(self.eval(node.base), self.eval(node.index), node)

    def _slice(self, node: p.Node) -> Value:
        assert isinstance(node, p.Slice)
        bounds = [
            self.eval(b) if b is not None else None for b in (node.lower, node.upper, node.step)
        ]
        return slice(*bounds)

    def _sequence(self, node: p.Node) -> Value:
        assert isinstance(node, p.Sequence)
        found: list[Value] = []
        for item in node.items:
            if isinstance(item, p.Star):
                found.extend(self.items(self.eval(item.value)))
            else:
                found.append(self.eval(item))
        return tuple(found) if node.kind == "tuple" else found

    def _table(self, node: p.Node) -> Value:
        assert isinstance(node, p.Table)
        found: dict[Key, Value] = {}
        for written, value in node.items:
            if written is None:
                spread = self.eval(value)
                if isinstance(spread, dict):
                    found.update(spread)
                continue
            name = self.eval(written)
            if isinstance(name, str | int | float | bool | type(None)):
                found[name] = self.eval(value)
            else:
                self.eval(value)
        return found

    def _comprehension(self, node: p.Node) -> Value:
        assert isinstance(node, p.Comprehension)
        found: list[Value] = []
        saved = self.frame
        self.frame = Frame({}, saved, owner=saved.owner, receiver=saved.receiver, home=saved.home)
        try:
            self._clause(node, 0, found)
        finally:
            self.frame = saved
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

    def _clause(self, node: p.Comprehension, position: int, found: list[Value]) -> None:
        if position == len(node.clauses):
            found.append(self.eval(node.element))
            return
        target, iterable, tests = node.clauses[position]
        loop = Loop(node, 0, False)
        self.state.loops.append(loop)
        try:
            for item in self.items(self.eval(iterable)):
                loop.index += 1
                self.bind(target, item, node)
                if all(self.known_truth(self.eval(test)) is not False for test in tests):
                    self._clause(node, position + 1, found)
        finally:
            self.state.loops.pop()

    def _text(self, node: p.Node) -> Value:
        assert isinstance(node, p.Text)
        for part in node.parts:
            self.eval(part)
        return Unknown("text")

    def _yield(self, node: p.Node) -> Value:
        assert isinstance(node, p.Yield)
        frame: Frame | None = self.frame
        while frame is not None and frame.on_yield is None:
            frame = frame.outer
        value = self.eval(node.value) if node.value is not None else None
        if frame is None or frame.on_yield is None:
            return None
        if node.delegates:
            self.stream(value, frame.driver or node).drive(frame.on_yield)
        else:
            frame.on_yield(value)
        return None

    def _walrus(self, node: p.Node) -> Value:
        assert isinstance(node, p.Walrus)
        value = self.eval(node.value)
        self.bind(node.target, value, node)
        return value

    def _lambda(self, node: p.Node) -> Value:
        assert isinstance(node, p.Lambda)
        return Closure(node.function, self.frame if self.frame is not self.home.frame else None)

    def _opaque(self, node: p.Node) -> Value:
        if isinstance(node, p.Star):
            return self.eval(node.value)
        return Unknown("…")

    # Guards

    def text(self, value: Value, expression: p.Expr) -> str:
        """How a value is named in decisions: by itself where it is unknown, else as written."""
        if isinstance(value, Unknown):
            return value.text
        if isinstance(value, Object):
            return value.text
        if isinstance(value, str | int | float | bool | type(None)):
            return p.render(expression) if not isinstance(value, str) else repr(value)
        return p.render(expression)

    def known_truth(self, value: Value) -> bool | None:
        match value:
            case Unknown():
                key, negated = _stripped(value.text)
                if key in self.decisions and not self.decisions[key].data:
                    self.supposed = True
                    return (self.decisions[key].choice == "true") != negated
                return None
            case (
                bool()
                | int()
                | float()
                | str()
                | bytes()
                | None
                | Fraction()
                | tuple()
                | list()
                | dict()
                | set()
            ):
                return bool(value)
            case _:
                return True

    def truth(self, value: Value, expression: p.Expr, node: p.Node) -> bool:
        """The side of a guard that is taken; an unknown one is decided once per run by its text."""
        known = self.known_truth(value)
        self.supposed = self.supposed or isinstance(value, Unknown)
        if known is not None:
            if isinstance(value, Unknown):
                decision = self.decisions[_stripped(value.text)[0]]
                decision.matters = decision.matters or self._matters(node)
            return known
        assert isinstance(value, Unknown)
        key, negated = _stripped(value.text)
        if names.is_end(p.render(expression)) or names.is_end(key):
            return bool(self.state.last and self.state.last[-1]) != negated
        if value.tensor:
            return self._data_guard(value, key, negated, node)
        if names.is_skipped_step(key):
            return self._skipped_step(key, expression) != negated
        if self.state.loops and self.state.asked and f" % {self.scenario.steps} == " in key:
            return self._boundary() != negated
        equality = _equality(key)
        if equality is not None:
            return self._literal(equality[0], equality[1], node, key) != negated
        matters = self._matters(node)
        default = self._default(value, key, negated, node)
        choice = self.chosen.get(key, "true" if default else "false")
        options = (choice, "false" if choice == "true" else "true")
        self.decisions[key] = Decision(key, choice, options, matters, False)
        return (choice == "true") != negated

    def _boundary(self) -> bool:
        """A counter that began nobody knows where is asked for the window's end: it comes every so often."""
        rounds = self.state.rounds
        number = rounds.setdefault(self.iteration(), len(rounds) + 1)
        return number % self.scenario.steps == 0

    def _skipped_step(self, key: str, expression: p.Expr) -> bool:
        """Whether the scaler left out its last step: only on an exceptional path, and then each time."""
        choice = self.chosen.get(key, "ordinary")
        self.decisions[key] = Decision(key, choice, (choice, "exceptional"), True, True)
        if choice == "exceptional":
            self.emit(t.SkippedStep(*self.stamp(expression, key), p.render(expression)))
        return choice == "exceptional"

    def _matters(self, node: p.Node) -> bool:
        """True for a guard worth trying both ways: something happens to the gradient on one side."""
        deciding = self.relevance.deciding
        return node in deciding or self.deciding in deciding

    def _literal(self, symbol: str, literal: str, node: p.Node, key: str) -> bool:
        """`symbol == literal`: the symbol takes one of the literals it is compared with."""
        if symbol in self.decisions:
            decision = self.decisions[symbol]
            decision.matters = decision.matters or self._matters(node)
            if literal not in decision.options:
                decision.options = (*decision.options, literal)
            return decision.choice == literal
        matters = self._matters(node)
        prefer = isinstance(node, p.If) and self._prefers_literal(node)
        choice = self.chosen.get(symbol, literal if prefer else "…")
        self.decisions[symbol] = Decision(symbol, choice, (choice, literal, "…"), matters, False)
        return choice == literal

    def _prefers_literal(self, node: p.If) -> bool:
        """True when `x == "literal"` had better hold: the branch trains, or what follows gives up in the end."""
        then, other = self._weight(node.body), self._weight(node.orelse)
        if then < 0 or then < other:
            return False
        return then > other or bool(node.orelse)

    def _default(self, value: Unknown, key: str, negated: bool, node: p.Node) -> bool:
        """The first choice for an unknown flag, as the truth of `key`."""
        if isinstance(value.hint, bool) and not negated:
            return value.hint
        if not isinstance(node, p.If):
            if self.goal is not None:
                return self.goal != negated
            if key.endswith(" is None"):
                return False
            return not names.is_off_by_default(key) and not names.is_occasional(key)
        then, other = self._weight(node.body), self._weight(node.orelse)
        if then < 0 or other < 0:
            return (then > other) != negated
        if then != other:
            taken = then > other
            # A flag whose name says "unusual" stays off unless the other side has no event at all.
            if taken and not negated and names.is_off_by_default(key) and other > 0:
                taken = False
            return taken != negated
        if key.endswith(" is None") or names.is_off_by_default(key) or names.is_occasional(key):
            return False
        if then == 0 and not node.orelse:
            # What only tells about a loss is told.
            return negated != any(s in self.relevance.reports for s in node.body)
        return True

    def _weight(self, block: tuple[p.Stmt, ...]) -> int:
        """How much a branch has to do with training; below zero for one that gives up."""
        if not block:
            return 0
        if isinstance(block[-1], p.Raise):
            return -2
        if (
            len(block) == 1
            and isinstance(block[0], p.If)
            and block[0] not in self.relevance.eventful
        ):
            return max(self._weight(block[0].body), self._weight(block[0].orelse))
        eventful = sum(s in self.relevance.eventful for s in block)
        backward = sum(s in self.relevance.backwards for s in block)
        if _exits(block[-1]):
            return -2
        if isinstance(block[-1], p.Jump | p.Return) and not backward:
            return -1
        return 4 * backward + min(eventful, 3)

    def _data_guard(self, value: Unknown, key: str, negated: bool, node: p.Node) -> bool:
        """A guard on the data (is the loss finite?): the ordinary side, except once on an exceptional path."""
        if not isinstance(node, p.If):
            return bool(negated)
        where = f"{id(node)}"
        then, other = self._weight(node.body), self._weight(node.orelse)
        ordinary = then >= other and not (then == 0 and not _carries(node, self.relevance))
        if _carries(node, self.relevance) and then == other == 0:
            ordinary = False
        skips = _skips(node.body) or _skips(node.orelse) or then != other
        self.asked_data[where] = self.asked_data.get(where, 0) + 1
        flags = any(
            isinstance(s, p.Assign)
            and isinstance(s.value, p.Const)
            and isinstance(s.value.value, bool)
            for s in node.body
        )
        matters = bool(skips or flags) and bool(self.state.loops) and _guards_health(value, node)
        if where not in self.decisions:
            choice = self.chosen.get(where, "ordinary")
            self.decisions[where] = Decision(
                where, choice, (choice, "exceptional", "at the boundary"), matters, True
            )
        decision = self.decisions[where]
        when = {"exceptional": 2, "at the boundary": self.scenario.steps}.get(decision.choice)
        exceptional = self.asked_data[where] == when
        taken = ordinary != exceptional
        if exceptional:
            jump = _skips(node.body if taken else node.orelse)
            at: p.Node = jump if jump is not None else node
            kind = (
                jump.kind
                if isinstance(jump, p.Jump)
                else ("return" if jump is not None else "pass")
            )
            self.emit(t.Skip(*self.stamp(at, key), p.render(node.test), kind))
        return taken

    # Iteration

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

    def stream(self, value: Value, node: p.Node | None) -> Stream:
        """What a loop at `node` goes through."""
        return self.calling.stream(value, node)

    def rounds(self, node: p.Node | None, shown: str) -> int:
        """How often a loop of unknown length is taken round."""
        if node is None or node not in self.relevance.backwards:
            return 1
        if self.holds_loop(node):
            inside = any(
                x.node is not node and x.node in self.relevance.backwards for x in self.state.loops
            )
            # Several loaders within an epoch: an odd number of them, or no partial window would be left over.
            return 2 if self._over_data(node) and not inside else 3
        if node in self.relevance.stepping or not any(
            loop.node in self.relevance.backwards
            for loop in self.state.loops
            if loop.node is not node
        ):
            return self.scenario.length
        # A loop inside another one, with the step after it, is a window.
        self.state.asked = True
        self.state.guessed = True
        return self.scenario.steps

    def unfinished(self, node: p.Node | None, begun: int) -> bool:
        """True when a loop around another one has seen too few micro-batches to show its windows."""
        if node is None or node not in self.relevance.backwards or not self.holds_loop(node):
            return False
        # Micro-batches may be collected first, until there are enough for a window.
        return (self._seen(begun) > 0 or self.state.asked) and self._seen(
            begun
        ) < self.scenario.length

    def nearly_done(self, node: p.Node | None, begun: int) -> bool:
        """True when the round that begins is the last one, as far as `unfinished` will tell after it."""
        if node is None or not self.holds_loop(node):
            return True
        return self._seen(begun) + 1 >= self.scenario.length

    def _seen(self, begun: int) -> int:
        return len({e.microbatch for e in self.state.events[begun:] if isinstance(e, t.Backward)})

    def holds_loop(self, node: p.Node) -> bool:
        """True when another training loop runs inside this one, here or in a function it calls."""
        if node not in self.inner_loops:
            body = node.body if isinstance(node, p.For | p.While) else ()
            self.inner_loops[node] = any(True for _ in self._training_loops(body, set()))
        return self.inner_loops[node]

    def has_training_loop(self, body: tuple[p.Stmt, ...]) -> bool:
        """True when some statements lead to a loop that holds a backward."""
        return any(True for _ in self._training_loops(body, set()))

    def _training_loops(
        self, body: tuple[p.Stmt, ...], seen: set[str]
    ) -> Iterator[p.For | p.While]:
        for inner in p.walk(body, into_functions=False):
            if isinstance(inner, p.For | p.While) and inner in self.relevance.backwards:
                yield inner
            if isinstance(inner, p.Call):
                callee = called(inner.func)
                if callee in self.relevance.reaching_backward and callee not in seen:
                    seen.add(callee)
                    for function in (*self.program.functions, *self.elsewhere.functions):
                        if key(function) == callee:
                            yield from self._training_loops(function.body, seen)

    def _over_data(self, node: p.Node) -> bool:
        """True when the next loop inside goes over a loader: then this one counts epochs."""
        body = node.body if isinstance(node, p.For | p.While) else ()
        for inner in self._training_loops(body, set()):
            if isinstance(inner, p.While):
                return True
            read = {n.id for n in p.walk_expr(inner.iterable) if isinstance(n, p.Name)}
            read |= {n.name for n in p.walk_expr(inner.iterable) if isinstance(n, p.Attr)}
            return any(names.role_of(n) == "loader" for n in read)
        return False


def _worked_out(op: str, left: Number, right: Number) -> Number | complex | None:
    """`left op right` as Python has it (a root may be complex); None where numbers have no such operator."""
    match op:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left / right
        case "//":
            return left // right
        case "%":
            return left % right
        case "**":
            # A power too big to be a size or a rate would only keep us busy.
            return left**right if abs(right) <= 64 and abs(left) <= 1e9 else None
        case _:
            return (
                _bits(op, left, right) if isinstance(left, int) and isinstance(right, int) else None
            )


def _bits(op: str, left: int, right: int) -> int | None:
    match op:
        case "&":
            return left & right
        case "|":
            return left | right
        case "^":
            return left ^ right
        case "<<":
            return left << right if 0 <= right <= 64 else None
        case ">>":
            return left >> right if right >= 0 else None
        case _:
            return None


def _data(value: Value) -> tuple[frozenset[Batch], frozenset[str]]:
    if isinstance(value, Unknown):
        return value.batches, value.networks
    return frozenset(), frozenset()


def _skipped(op: str, left: Value, right: Value) -> Unknown | None:
    """Two scales of one scaler compared: it falls when a step was left out."""
    if not isinstance(left, Unknown) or not isinstance(right, Unknown):
        return None
    if left.scale is None or right.scale is None or left.scale[0] is not right.scale[0]:
        return None
    if left.scale[1] > right.scale[1]:
        return _skipped(_MIRRORED[op], right, left) if op in _MIRRORED else None
    key = names.skipped_step(left.scale[0].text)
    text = {">": key, "!=": key, "<=": f"not {key}", "==": f"not {key}"}.get(op)
    return Unknown(text) if text is not None and left.scale[1] < right.scale[1] else None


def _stripped(text: str) -> tuple[str, bool]:
    """A decision's key and whether the text negates it."""
    negated = False
    while text.startswith("not "):
        text = text[4:]
        negated = not negated
    return text, negated


def _equality(key: str) -> tuple[str, str] | None:
    """The symbol and the string literal of a key like `args.optimizer == 'adam'`."""
    left, found, right = key.partition(" == ")
    if found and len(right) > 1 and right[0] in "'\"" and right[-1] == right[0] and " " not in left:
        return left, right[1:-1]
    return None


def _exits(statement: p.Stmt) -> bool:
    if isinstance(statement, p.Do) and isinstance(statement.value, p.Call):
        return p.dotted(statement.value.func) in (
            "sys.exit",
            "exit",
            "quit",
            "os._exit",
            "os.abort",
        )
    return False


def _skips(block: tuple[p.Stmt, ...]) -> p.Jump | p.Return | None:
    """The jump that ends a block, if any."""
    for statement in block:
        if isinstance(statement, p.Jump | p.Return):
            return statement
    return None


def _carries(node: p.If, relevance: Relevance) -> bool:
    return any(s in relevance.eventful for s in (*node.body, *node.orelse))


def _guards_health(value: Unknown, node: p.If) -> bool:
    """True when a test asks whether a tensor is a number: only such guards are tried the other way."""
    text = p.render(node.test)
    words = (
        "isnan",
        "isinf",
        "isfinite",
        "nan",
        "finite",
        "grad_norm",
        "norm",
        "overflow",
        "inf",
        "skip",
    )
    return any(word in text for word in words) or value.loss or "loss" in text


def _sets_steps(block: tuple[p.Stmt, ...]) -> bool:
    """True when a block gives the accumulation steps a value that is worked out."""
    return any(
        isinstance(s, p.Assign)
        and isinstance(s.value, p.Binary | p.Call)
        and any(names.is_steps(n) for t in s.targets for n in p.target_names(t))
        for s in block
    )


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


def _holds_unknown(value: Value) -> bool:
    if isinstance(value, tuple | list):
        return any(_holds_unknown(v) or isinstance(v, Unknown | Object) for v in value)
    return False
