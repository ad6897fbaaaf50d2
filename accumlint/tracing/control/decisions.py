"""The decisions of a path, and what follows from the keys under which they are kept."""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from operator import eq, ge, gt, le, lt

from accumlint.common.frozen import frozen
from accumlint.reading import ir as p
from accumlint.tracing import trace as t
from accumlint.tracing.machine import Machine
from accumlint.tracing.state import Decision

# So many definitions are tried where nobody knows which one is used.
_MOST_PICKED = 4
_HOLDS = {"==": eq, "<": lt, "<=": le, ">": gt, ">=": ge}


def equality(key: str) -> tuple[str, str] | None:
    """The symbol and the string literal of a key like `args.optimizer == 'adam'`."""
    left, found, right = key.partition(" == ")
    if found and len(right) > 1 and right[0] in "'\"" and right[-1] == right[0] and " " not in left:
        return left, right[1:-1]
    return None


@frozen(slots=True)
class Comparison:
    """An unknown held against a whole number."""

    symbol: str
    operator: str
    limit: int

    def holds(self, value: int) -> bool:
        return _HOLDS[self.operator](value, self.limit)


@lru_cache(maxsize=256)
def comparison(key: str) -> Comparison | None:
    """What a key like `step > 0` compares, where it is an unknown with a whole number."""
    left, _, limit = key.rpartition(" ")
    symbol, _, operator = left.rpartition(" ")
    if operator not in _HOLDS or " " in symbol or not limit.removeprefix("-").isdecimal():
        return None
    return Comparison(symbol, operator, int(limit))


class Decisions:
    """The decisions of one run, by their keys; `chosen` are those that its path makes otherwise."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.chosen = machine.chosen
        self.decisions: dict[str, Decision] = {}
        self.asked_data: dict[str, int] = {}
        # The unknown that led to the first `raise`.
        self.refused = ""

    @property
    def is_exceptional(self) -> bool:
        """True on a path on which something goes wrong with the data."""
        return any(d.data and d.choice != "ordinary" for d in self.decisions.values())

    @property
    def refusal(self) -> dict[str, str]:
        """The other choice at the guard that led to a `raise` on this path."""
        last = self.decisions.get(self.refused)
        if last is None or last.data or last.key in self.chosen:
            return {}
        return {last.key: next(option for option in last.options if option != last.choice)}

    def choice(self, symbol: str) -> str | None:
        """The literal that an unknown is taken to be on this path, None where nobody asked."""
        decided = self.decisions.get(symbol)
        return self.chosen.get(symbol) or (decided.choice if decided else None)

    def picked(self, key: str, options: tuple[str, ...], preferred: str, *, matters: bool) -> str:
        """Which of several definitions is used, where the name or key that picks one is not known."""
        known = self.decisions.get(key)
        if known is None:
            chosen = self.chosen.get(key, preferred)
            if chosen not in options:
                chosen = preferred
            known = Decision(key, chosen, options[:_MOST_PICKED], matters, False)
            self.decisions[key] = known
        known.matters = known.matters or matters
        return known.choice if known.choice in options else preferred

    def facts(self, asked: Comparison) -> list[tuple[Comparison, Decision]]:
        """What was decided of the symbol of a comparison."""
        return [
            (known, decision)
            for decision in self.decisions.values()
            if not decision.data
            and (known := comparison(decision.key)) is not None
            and known.symbol == asked.symbol
        ]

    def skipped_step(self, key: str, expression: p.Expr) -> bool:
        """Whether the scaler left out its last step: only on an exceptional path, and then each time."""
        choice = self.chosen.get(key, "ordinary")
        self.decisions[key] = Decision(key, choice, (choice, "exceptional"), True, True)
        if choice == "exceptional":
            self.machine.emit(
                t.SkippedStep(*self.machine.stamp(expression, key), p.render(expression))
            )
        return choice == "exceptional"

    def happens_now(self, where: str, matters: bool) -> bool:
        """True once, where the path is one on which something that depends on the data goes wrong."""
        self.asked_data[where] = self.asked_data.get(where, 0) + 1
        if where not in self.decisions:
            choice = self.chosen.get(where, "ordinary")
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
        return self.happens_now(f"{id(node)}", True)
