"""Executes a program abstractly: its statements and loops.

What expressions, names and calls mean lies in modules of their own, which reach each other through the machine.
Statements outside the slice are passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter
from typing import Any

from accumlint.reading import ir as p
from accumlint.reading import names
from accumlint.tracing import trace as t
from accumlint.tracing.calls.call import Call
from accumlint.tracing.calls.dispatch import Dispatch
from accumlint.tracing.control.exits import Leave
from accumlint.tracing.expressions import Expressions
from accumlint.tracing.parts import Parts
from accumlint.tracing.running_totals import Totals
from accumlint.tracing.state import MAX_ROUNDS, Loop
from accumlint.tracing.values import MOST, ClassValue, Closure, Unknown, Value


class Interpreter(Parts):
    """Executes statements, and answers what its parts ask of each other."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._statements: dict[type, Callable[[Any], str | None]] = {
            p.Assign: self._assign, p.Augment: self._augment, p.Do: self._do, p.If: self._if, p.For: self._for,
            p.While: self._while, p.With: self._with, p.Try: self.exceptions.run, p.Return: self._return,
            p.Jump: attrgetter("kind"), p.Raise: self.exceptions.raised, p.Delete: self._delete, p.Scope: self._scope,
            p.Import: self._import, p.Function: self._function, p.Class: self._class,
        }  # fmt: skip
        self.totals = Totals(self)
        self._dispatch = Dispatch(self)
        self._expressions = Expressions(self, self._dispatch)

    def eval(self, node: p.Expr) -> Value:
        return self._expressions.eval(node)

    def apply(
        self, callee: Value, args: list[Value], kwargs: dict[str, Value], node: p.Node
    ) -> Value:
        return self._dispatch.apply(callee, args, kwargs, node)

    def opaque_call(self, callee: Value, call: Call) -> Value:
        return self._dispatch.opaque_calls.call(callee, call)

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

    def _assign(self, node: p.Assign) -> str | None:
        value = self.eval(node.value)
        if node.annotation:
            value = self.function_calls.annotated(value, node.annotation, self.home.source, node)
        for target in node.targets:
            self.bind(target, value, node)
        return None

    def bind(self, target: p.Expr, value: Value, node: p.Node) -> None:
        match target:
            case p.Name(id=name):
                self.store(name, self.resolver.named(name, name, value, node))
                self.totals.assigned(target, value, node)
            case p.Attr(base=base, name=name):
                receiver = self.eval(base)
                value = self.resolver.named(name, p.dotted(target), value, node)
                self.attributes.set_attribute(receiver, name, value, node, p.dotted(target))
                self.totals.assigned(target, value, node)
            case p.Item(base=base, index=index):
                holder = self.eval(base)
                made = self.program.assigned.get(p.dotted(base), ())
                self.totals.put(p.dotted(base), holder, value, made, node)
                self.attributes.set_item(holder, self.eval(index), value)
            case p.Sequence(items=items):
                for item, part in zip(
                    items, self.attributes.unpacked(value, items, node), strict=True
                ):
                    self.bind(item.value if isinstance(item, p.Star) else item, part, node)
            case p.Star(value=inner):
                self.bind(inner, value, node)
            case _:
                pass

    def _augment(self, node: p.Augment) -> str | None:
        old = self.eval(node.target)
        value = self.eval(node.value)
        target = p.dotted(node.target)
        if isinstance(old, list) and node.op == "+":
            if isinstance(value, list | tuple):
                old.extend(value[:MOST])
            return None
        new = self.tensors.arithmetic(node.op, old, value, node)
        if node.op in ("+", "-") and isinstance(new, Unknown):
            new = self.totals.added(target, old, value, new, node)
        if self.updates.gradient_changed(node.target, old, node.op, value, node):
            return None
        if isinstance(old, Unknown) and old.networks and not old.parameters:
            # It works in place: what other names have of the same tensor changes, too.
            same = [n for n, other in self.frame.names.items() if other is old]
            self.frame.names.update(dict.fromkeys(same, new))
        self.bind(node.target, new, node)
        return None

    def _do(self, node: p.Do) -> str | None:
        self.eval(node.value)
        return None

    def _if(self, node: p.If) -> str | None:
        self.guards.goal = self.guards.goal_of(node)
        self.guards.deciding = node
        self.guards.supposed = False
        value = self.eval(node.test)
        self.guards.goal = self.guards.deciding = None
        worked_out = not self.guards.supposed
        if value is False and _sets_steps(node.body) and not self.guards.ends_windows(node):
            # Whether anything is accumulated hangs on sizes that are only an example here.
            value = Unknown(p.render(node.test))
        if value and (missing := self.guards.missing(node)):
            # Nobody knows what the data leaves in it, and without anything nothing is trained.
            self.store(missing, Unknown(missing))
            value = False
        taken = self.guards.truth(value, node.test, node)
        self.guards.leads_away(value, node, taken=taken)
        if self.guards.ends_windows(node):
            shut = value is False and worked_out and not self.guards.hangs_on_a_flag(node.test)
            self.state.step_guards[node] = shut and self.state.step_guards.get(node, True)
        return self.block(node.body if taken else node.orelse)

    def _for(self, node: p.For) -> str | None:
        iterable = self.eval(node.iterable)
        stream = self.iteration.stream(iterable, self._driver(node))
        training = node in self.relevance.backwards
        loop = Loop(node, 1, stream.loader and training, stream.rounds)
        state = self.state
        state.loops.append(loop)
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
            if signal == "break" and loop.loader and passed < self.scenario.steps:
                # Nothing stops a training before its first window, unless something is wrong with the data.
                signal = "break" if self.guards.is_exceptional else None
            if signal in ("break", "return"):
                raise Leave(signal)

        signal: str | None = None
        try:
            stream.drive(body)
        except Leave as leave:
            signal = leave.signal
        finally:
            state.loops.pop()
        # Nothing further out may be a pass over the data already.
        if loop.loader and signal is None and not any(x.loader for x in state.loops):
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

    def _while(self, node: p.While) -> str | None:
        loop = Loop(node, 0, False)
        self.state.loops.append(loop)
        limit = self.trip_counts.taken(node)
        begun = len(self.state.events)
        try:
            while True:
                if loop.index == limit and limit < 24 and self.trip_counts.unfinished(node, begun):
                    limit += 1
                value = self.eval(node.test)
                known = self.guards.known_truth(value)
                if known is False:
                    break
                if known is None and loop.index >= limit:
                    break
                if loop.index >= (limit if self._far(node, loop.index) else MAX_ROUNDS):
                    self.state.cut = True
                    break
                if known is True and loop.index >= limit and isinstance(node.test, p.Const):
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

    def _far(self, node: p.While, rounds: int) -> bool:
        """True when the test compares a counter with a limit that nobody knows, or that is far off by now."""
        if not isinstance(node.test, p.Compare) or len(node.test.rest) != 1:
            return not isinstance(node.test, p.Const)
        left, right = self.eval(node.test.left), self.eval(node.test.rest[0][1])
        if isinstance(left, int) and isinstance(right, int):
            return rounds > 0 and abs(right - left) * rounds > MAX_ROUNDS * max(1, abs(left))
        return isinstance(left, Unknown) or isinstance(right, Unknown)

    def _with(self, node: p.With, position: int = 0) -> str | None:
        """Enters the contexts of a `with`, from one position on, and executes its body inside."""
        if position == len(node.items):
            return self.block(node.body)
        expression, target = node.items[position]
        context = self.sync_contexts.context(self.eval(expression))
        if context.generator is not None:
            signals: list[str | None] = []

            def body(value: Value) -> None:
                if target is not None:
                    self.bind(target, value, node)
                saved = self.frame
                self.frame = here
                try:
                    signals.append(self._with(node, position + 1))
                finally:
                    self.frame = saved

            here = self.frame
            call = Call("__enter__", context.args, context.kwargs, node)
            self.function_calls.run_generator(context.generator, call, body)
            return signals[0] if signals else self._with(node, position + 1)
        value = context.enter(expression) if context.enter is not None else None
        if target is not None:
            self.bind(target, value, node)
        try:
            return self._with(node, position + 1)
        finally:
            if context.leave is not None:
                context.leave(expression)

    def _return(self, node: p.Return) -> str | None:
        self.returned = self.eval(node.value) if node.value is not None else None
        self.returned_at = node
        return "return"

    def _delete(self, node: p.Delete) -> str | None:
        for target in node.targets:
            if isinstance(target, p.Item) and isinstance(held := self.eval(target.base), list):
                index = self.eval(target.index)
                with suppress(IndexError, TypeError, ValueError):
                    if isinstance(index, int | slice):
                        del held[index]
        return None

    def _scope(self, node: p.Scope) -> str | None:
        (self.frame.globals_ if node.kind == "global" else self.frame.nonlocals).update(node.names)
        return None

    def _import(self, node: p.Import) -> str | None:
        for name, path in node.names:
            self.store(name, self.resolver.imported(path))
        return None

    def _function(self, node: p.Function) -> str | None:
        scope = self.frame if self.frame is not self.home.frame else None
        closure = Closure(node, scope, self.frame.owner)
        self.captured[node] = closure
        self.store(node.name, closure)
        return None

    def _class(self, node: p.Class) -> str | None:
        scope = self.frame if self.frame is not self.home.frame else None
        self.store(node.name, ClassValue(node, scope))
        return None


def _sets_steps(block: tuple[p.Stmt, ...]) -> bool:
    """True when a block gives the accumulation steps a value that is worked out."""
    return any(
        isinstance(s, p.Assign)
        and isinstance(s.value, p.Binary | p.Call)
        and any(names.is_steps(n) for t in s.targets for n in p.target_names(t))
        for s in block
    )
