"""Guards: the side of an `if` that is taken where its truth is not known."""

from __future__ import annotations

import re
from fractions import Fraction

from accumlint.reading import ir as p
from accumlint.reading import names
from accumlint.tracing import trace as t
from accumlint.tracing.control import guard_shapes as shapes
from accumlint.tracing.control.branch_relevance import flag, stripped
from accumlint.tracing.control.decisions import Decisions, comparison, equality
from accumlint.tracing.control.regions import Sides
from accumlint.tracing.gradients.gating import Gating
from accumlint.tracing.machine import Machine
from accumlint.tracing.state import Decision
from accumlint.tracing.values import Number, Unknown, Value

# What Python itself knows the truth of.
_PLAIN = (bool, int, float, str, bytes, Fraction, tuple, list, dict, set)

# What asks whether a number is one, whatever is known of the number.
_HEALTH = re.compile(r"\b(isnan|isinf|isfinite)\(")

_NUMBERS = re.compile(r"(?<![\w.])\d+(?![\w.])")


class Guards(Decisions):
    """Decides the guards of one machine."""

    def __init__(self, machine: Machine, gating: Gating) -> None:
        super().__init__(machine)
        self.gating = gating
        self.weighing = machine.borders.weighing
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
        # The last unknown that a guard asked for.
        self.latest = ""
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
        if value.tensor or _HEALTH.search(key) or shapes.leaves_out(value, node):
            return self._data_guard(value, key, negated, node)
        if names.is_skipped_step(key):
            return self.skipped_step(key, expression) != negated
        if names.is_unscaled(key):
            return self.machine.state.ledger.is_unscaled != negated
        state, asked = self.machine.state, f" % {self.machine.scenario.steps} == "
        if state.loops and state.asked and (asked in key or key in self._counted):
            return self._boundary(self._behind(expression)) != negated
        if (asked_for := equality(key)) is not None:
            return self._literal(*asked_for, node) != negated
        implied = self._implied(key, node)
        if implied is not None:
            return implied != negated
        key = self._of_every_round(key, expression)
        matters = self._matters(node)
        if (before := self.decisions.get(key)) is not None:
            before.matters = before.matters or matters
            return (before.choice == "true") != negated
        default = self._default(value, key, negated, node)
        choice = self.chosen.get(key, "true" if default else "false")
        options = (choice, "false" if choice == "true" else "true")
        self.decisions[key] = Decision(key, choice, options, matters, False)
        if isinstance(node, p.If) and shapes.sets_a_flag(node):
            self.flagging.add(key)
        return (choice == "true") != negated

    def suppose(self, value: Value) -> bool:
        """The truth of a flag that something depends on before a guard asks: true, unless a path decides otherwise."""
        if not isinstance(value, Unknown):
            return bool(value)
        key, negated = stripped(value.text)
        if (asked_for := equality(key)) is not None:
            symbol, literal = asked_for
            return (self.choice(symbol) in (None, literal)) != negated
        if key not in self.decisions:
            choice = self.chosen.get(key, "false" if negated else "true")
            options = (choice, "false" if choice == "true" else "true")
            self.decisions[key] = Decision(key, choice, options, False, False)
        return (self.decisions[key].choice == "true") != negated

    def leads_away(self, value: Value, node: p.If, *, taken: bool) -> None:
        """Notes what was decided before, and takes a guard to the side that does not train."""
        if isinstance(value, Unknown) and self.goal_of(node) not in (None, taken):
            key = stripped(value.text)[0]
            asked = comparison(key)
            told = (decision.key for _, decision in self.facts(asked)) if asked else ()
            self.flagging.update(self.decisions.keys() & {key, *told})

    def missing(self, node: p.If) -> str:
        """The list that is empty, where a guard leaves because it is, before anything is trained; "" for any other."""
        if self.machine.state.loops or self.goal_of(node) is not False:
            return ""
        name = shapes.emptied(node.test)
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
        number = rounds.setdefault(self.machine.loop_position(), len(rounds) + 1)
        return (number - ahead) % self.machine.scenario.steps == 0

    def _behind(self, test: p.Expr) -> int:
        """How many micro-batches behind the window's end a test asks for; the end itself where it ends windows."""
        if self.ends_windows():
            return 0
        return self.weighing.ahead(test, self.machine.scenario.steps, self.machine.relevance)

    def _matters(self, node: p.Node) -> bool:
        """True for a guard worth trying both ways: something happens to the gradient on one side."""
        deciding = self.machine.relevance.deciding
        return node in deciding or self.deciding in deciding

    def _of_every_round(self, key: str, test: p.Expr) -> str:
        """The key under which a comparison was asked first: with the round's number in it, all rounds answer alike."""
        ordered = isinstance(test, p.Compare) and all(op[0] in "<>" for op, _ in test.rest)
        if not ordered or comparison(key) is not None:
            return key
        return self._rounds.setdefault((test, _NUMBERS.sub("#", key)), key)

    def _implied(self, key: str, node: p.Node) -> bool | None:
        """The truth of `x > 0` that follows from what was decided of `x` before, None where both may be."""
        asked = comparison(key)
        if asked is None:
            return None
        facts = self.facts(asked)
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

    def _literal(self, symbol: str, literal: str, node: p.Node) -> bool:
        """`symbol == literal`: the symbol takes one of the literals it is compared with."""
        self.latest = symbol
        # Scripts that train do so on the accelerator that their scalers and wrappers are for.
        prefer = literal == "cuda" or (
            isinstance(node, p.If)
            and (
                self._prefers_literal(node)
                or shapes.divides_by_steps(node)
                or self._binds_anew(node)
                or self._gives_the_value(node)
            )
        )
        if symbol in self.decisions:
            decision = self.decisions[symbol]
            decision.matters = decision.matters or self._matters(node)
            if literal not in decision.options:
                decision.options = (*decision.options, literal)
                if prefer and decision.choice == "…" and symbol not in self.chosen:
                    # It was none of those that were asked for before, and may well be this one.
                    decision.choice = literal
            return decision.choice == literal
        matters = self._matters(node)
        choice = self.chosen.get(symbol, literal if prefer else "…")
        options = (choice, literal, *shapes.other_literals(node), "…")
        self.decisions[symbol] = Decision(symbol, choice, options, matters, False)
        return choice == literal

    def _binds_anew(self, node: p.If) -> bool:
        """True where one of several branches gives a value to a name that had none when it was first asked for."""
        if node not in self._binding:
            bound = shapes.bound_names(node.body) - self.machine.frame.names.keys()
            self._binding[node] = bool(bound - shapes.bound_names(node.orelse))
        return self._binding[node]

    def _gives_the_value(self, node: p.If) -> bool:
        """True for one of several guards that return, where a function gives no value otherwise."""
        function = self.machine.frame.function
        if function is None:
            return False
        if function not in self._giving:
            self._giving[function] = frozenset(shapes.giving_guards(function.body))
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
            known, less = (
                shapes.makes_a_known_loss(node.body),
                shapes.makes_a_known_loss(node.orelse),
            )
            if known != less:
                return known != negated
        if key.endswith(" is None") or names.is_off_by_default(key) or names.is_occasional(key):
            return False
        if then == 0 and not node.orelse:
            # What only tells about a loss is told, and what divides by the accumulation steps divides.
            told = any(s in self.machine.relevance.reports for s in node.body)
            divides = self.gating.accelerator is None and shapes.divides_by_steps(node)
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
            if self.goal is None and _HEALTH.search(key):
                return ("isfinite(" in key) != negated
            return bool(negated) if self.goal is None else self.goal
        if node in self.sides:
            return self.sides[node]
        where = f"{id(node)}"
        relevance = self.machine.relevance
        then = self.weighing.usual(node.body, relevance)
        other = self.weighing.usual(node.orelse, relevance)
        idle = then == 0 and not shapes.carries_events(node, self.machine.relevance)
        ordinary = then > other or (then == other and not idle)
        if shapes.carries_events(node, self.machine.relevance) and then == other == 0:
            ordinary = False
        if then == other and self._binds_anew(node):
            ordinary = True
        if then == other and _HEALTH.search(key):
            # Numbers are finite unless a path is exceptional.
            ordinary = ("isfinite(" in key) != negated
        if isinstance(value.hint, bool):
            ordinary = value.hint
        skips = shapes.jump_of(node.body) or shapes.jump_of(node.orelse) or then != other
        matters = (
            bool(skips or shapes.sets_a_flag(node))
            and bool(self.machine.state.loops)
            and shapes.is_about_data(value, node)
        )
        now = self.machine.loop_position()
        when, reason, answer = self._told.get(key, (None, False, False))
        if when == now and reason:
            # What went wrong with this micro-batch, or went well, did so for whoever asks the same of it.
            return answer != negated
        exceptional = when != now and self.happens_now(where, matters)
        taken = ordinary != exceptional
        self._told[key] = (now, exceptional or then != other, taken != negated)
        if exceptional:
            jump = shapes.jump_of(node.body if taken else node.orelse)
            at: p.Node = jump if jump is not None else node
            ends = "return" if jump is not None else "pass"
            kind = jump.kind if isinstance(jump, p.Jump) else ends
            self.machine.emit(t.Skip(*self.machine.stamp(at, key), p.render(node.test), kind))
        return taken
