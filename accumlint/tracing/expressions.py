"""The value of an expression: exact on numbers, linear on losses, unknown elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

from accumlint.reading import ir as p
from accumlint.reading import names
from accumlint.tracing import operators
from accumlint.tracing.budget import LATE
from accumlint.tracing.calls.dispatch import Dispatch
from accumlint.tracing.control.exits import Stopped, TooFar
from accumlint.tracing.gradients.tensors import derived
from accumlint.tracing.parts import Parts
from accumlint.tracing.state import MAX_NODES, Loop
from accumlint.tracing.values import Closure, Frame, Key, Lazy, Number, Object, Unknown, Value


class Expressions:
    """Evaluates the expressions of one parts."""

    def __init__(self, parts: Parts, dispatch: Dispatch) -> None:
        self.parts = parts
        self._kinds: dict[type, Callable[[Any], Value]] = {
            p.Const: attrgetter("value"), p.Name: self._name, p.Attr: self._attr, p.Call: dispatch.call,
            p.Binary: self._binary, p.Unary: self._unary, p.Bool: self._bool, p.Compare: self._compare,
            p.Choice: self._choice, p.Item: self._item, p.Sequence: self._sequence, p.Star: self._opaque,
            p.Table: self._table, p.Comprehension: self._comprehension, p.Text: self._text, p.Yield: self._yield,
            p.Walrus: self._walrus, p.Lambda: self._lambda, p.Opaque: self._opaque, p.Slice: self._slice,
        }  # fmt: skip

    def eval(self, node: p.Expr) -> Value:
        state = self.parts.state
        state.nodes += 1
        # The clock is asked now and then: on some machines that takes longer than many expressions.
        if state.nodes % 4096 == 0 and self.parts.budget.is_late():
            raise Stopped(LATE)
        if state.nodes > self.parts.ceiling:
            raise Stopped("too many steps") if state.nodes > MAX_NODES else TooFar
        return self._kinds[type(node)](node)

    def _name(self, node: p.Name) -> Value:
        name = node.id
        frame: Frame | None = self.parts.frame
        if name not in self.parts.frame.globals_:
            while frame is not None:
                if name in frame.names:
                    return frame.names[name]
                frame = frame.outer
        names = self.parts.home.frame.names
        if name in names:
            return names[name]
        return self.parts.resolver.free(name, node)

    def _attr(self, node: p.Attr) -> Value:
        base = self.eval(node.base)
        found = self.parts.attributes.attribute(base, node.name, node)
        # A framework's object tells its own number.
        framework = isinstance(base, Object) and base.role
        return found if framework else self.parts.resolver.size(found, p.dotted(node))

    def _binary(self, node: p.Binary) -> Value:
        left, right = self.eval(node.left), self.eval(node.right)
        found = self.parts.tensors.arithmetic(node.op, left, right, node)
        if found == 0 and node.op == "//" and left != 0 and "len(" in p.render(node.left):
            # The data is longer than the few batches that are tried: no loop goes round zero times.
            return Unknown(p.text_of(node))
        return found

    def _unary(self, node: p.Unary) -> Value:
        if node.op == "not" and self.parts.guards.goal is not None:
            self.parts.guards.goal = not self.parts.guards.goal
        value = self.eval(node.operand)
        if node.op == "not":
            known = self.parts.guards.known_truth(value)
            if known is not None:
                return not known
            return Unknown(
                f"not {operators.text_of(value, node.operand)}", *operators.data_of(value)
            )
        if isinstance(value, Number):
            if node.op == "-":
                return -value
            return value if node.op == "+" else Unknown(f"~{value}")
        if isinstance(value, Unknown) and node.op == "-":
            return self.parts.tensors.linear("*", value, -1, node)
        if isinstance(value, Unknown) and node.op == "~" and value.batches:
            # The opposite mask is one of the same data.
            found = derived(p.render(node), value, node=node)
            found.counted = value.counted
            return found
        return Unknown(p.render(node))

    def _bool(self, node: p.Bool) -> Value:
        guards, goal = self.parts.guards, self.parts.guards.goal
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
                reached = self.parts.guards.reached(node)
                result = result if reached is None else reached
            if result is False:
                # `0 < limit < count`: the link that is known not to hold decides.
                return False
            chained = result if chained is True else chained
            left, shown = right, expression
        return chained

    def compared(self, op: str, left: Value, right: Value, shown: p.Expr, other: p.Expr) -> Value:
        guards = self.parts.guards
        found = operators.known(op, left, right, shown, other, guards.choice)
        if found is None:
            found = self.parts.tensors.threshold(op, left, right)
        if found is None and op in operators.MIRRORED:
            found = self.parts.tensors.threshold(operators.MIRRORED[op], right, left)
        if found is None:
            found = operators.skipped(op, left, right)
        # Data of a batch is no loop's number.
        data = isinstance(left, Unknown) and left.tensor and not left.count
        if found is None and not data:
            found = self._at_the_end(op, right, shown)
        if found is None:
            found = self._beyond(op, left, right, shown, other)
        if found is not None:
            return found
        if (
            isinstance(right, Unknown)
            and not isinstance(left, Unknown)
            and op in operators.MIRRORED
        ):
            return self.compared(operators.MIRRORED[op], right, left, other, shown)
        return operators.undecided(op, left, right, shown, other)

    def _at_the_end(self, op: str, right: Value, shown: p.Expr) -> bool | None:
        """A loop's own number against something unknown, where a step is decided: the end of the loader.

        None for any other comparison; a limit (`i == max_steps`) is far away.
        """
        parts = self.parts
        if not isinstance(right, Unknown) or not parts.state.loops:
            return None
        inner = parts.state.loops[-1]
        loop = inner.node
        size = operators.size_of_pieces(loop)
        if (
            op not in operators.AT_THE_END
            or not isinstance(loop, p.For)
            or isinstance(right.hint, int)
        ):
            return None
        if (
            (right.tensor and not (right.count and (size or inner.rounds)))
            or not (parts.state.last or inner.rounds)
            or names.is_behind(right.text)
            or (parts.guards.deciding is not None and not parts.guards.ends_windows())
        ):
            return None
        own = p.target_names(loop.target) | size
        read = {n.id for n in p.walk_expr(shown) if isinstance(n, p.Name)}
        if inner.rounds and read.isdisjoint(own):
            # The end of this round's part (`stop = min((i + 1) * size, rows)`) is the loop's own, too.
            own |= operators.made_from(own, loop)
        if not read or not read <= own:
            return None
        parts.guards.supposed = True
        last = inner.index >= inner.rounds if inner.rounds else parts.state.last[-1]
        return last == operators.AT_THE_END[op]

    def _beyond(
        self, op: str, left: Value, right: Value, shown: p.Expr, other: p.Expr
    ) -> bool | None:
        """A counter against an unknown limit: limits are far away, starts and warm-ups are behind."""
        parts = self.parts
        if isinstance(right, Number) and isinstance(left, Unknown) and op in operators.MIRRORED:
            if left.text.endswith(f" % {parts.scenario.steps}"):
                # What is left over comes round again and again.
                return None
            return self._beyond(operators.MIRRORED[op], right, left, other, shown)
        if not isinstance(left, Number) or isinstance(left, bool) or op not in operators.ORDERED:
            return None
        if not isinstance(right, Unknown) or right.tensor or isinstance(shown, p.Const | p.Unary):
            return None
        if not parts.state.loops:
            return None
        parts.guards.supposed = True
        if op in ("==", "!=") and (chosen := parts.guards.the_chosen_one(left)) is not None:
            return chosen == (op == "==")
        if isinstance(right.hint, int) or names.is_behind(right.text):
            return op in (">", ">=", "!=")
        if op in ("<", "<=") and _passes_over(parts.guards.deciding):
            return False
        return op in ("<", "<=", "!=")

    def _choice(self, node: p.Choice) -> Value:
        test = self.eval(node.test)
        known = self.parts.guards.known_truth(test)
        if known is None:
            known = self.parts.guards.truth(test, node.test, node)
        return self.eval(node.body if known else node.orelse)

    def _item(self, node: p.Item) -> Value:
        found = self.parts.attributes.item(self.eval(node.base), self.eval(node.index), node)
        return self.parts.resolver.size(found, p.dotted(node))

    def _slice(self, node: p.Slice) -> Value:
        bounds = [
            self.eval(b) if b is not None else None for b in (node.lower, node.upper, node.step)
        ]
        return slice(*bounds)

    def _sequence(self, node: p.Sequence) -> Value:
        found: list[Value] = []
        for item in node.items:
            if isinstance(item, p.Star):
                found.extend(self.parts.iteration.items(self.eval(item.value)))
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
        with self._inside(self.parts.frame):
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
        return source if self.parts.iteration.is_loader(source) else None

    def _expression(self, node: p.Comprehension, source: Value) -> Lazy:
        """A generator expression over a loader, which gives a batch when it is asked for one."""
        frame = self.parts.frame

        def made(item: Value) -> Value:
            with self._inside(frame):
                self.parts.bind(node.clauses[0][0], item, node)
                return self.eval(node.element)

        return Lazy("expression", [source], made=made)

    @contextmanager
    def _inside(self, outer: Frame) -> Generator[None, None, None]:
        """A frame inside another one, whose names are known in it."""
        saved = self.parts.frame
        self.parts.frame = Frame(
            {}, outer, owner=outer.owner, receiver=outer.receiver, home=outer.home
        )
        try:
            yield
        finally:
            self.parts.frame = saved

    def _clause(self, node: p.Comprehension, position: int, found: list[Value]) -> None:
        if position == len(node.clauses):
            found.append(self.eval(node.element))
            return
        target, iterable, tests = node.clauses[position]
        loop = Loop(node, 0, False)
        self.parts.state.loops.append(loop)
        try:
            items = self.parts.iteration.items(self.eval(iterable))
            if len(items) == 1 and _leaves_the_last_out(iterable):
                # Perhaps the parts of a window (`[True for _ in range(len(parts) - 1)] + [False]`).
                items = list[Value](range(self.parts.scenario.steps - 1))
            for item in items:
                loop.index += 1
                if isinstance(item, Unknown) and item.parameters and _is_pair(target):
                    # Each of `model.named_parameters()` is a name and a parameter.
                    item = (Unknown(f"{item.text}[0]"), item)
                self.parts.bind(target, item, node)
                if not any(
                    self.parts.guards.known_truth(self.eval(part)) is False
                    for test in tests
                    for part in _conjuncts(test)
                ):
                    self._clause(node, position + 1, found)
        finally:
            self.parts.state.loops.pop()

    def _text(self, node: p.Text) -> Value:
        for part in node.parts:
            self.eval(part)
        return Unknown("text")

    def _yield(self, node: p.Yield) -> Value:
        frame: Frame | None = self.parts.frame
        while frame is not None and frame.on_yield is None:
            frame = frame.outer
        value = self.eval(node.value) if node.value is not None else None
        if frame is None or frame.on_yield is None:
            return None
        if node.delegates:
            self.parts.iteration.stream(value, frame.driver or node).drive(frame.on_yield)
        else:
            frame.on_yield(value)
        return None

    def _walrus(self, node: p.Walrus) -> Value:
        value = self.eval(node.value)
        self.parts.bind(node.target, value, node)
        return value

    def _lambda(self, node: p.Lambda) -> Value:
        frame = self.parts.frame
        return Closure(node.function, frame if frame is not self.parts.home.frame else None)

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
