"""Guards: the side of an `if` that is taken where its truth is not known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from operator import eq, ge, gt, le, lt
from typing import TYPE_CHECKING

from accumlint.common.frozen import frozen
from accumlint.reading import frameworks, names
from accumlint.reading import ir as p
from accumlint.reading.gradient_slice import Relevance
from accumlint.tracing import trace as t
from accumlint.tracing.control.branch_relevance import Weighing, flag, stripped
from accumlint.tracing.control.regions import Sides
from accumlint.tracing.state import Decision
from accumlint.tracing.values import Number, Unknown, Value

if TYPE_CHECKING:
    from accumlint.tracing.interpreter import Machine

# What Python itself knows the truth of.
_PLAIN = (bool, int, float, str, bytes, Fraction, tuple, list, dict, set)

# What asks whether a number is one, whatever is known of the number.
_HEALTH = re.compile(r"\b(isnan|isinf|isfinite)\(")
# So many definitions are tried where nobody knows which one is used.
_MOST_PICKED = 4

_NUMBERS = re.compile(r"(?<![\w.])\d+(?![\w.])")

_HOLDS = {"==": eq, "<": lt, "<=": le, ">": gt, ">=": ge}


class Guards:
    """Decides the guards of one machine."""

    def __init__(self, machine: Machine, weighing: Weighing) -> None:
        self.machine = machine
        self.weighing = weighing
        self.decisions: dict[str, Decision] = {}
        self.asked_data: dict[str, int] = {}
        # The side that the guard being evaluated had better take (None: either).
        self.goal: bool | None = None
        # The statement whose test is being evaluated.
        self.deciding: p.Node | None = None
        # The decisions behind which a flag is set that others ask for.
        self.flagging: set[str] = set()
        # A flag was decided, or an unknown limit taken to be far away or behind.
        self.supposed = False
        # The guards on the way to what shall be reached, each with its side; `forced` opens those of known truth, too.
        self.sides: Sides = {}
        self.forced = False
        # The last unknown that a guard asked for, and the one that led to the first `raise`.
        self.latest = ""
        self.refused = ""
        # Per question about the data: the iteration that it was last asked in, whether there was a reason, the answer.
        self._told: dict[str, tuple[object, bool, bool]] = {}
        # Per guard that leaves all but one of several trainings out (`fold != args.fold`): the one that is trained.
        self._one: dict[p.Node, Number] = {}
        # Per function: its guards of which one has to give its value.
        self._giving: dict[p.Function, frozenset[p.If]] = {}
        # Per guard: whether one of its branches binds a name that had no value yet.
        self._binding: dict[p.If, bool] = {}
        # What guards around steps ask of functions that cannot be followed and were given the accumulation steps.
        self._counted: set[str] = set()
        # Per comparison and its text without numbers: the text as it was asked first.
        self._rounds: dict[tuple[p.Node, str], str] = {}

    @property
    def is_exceptional(self) -> bool:
        """True on a path on which something goes wrong with the data."""
        return any(d.data and d.choice != "ordinary" for d in self.decisions.values())

    @property
    def refusal(self) -> dict[str, str]:
        """The other choice at the guard that led to a `raise` on this path."""
        last = self.decisions.get(self.refused)
        if last is None or last.data or last.key in self.machine.chosen:
            return {}
        return {last.key: next(option for option in last.options if option != last.choice)}

    def choice(self, symbol: str) -> str | None:
        """The literal that an unknown is taken to be on this path, None where nobody asked."""
        decided = self.decisions.get(symbol)
        return self.machine.chosen.get(symbol) or (decided.choice if decided else None)

    def known_truth(self, value: Value) -> bool | None:
        if isinstance(value, Unknown):
            key, negated = stripped(value.text)
            if key in self.decisions and not self.decisions[key].data:
                self.supposed = True
                return (self.decisions[key].choice == "true") != negated
            return None
        return bool(value) if value is None or isinstance(value, _PLAIN) else True

    def truth(self, value: Value, expression: p.Expr, node: p.Node) -> bool:
        """The side of a guard that is taken; an unknown one is decided once per run by its text."""
        known = self.known_truth(value)
        if known is not None and self.forced and isinstance(node, p.If):
            key = p.render(node.test)
            if node in self.sides:
                taken = "true" if self.sides[node] else "false"
                if known is not self.sides[node]:
                    self.decisions.setdefault(key, Decision(key, taken, (taken,), True, False))
                return self.sides[node]
            if key in self.decisions:
                # The same test as that of a guard that was opened.
                return self.decisions[key].choice == "true"
        if isinstance(value, Unknown):
            self.latest = stripped(value.text)[0]
        self.supposed = self.supposed or isinstance(value, Unknown)
        if known is not None:
            if isinstance(value, Unknown):
                decision = self.decisions[stripped(value.text)[0]]
                decision.matters = decision.matters or self._matters(node)
            return known
        assert isinstance(value, Unknown)
        key, negated = stripped(value.text)
        if names.is_end(p.render(expression)) or names.is_end(key):
            return bool(self.machine.state.last and self.machine.state.last[-1]) != negated
        if value.tensor or _HEALTH.search(key):
            return self._data_guard(value, key, negated, node)
        if names.is_skipped_step(key):
            return self._skipped_step(key, expression) != negated
        if names.is_unscaled(key):
            return self.machine.state.ledger.is_unscaled != negated
        state, asked = self.machine.state, f" % {self.machine.scenario.steps} == "
        if state.loops and state.asked and (asked in key or key in self._counted):
            return self._boundary(self._behind(expression)) != negated
        equality = _equality(key)
        if equality is not None:
            return self._literal(equality[0], equality[1], node, key) != negated
        implied = self._implied(key, node)
        if implied is not None:
            return implied != negated
        key = self._of_every_round(key, expression)
        matters = self._matters(node)
        if (before := self.decisions.get(key)) is not None:
            before.matters = before.matters or matters
            return (before.choice == "true") != negated
        default = self._default(value, key, negated, node)
        choice = self.machine.chosen.get(key, "true" if default else "false")
        options = (choice, "false" if choice == "true" else "true")
        self.decisions[key] = Decision(key, choice, options, matters, False)
        if isinstance(node, p.If) and _sets_a_flag(node):
            self.flagging.add(key)
        return (choice == "true") != negated

    def leads_away(self, value: Value, node: p.If, *, taken: bool) -> None:
        """Notes what was decided before, and takes a guard to the side that does not train."""
        if isinstance(value, Unknown) and self.goal_of(node) not in (None, taken):
            key = stripped(value.text)[0]
            asked = _comparison(key)
            told = (decision.key for _, decision in self._facts(asked)) if asked else ()
            self.flagging.update(self.decisions.keys() & {key, *told})

    def missing(self, node: p.If) -> str:
        """The list that is empty, where a guard leaves because it is, before anything is trained; "" for any other."""
        if self.machine.state.loops or self.goal_of(node) is not False:
            return ""
        name = _emptied(node.test)
        empty = name and self.machine.frame.names.get(name) == []
        # What says nothing (`pass`) is not read at all.
        leaves = any(isinstance(s, p.Return | p.Raise) for s in node.body[-1:])
        trained = any(isinstance(e, t.Backward) for e in self.machine.state.events)
        return name if empty and leaves and not trained else ""

    def hangs_on_a_flag(self, test: p.Expr) -> bool:
        """True for a test of what was worked out, where it stands, from a flag that nobody knows."""
        flags = {d.key.rpartition(".")[2] for d in self.decisions.values() if not d.data}
        named = {p.dotted(n) for n in p.walk_expr(test) if isinstance(n, p.Name)} if flags else ()
        assigned = self.machine.program.assigned
        return any(
            isinstance(n, p.Name | p.Attr) and p.dotted(n).rpartition(".")[2] in flags
            for name in named
            for value in assigned.get(name, ())
            for n in p.walk_expr(value)
        )

    def the_chosen_one(self, number: Number) -> bool | None:
        """Whether this is the one of several trainings (folds, seeds) that a setting asks for: the first.

        None where the guard does not choose among trainings.
        """
        node, loops = self.deciding, self.machine.state.loops
        if not isinstance(node, p.If) or loops[-1].loader or not isinstance(loops[-1].node, p.For):
            return None
        if node not in self._one:
            block = loops[-1].node.body
            if node.orelse or node not in block:
                return None
            skip = node.body[-1]
            goes_on = isinstance(skip, p.Jump) and skip.kind == "continue"
            trained = block[block.index(node) + 1 :] if goes_on else node.body
            if not any(s in self.machine.relevance.backwards for s in trained):
                return None
        return self._one.setdefault(node, number) == number

    def reached(self, test: p.Compare) -> bool | None:
        """Whether a count of samples that goes back to 0 has reached its size, None for another test.

        Nobody knows the numbers: the size is as many micro-batches as the accumulation steps.
        """
        if not (self.machine.state.loops and self.machine.state.asked):
            return None
        match test:
            case p.Compare(
                left=p.Name() | p.Attr() as count,
                rest=[("<" | "<=" | ">" | ">=" as op, p.Name() | p.Attr())],
            ) if p.dotted(count) in self.weighing.wrapping_counts:
                self.supposed = True
                return self._boundary() != (op in ("<", "<="))
            case _:
                return None

    def ends_windows(self, node: p.If | None = None) -> bool:
        """True when a guard (the one being decided, unless told) holds a step and no backward."""
        guard = node or self.deciding
        return isinstance(guard, p.If) and self.weighing.ends_windows(guard, self.machine.relevance)

    def ends_by_size(self) -> bool:
        """True where a guard ends windows, and not only those of which a count of micro-batches says so too."""
        match self.deciding:
            case p.If(test=p.Bool(op="and") as both):
                counted = any(isinstance(n, p.Binary) and n.op == "%" for n in p.walk_expr(both))
            case _:
                counted = False
        return not counted and self.ends_windows()

    def counted(self, key: str) -> None:
        """Notes that what a guard around a step asks for was worked out from the accumulation steps."""
        if self.machine.state.loops and self.ends_windows():
            self._counted.add(key)

    def goal_of(self, node: p.If) -> bool | None:
        """Which side of a guard has more to do with training, None where neither has."""
        wanted = self.sides.get(node)
        return self.weighing.goal(node, self.machine.relevance) if wanted is None else wanted

    def _weights(self, node: p.If) -> tuple[int, int]:
        """How much either side of a guard has to do with training."""
        relevance, weight = self.machine.relevance, self.weighing.weight
        return weight(node.body, relevance), weight(node.orelse, relevance)

    def _boundary(self, ahead: int = 0) -> bool:
        """A counter that began nobody knows where is asked for the window's end: it comes every so often.

        `ahead`: what is asked for is so many micro-batches behind the window's end (`step % K == 0`, where
        `step % K == K - 1` steps).
        """
        rounds = self.machine.state.rounds
        number = rounds.setdefault(self.machine.iteration(), len(rounds) + 1)
        return (number - ahead) % self.machine.scenario.steps == 0

    def _behind(self, test: p.Expr) -> int:
        """How many micro-batches behind the window's end a test asks for; the end itself where it ends windows."""
        if self.ends_windows():
            return 0
        return self.weighing.ahead(test, self.machine.scenario.steps, self.machine.relevance)

    def _skipped_step(self, key: str, expression: p.Expr) -> bool:
        """Whether the scaler left out its last step: only on an exceptional path, and then each time."""
        choice = self.machine.chosen.get(key, "ordinary")
        self.decisions[key] = Decision(key, choice, (choice, "exceptional"), True, True)
        if choice == "exceptional":
            self.machine.emit(
                t.SkippedStep(*self.machine.stamp(expression, key), p.render(expression))
            )
        return choice == "exceptional"

    def _matters(self, node: p.Node) -> bool:
        """True for a guard worth trying both ways: something happens to the gradient on one side."""
        deciding = self.machine.relevance.deciding
        return node in deciding or self.deciding in deciding

    def _of_every_round(self, key: str, test: p.Expr) -> str:
        """The key under which a comparison was asked first: with the round's number in it, all rounds answer alike."""
        ordered = isinstance(test, p.Compare) and all(op[0] in "<>" for op, _ in test.rest)
        if not ordered or _comparison(key) is not None:
            return key
        return self._rounds.setdefault((test, _NUMBERS.sub("#", key)), key)

    def _implied(self, key: str, node: p.Node) -> bool | None:
        """The truth of `x > 0` that follows from what was decided of `x` before, None where both may be."""
        asked = _comparison(key)
        if asked is None:
            return None
        facts = self._facts(asked)
        limits = {asked.limit, *(known.limit for known, _ in facts)} if facts else set[int]()
        # Numbers between the limits, and beyond them: whole ones are enough for counters.
        values = {limit + aside for limit in limits for aside in (-1, 0, 1)}
        truths = {
            asked.holds(value)
            for value in values
            if all(known.holds(value) == (d.choice == "true") for known, d in facts)
        }
        if len(truths) != 1:
            return None
        for _, decision in facts:
            decision.matters = decision.matters or self._matters(node)
        return truths.pop()

    def _facts(self, asked: _Comparison) -> list[tuple[_Comparison, Decision]]:
        """What was decided of the symbol of a comparison."""
        return [
            (known, decision)
            for decision in self.decisions.values()
            if not decision.data
            and (known := _comparison(decision.key)) is not None
            and known.symbol == asked.symbol
        ]

    def _literal(self, symbol: str, literal: str, node: p.Node, key: str) -> bool:
        """`symbol == literal`: the symbol takes one of the literals it is compared with."""
        self.latest = symbol
        # Scripts that train do so on the accelerator that their scalers and wrappers are for.
        prefer = literal == "cuda" or (
            isinstance(node, p.If)
            and (
                self._prefers_literal(node)
                or _divides_by_steps(node)
                or self._binds_anew(node)
                or self._gives_the_value(node)
            )
        )
        if symbol in self.decisions:
            decision = self.decisions[symbol]
            decision.matters = decision.matters or self._matters(node)
            if literal not in decision.options:
                decision.options = (*decision.options, literal)
                if prefer and decision.choice == "…" and symbol not in self.machine.chosen:
                    # It was none of those that were asked for before, and may well be this one.
                    decision.choice = literal
            return decision.choice == literal
        matters = self._matters(node)
        choice = self.machine.chosen.get(symbol, literal if prefer else "…")
        options = (choice, literal, *_others_of(node), "…")
        self.decisions[symbol] = Decision(symbol, choice, options, matters, False)
        return choice == literal

    def picked(self, key: str, options: tuple[str, ...], preferred: str, *, matters: bool) -> str:
        """Which of several definitions is used, where the name or key that picks one is not known."""
        known = self.decisions.get(key)
        if known is None:
            chosen = self.machine.chosen.get(key, preferred)
            if chosen not in options:
                chosen = preferred
            known = Decision(key, chosen, options[:_MOST_PICKED], matters, False)
            self.decisions[key] = known
        known.matters = known.matters or matters
        return known.choice if known.choice in options else preferred

    def _binds_anew(self, node: p.If) -> bool:
        """True where one of several branches gives a value to a name that had none when it was first asked for."""
        if node not in self._binding:
            bound = _bound(node.body) - self.machine.frame.names.keys()
            self._binding[node] = bool(bound - _bound(node.orelse))
        return self._binding[node]

    def _gives_the_value(self, node: p.If) -> bool:
        """True for one of several guards that return, where a function gives no value otherwise."""
        function = self.machine.frame.function
        if function is None:
            return False
        if function not in self._giving:
            self._giving[function] = frozenset(_giving(function.body))
        return node in self._giving[function]

    def _prefers_literal(self, node: p.If) -> bool:
        """True when `x == "literal"` had better hold: the branch trains, or what follows gives up in the end."""
        if node in self.sides:
            return self.sides[node]
        then, other = self._weights(node)
        if then < 0 or then < other:
            return False
        return then > other or bool(node.orelse)

    def _default(self, value: Unknown, key: str, negated: bool, node: p.Node) -> bool:
        """The first choice for an unknown flag, as the truth of `key`."""
        if isinstance(value.hint, bool) and not negated:
            return value.hint
        if not isinstance(node, p.If):
            if isinstance(node, p.Bool) and node.op == "or" and names.is_off_by_default(key):
                # The other side of the `or` will do.
                return False
            if names.is_occasional(key) and not self._goes_backward():
                # What is due once in a long while may set counters back, and no window ends with it.
                return False
            if self.goal is not None:
                return self.goal != negated
            if key.endswith(" is None"):
                return False
            return not names.is_off_by_default(key) and not names.is_occasional(key)
        if node in self.sides:
            return self.sides[node] != negated
        if self._gives_the_value(node):
            return not negated
        then, other = self._weights(node)
        if then == other == 0:
            # The same flag may guard more, further on.
            weighty = self.weighing.weighty(node, self.machine.relevance)
            if weighty is not None:
                return self._default(value, key, flag(weighty.test)[1], weighty)
        if then < 0 or other < 0:
            return (then > other) != negated
        if then != other:
            on = (then > other) != negated
            # A flag whose name says "unusual" stays off unless its other side has no event at all.
            if on and names.is_off_by_default(key):
                return min(then, other) == 0 and not self.weighing.trains_without(
                    key, self.machine.relevance
                )
            return on
        if then == 0 and node.orelse:
            # Of two losses, the one that everybody knows how to follow.
            known, less = _makes_a_known_loss(node.body), _makes_a_known_loss(node.orelse)
            if known != less:
                return known != negated
        if key.endswith(" is None") or names.is_off_by_default(key) or names.is_occasional(key):
            return False
        if then == 0 and not node.orelse:
            # What only tells about a loss is told, and what divides by the accumulation steps divides.
            told = any(s in self.machine.relevance.reports for s in node.body)
            divides = self.machine.engines.accelerator is None and _divides_by_steps(node)
            return negated != (told or divides)
        return True

    def _goes_backward(self) -> bool:
        """True where the guard being decided holds a backward."""
        guard = self.deciding
        return isinstance(guard, p.If) and any(
            s in self.machine.relevance.backwards for s in (*guard.body, *guard.orelse)
        )

    def _data_guard(self, value: Unknown, key: str, negated: bool, node: p.Node) -> bool:
        """A guard on the data (is the loss finite?): the ordinary side, except once on an exceptional path."""
        if not isinstance(node, p.If):
            # A part of a test (`a or b`) is decided like the whole.
            return bool(negated) if self.goal is None else self.goal
        if node in self.sides:
            return self.sides[node]
        where = f"{id(node)}"
        relevance = self.machine.relevance
        then = self.weighing.usual(node.body, relevance)
        other = self.weighing.usual(node.orelse, relevance)
        idle = then == 0 and not _carries(node, self.machine.relevance)
        ordinary = then > other or (then == other and not idle)
        if _carries(node, self.machine.relevance) and then == other == 0:
            ordinary = False
        if then == other and self._binds_anew(node):
            ordinary = True
        if isinstance(value.hint, bool):
            ordinary = value.hint
        skips = _skips(node.body) or _skips(node.orelse) or then != other
        matters = (
            bool(skips or _sets_a_flag(node))
            and bool(self.machine.state.loops)
            and _guards_health(value, node)
        )
        now = self.machine.iteration()
        when, reason, answer = self._told.get(key, (None, False, False))
        if when == now and reason:
            # What went wrong with this micro-batch, or went well, did so for whoever asks the same of it.
            return answer != negated
        exceptional = when != now and self._is_exceptional(where, matters)
        taken = ordinary != exceptional
        self._told[key] = (now, exceptional or then != other, taken != negated)
        if exceptional:
            jump = _skips(node.body if taken else node.orelse)
            at: p.Node = jump if jump is not None else node
            ends = "return" if jump is not None else "pass"
            kind = jump.kind if isinstance(jump, p.Jump) else ends
            self.machine.emit(t.Skip(*self.machine.stamp(at, key), p.render(node.test), kind))
        return taken

    def _is_exceptional(self, where: str, matters: bool) -> bool:
        """True once, where the path is one on which something that depends on the data goes wrong."""
        self.asked_data[where] = self.asked_data.get(where, 0) + 1
        if where not in self.decisions:
            choice = self.machine.chosen.get(where, "ordinary")
            options = (choice, "exceptional", "at the boundary")
            self.decisions[where] = Decision(where, choice, options, matters, True)
        choice = self.decisions[where].choice
        boundary = self.machine.scenario.steps
        if choice == "at the boundary" and self._begins_with_a_step():
            boundary += 1
        when = {"exceptional": 2, "at the boundary": boundary}.get(choice)
        return self.asked_data[where] == when

    def _begins_with_a_step(self) -> bool:
        """True where the first window has one micro-batch: the next ends so much later (`if i % steps == 0`)."""
        met = (e for e in self.machine.state.events if isinstance(e, t.Backward | t.Step))
        return [type(e) for e in islice(met, 3)] == [t.Backward, t.Step, t.Backward]

    def fails(self, node: p.Try) -> bool:
        """True for the micro-batch that raises, on a path where one does."""
        return self._is_exceptional(f"{id(node)}", True)


