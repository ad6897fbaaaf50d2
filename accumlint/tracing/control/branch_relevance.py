"""Weighing: how much the branches of guards have to do with training, as they are written.

Nothing here hangs on the run, so that all runs of a program share what was worked out for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from accumlint.reading import ir as p
from accumlint.reading import names
from accumlint.reading.gradient_slice import Relevance
from accumlint.reading.program import Program

_POSITIVE = {"is not": "is", "!=": "=="}


class Weighing:
    """What the guards of a program hold. A guard is asked for with the slice that a run has by the time it meets it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._weights: dict[tuple[p.Stmt, ...], int] = {}
        self._goals: dict[p.If, bool | None] = {}
        self._ends: dict[p.If, bool] = {}
        self._without: dict[str, bool] = {}
        self._weighty: Mapping[str, p.If] | None = None
        self._ending: Mapping[str, int] | None = None

    def weight(self, block: tuple[p.Stmt, ...], relevance: Relevance) -> int:
        """How much a branch has to do with training; below zero for one that gives up."""
        if block not in self._weights:
            self._weights[block] = self._weigh(block, relevance)
        return self._weights[block]

    def _weigh(self, block: tuple[p.Stmt, ...], relevance: Relevance) -> int:
        if not block:
            return 0
        first, last = block[0], block[-1]
        if isinstance(last, p.Raise):
            return -2
        if len(block) == 1 and isinstance(first, p.If) and first not in relevance.eventful:
            return max(self.weight(first.body, relevance), self.weight(first.orelse, relevance))
        eventful = sum(s in relevance.eventful for s in block)
        backward = sum(s in relevance.backwards for s in block)
        if _exits(last):
            return -2
        if isinstance(last, p.Jump | p.Return) and not backward:
            return -1
        return 4 * backward + min(eventful, 3)

    def usual(self, block: tuple[p.Stmt, ...], relevance: Relevance) -> int:
        """How much a branch looks like the ordinary one: what wipes the gradients or a loss is for bad data."""
        eventful = tuple(s for s in block if s in relevance.eventful)
        calls = (n for n in p.walk(eventful) if isinstance(n, p.Call))
        if eventful and all(names.is_clearing(p.dotted(n.func).rpartition(".")[2]) for n in calls):
            return -1
        return self.weight(block, relevance)

    def goal(self, guard: p.If, relevance: Relevance) -> bool | None:
        """Which side of a guard has more to do with training, None where neither has."""
        if guard not in self._goals:
            then, other = (self.weight(s, relevance) for s in (guard.body, guard.orelse))
            self._goals[guard] = None if then == other else then > other
        return self._goals[guard]

    def ends_windows(self, guard: p.If, relevance: Relevance) -> bool:
        """True when a guard holds a step and no backward."""
        if guard not in self._ends:
            self._ends[guard] = not relevance.stepping.isdisjoint(
                guard.body
            ) and relevance.backwards.isdisjoint(guard.body)
        return self._ends[guard]

    def weighty(self, guard: p.If, relevance: Relevance) -> p.If | None:
        """Another guard with the same test, or its opposite, that has to do with training."""
        if self._weighty is None:
            found: dict[str, p.If] = {}
            for other in self.program.of(p.If):
                if self.weight(other.body, relevance) > self.weight(other.orelse, relevance):
                    found.setdefault(flag(other.test)[0], other)
            self._weighty = found
        return self._weighty.get(flag(guard.test)[0])

    def trains_without(self, key: str, relevance: Relevance) -> bool:
        """True where a flag guards one way to go backward, and another one stands outside of all that it guards."""
        if key not in self._without:
            self._without[key] = self._trains_without(key, relevance)
        return self._without[key]

    def _trains_without(self, key: str, relevance: Relevance) -> bool:
        backwards, program = relevance.backwards, self.program
        guards = [
            guard
            for guard in program.of(p.If)
            if not backwards.isdisjoint(guard.body) and flag(guard.test)[0] == key
        ]
        if not guards:
            return False
        inside = {n for guard in guards for n in p.walk(guard.body)}
        return any(
            n in backwards and n not in inside for n in (*program.of(p.Do), *program.of(p.Assign))
        )

    def ahead(self, test: p.Expr, steps: int, relevance: Relevance) -> int:
        """How far behind the micro-batch that steps a counter is at what is asked for, 0 where nobody can tell."""
        asked = _remainder(test)
        if asked is None:
            return 0
        if self._ending is None:
            guards = (n for n in self.program.of(p.If) if self.ends_windows(n, relevance))
            ends = (_remainder(guard.test) for guard in guards)
            self._ending = dict(end for end in ends if end is not None)
        counter, position = asked
        return (position - self._ending.get(counter, position)) % steps

    @cached_property
    def wrapping_counts(self) -> frozenset[str]:
        """What is raised by something else than a number, and set to 0 where it is held against a limit."""
        raised = {
            p.dotted(n.target)
            for n in self.program.of(p.Augment)
            if n.op == "+" and not isinstance(n.value, p.Const)
        }
        emptied = {
            p.dotted(target)
            for guard in self.program.of(p.If)
            if isinstance(guard.test, p.Compare)
            for n in p.walk(guard.body, into_functions=False)
            if isinstance(n, p.Assign) and isinstance(n.value, p.Const) and n.value.value == 0
            for target in n.targets
            if p.dotted(target) == p.dotted(guard.test.left)
        }
        return frozenset(raised & emptied)


def stripped(text: str) -> tuple[str, bool]:
    """A decision's key and whether the text negates it."""
    negated = False
    while text.startswith("not "):
        text = text[4:]
        negated = not negated
    return text, negated


def flag(test: p.Expr) -> tuple[str, bool]:
    """The same for a test as it is written: `x is not None` negates `x is None`, too."""
    match test:
        case p.Compare(left=left, rest=[("is not" | "!=" as op, right)]):
            return f"{p.render(left)} {_POSITIVE[op]} {p.render(right)}", True
        case _:
            return stripped(p.render(test))


def _exits(statement: p.Stmt) -> bool:
    """True for a call that ends the process."""
    if isinstance(statement, p.Do) and isinstance(statement.value, p.Call):
        ends = ("sys.exit", "exit", "quit", "os._exit", "os.abort")
        return p.dotted(statement.value.func) in ends
    return False


def _remainder(test: p.Expr) -> tuple[str, int] | None:
    """The counter in `(counter + 1) % K == 0`, and where it stands then, counted from a multiple of K (-1).

    None for any other test.
    """
    match test:
        case p.Compare(left=p.Binary(op="%", left=counter), rest=[("==", wanted)]):
            pass
        case _:
            return None
    position = 0
    match wanted:
        case p.Const(value=int(number)):
            position = number
        case p.Binary(op="-", right=p.Const(value=int(number))):
            position = -number
        case _:
            return None
    match counter:
        case p.Binary(op="+", left=left, right=p.Const(value=int(number))):
            return p.render(left), position - number
        case _:
            return p.render(counter), position