def _bound(block: tuple[p.Stmt, ...]) -> set[str]:
    """The plain names that the statements of a block assign, those inside other statements left out."""
    targets = [target for s in block if isinstance(s, p.Assign) for target in s.targets]
    parts = (x for t in targets for x in (t.items if isinstance(t, p.Sequence) else (t,)))
    return {part.id for part in parts if isinstance(part, p.Name)}


def _equality(key: str) -> tuple[str, str] | None:
    """The symbol and the string literal of a key like `args.optimizer == 'adam'`."""
    left, found, right = key.partition(" == ")
    if found and len(right) > 1 and right[0] in "'\"" and right[-1] == right[0] and " " not in left:
        return left, right[1:-1]
    return None


@frozen(slots=True)
class _Comparison:
    """An unknown held against a whole number."""

    symbol: str
    operator: str
    limit: int

    def holds(self, value: int) -> bool:
        return _HOLDS[self.operator](value, self.limit)


@lru_cache(maxsize=256)
def _comparison(key: str) -> _Comparison | None:
    """What a key like `step > 0` compares, where it is an unknown with a whole number."""
    left, _, limit = key.rpartition(" ")
    symbol, _, operator = left.rpartition(" ")
    if operator not in _HOLDS or " " in symbol or not limit.removeprefix("-").isdecimal():
        return None
    return _Comparison(symbol, operator, int(limit))


def _emptied(test: p.Expr) -> str:
    """The name that a test holds to be empty: `not rows`, `len(rows) == 0`."""
    match test:
        case p.Unary(op="not", operand=p.Name(id=name)):
            return name
        case p.Compare(
            left=p.Call(func=p.Name(id="len"), args=(p.Argument(value=p.Name(id=name)),)),
            rest=[("==" | "<=", p.Const(value=0)) | ("<", p.Const(value=1))],
        ):
            return name
        case _:
            return ""


def _others_of(guard: p.Node) -> Iterator[str]:
    """The literals with which the `elif`s behind a comparison go on, which are not asked for where it holds."""
    if not (isinstance(guard, p.If) and isinstance(guard.test, p.Compare)):
        return
    asked = p.render(guard.test.left)
    following = guard.orelse
    while len(following) == 1:
        match following[0]:
            case p.If(
                test=p.Compare(left=left, rest=(("==", p.Const(value=str() as literal)),)),
                orelse=following,
            ) if p.render(left) == asked:
                yield literal
            case _:
                return


def _giving(body: tuple[p.Stmt, ...]) -> Iterator[p.If]:
    """The guards at the end of a function that each return a value, with nothing behind them but a `raise`."""
    for statement in reversed(body):
        if isinstance(statement, p.Raise):
            continue
        guards = [statement] if isinstance(statement, p.If) else []
        for guard in guards:
            guards += [s for s in guard.orelse if isinstance(s, p.If)]
            ends = guard.orelse[-1:]
            if not _returns(guard.body) or not all(isinstance(s, p.If | p.Raise) for s in ends):
                return
        if not guards:
            return
        yield from guards


def _returns(block: tuple[p.Stmt, ...]) -> bool:
    match block:
        case (*_, p.Return(value=value)):
            return value is not None and not isinstance(value, p.Const)
        case _:
            return False


def _divides_by_steps(guard: p.If) -> bool:
    """True for a guard over a division by what reads like the accumulation steps."""
    for node in p.walk(guard.body, into_functions=False):
        match node:
            case p.Augment(op="/", value=by) | p.Binary(op="/", right=by):
                if names.is_steps(p.dotted(by).rpartition(".")[2]):
                    return True
            case _:
                pass
    return False


def _makes_a_known_loss(block: tuple[p.Stmt, ...]) -> bool:
    """True where one of torch's losses is built and kept under a name."""
    return any(
        isinstance(s, p.Assign)
        and isinstance(s.value, p.Call)
        and p.dotted(s.value.func).rpartition(".")[2] in frameworks.CRITERIA
        for s in block
    )


def _skips(block: tuple[p.Stmt, ...]) -> p.Jump | p.Return | None:
    """The jump that ends a block, if any."""
    return next((s for s in block if isinstance(s, p.Jump | p.Return)), None)


def _carries(node: p.If, relevance: Relevance) -> bool:
    return any(s in relevance.eventful for s in (*node.body, *node.orelse))


def _guards_health(value: Unknown, node: p.If) -> bool:
    """True when a test asks whether a tensor is a number: only such guards are tried the other way."""
    text = p.render(node.test)
    words = ("nan", "finite", "norm", "overflow", "inf", "skip")
    return any(word in text for word in words) or value.loss or "loss" in text


def _sets_a_flag(node: p.If) -> bool:
    """True for a guard behind which a name or an attribute becomes True or False."""
    return any(
        isinstance(s, p.Assign) and isinstance(s.value, p.Const) and isinstance(s.value.value, bool)
        for s in node.body
    )
