"""Arithmetic: exact on numbers, linear on losses, with token counts, ranks and running totals."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from accumlint.reading import ir as p
from accumlint.tracing import trace as t
from accumlint.tracing.calls.numeric import word
from accumlint.tracing.control.guards import Guards
from accumlint.tracing.gradients import loss_counts, tensors
from accumlint.tracing.machine import Machine
from accumlint.tracing.operators import on_numbers, on_sequences
from accumlint.tracing.values import (
    MOST,
    Batch,
    Method,
    Number,
    Object,
    Ranks,
    Term,
    Unknown,
    Value,
)

_LONG = 100


class Tensors:
    """The arithmetic of one run."""

    def __init__(self, machine: Machine, guards: Guards) -> None:
        self.machine = machine
        self.guards = guards

    def arithmetic(self, op: str, left: Value, right: Value, node: p.Node) -> Value:
        """`left op right`: exact on numbers, linear on losses, unknown elsewhere."""
        if isinstance(left, Number) and isinstance(right, Number):
            if op == "%" and right and isinstance(right, int) and isinstance(left, int):
                self._modulus(right)
            return on_numbers(op, left, right)
        if isinstance(left, list | tuple | str) and op in "+*%":
            return on_sequences(op, left, right, node)
        left, right = map(_of_a_model, (left, right))
        if isinstance(left, Unknown) or isinstance(right, Unknown):
            return self.linear(op, left, right, node)
        return Unknown(p.dotted(node.target) if isinstance(node, p.Augment) else p.text_of(node))

    def _modulus(self, right: int) -> None:
        """A number's remainder was asked for: perhaps the window is written as a number."""
        state, guard = self.machine.state, self.guards.deciding
        if isinstance(guard, p.If) and guard not in self.machine.relevance.deciding:
            if not any(isinstance(statement, p.Jump) for statement in guard.body):
                # It says when something is shown.
                return
        if 1 < right <= 512 and state.loops and state.modulus is None:
            state.modulus = right

    def linear(self, op: str, left: Value, right: Value, node: p.Node) -> Value:
        """`left op right` with an unknown side."""
        found = self._linear(op, left, right, node)
        counted = op == "%" and isinstance(left, Number)
        if isinstance(found, Unknown) and (len(found.text) > _LONG or counted):
            # Texts of sums would grow round by round, and no decision would ever be met again.
            found.text = (
                p.dotted(node.target) if isinstance(node, p.Augment) else p.text_of(node)[:_LONG]
            )
        return found

    def _linear(self, op: str, left: Value, right: Value, node: p.Node) -> Value:
        match op:
            case "+" | "-":
                return self._sum(op, left, right, node)
            case "*":
                if isinstance(left, Unknown) and not (
                    isinstance(right, Unknown) and _gradient(right) and not _gradient(left)
                ):
                    return self._times(left, right, node)
                return self._times(right, left, node)
            case "/" | "//":
                found = self._over(left, right, node)
                if isinstance(found, Unknown) and op == "//":
                    found.ranks = None
                elif isinstance(found, Unknown) and found is not left and not _gradient(found):
                    # The mean of a total is no total that runs on.
                    found.total = ""
                return found
            case "@":
                return tensors.derived(_shown(left, op, right), left, right, node=node)
            case _:
                return self._opaque(op, left, right, node)

    def _opaque(self, op: str, left: Value, right: Value, node: p.Node) -> Unknown:
        found = tensors.derived(_shown(left, op, right), left, right, node=node)
        found.lost = any(isinstance(x, Unknown) and self.hides(x, True) for x in (left, right))
        return found

    def hides(self, value: Unknown, blind: bool) -> bool:
        """True when an operation on `value` may hide a factor that has to do with the window.

        A function of torch cannot know the accumulation steps, so only a loss that was divided before matters there.
        """
        if value.lost:
            return True
        if not value.loss or not value.networks:
            return False
        return not blind or any(x.factor is None or x.of_steps for x in value.linear)

    def _is_of_steps(self, by: Number, node: p.Node) -> bool:
        """True for the accumulation steps, or one over them, where the code writes no number."""
        match node:
            case p.Binary(left=left, right=right):
                written = isinstance(left, p.Const) or isinstance(right, p.Const)
            case p.Augment(value=value):
                written = isinstance(value, p.Const)
            case _:
                written = False
        steps = Fraction(self.machine.scenario.steps)
        return not written and tensors.fraction(by) in (steps, 1 / steps)

    def _sum(self, op: str, left: Value, right: Value, node: p.Node) -> Value:
        sign = Fraction(1 if op == "+" else -1)
        if isinstance(left, Unknown) and isinstance(right, Unknown):
            if len(left.linear) + len(right.linear) > MOST:
                return tensors.derived(p.text_of(node), left, right, node=node)
            terms = tuple(
                replace(x, factor=None if x.factor is None else x.factor * sign)
                for x in right.linear
            )
            if not left.tensor and not right.tensor and not left.loss and not right.loss:
                return Unknown(f"{left.text} {op} {right.text}", terms=(*left.linear, *terms))
            # A constant beside a loss has no gradient; a count beside a count is a count.
            found = tensors.combined(
                f"{left.text} {op} {right.text}", (*left.linear, *terms), left, right, node=node
            )
            found.total = left.total or right.total
            runs_on = left.count and left.batches and not left.batches <= right.batches
            if runs_on and not found.total:
                found.total = found.text
            found.count = left.count and right.count
            counts = loss_counts.both if op == "+" else loss_counts.without
            found.counted = counts(left.counted, right.counted)
            return found
        known, other = (left, right) if isinstance(left, Unknown) else (right, left)
        if not isinstance(known, Unknown) or not isinstance(other, Number):
            return tensors.derived(_shown(left, op, right), left, right, node=node)
        if not known.tensor and not known.loss:
            terms = tensors.scaled(known, sign if known is right else Fraction(1), "", node).terms
            return Unknown(_shown(left, op, right), terms=terms, count=known.count)
        if isinstance(right, Unknown) and op == "-":
            return tensors.scaled(known, Fraction(-1), "", node)
        found = tensors.scaled(known, Fraction(1), "", node)
        if other and found.counted is not None:
            # One more or one less for each row: somebody has thought of what is counted.
            found.counted = replace(found.counted, of=())
        return found

    def _times(self, value: Value, by: Value, node: p.Node) -> Value:
        if not isinstance(value, Unknown) or not isinstance(by, Unknown | Number):
            return tensors.derived(_shown(value, "*", by), value, by, node=node)
        if isinstance(by, Number):
            found = tensors.scaled(
                value, tensors.fraction(by), "", node, of_steps=self._is_of_steps(by, node)
            )
            if not value.tensor and not value.loss:
                ranks = _multiple(value.ranks, by)
                return Unknown(f"{value.text} * {by}", terms=found.terms, ranks=ranks)
            return found
        if not value.tensor and not value.loss and not by.tensor:
            return Unknown(f"{value.text} * {by.text}")
        if _gradient(value) and _gradient(by):
            return self._opaque("*", value, by, node)
        if by.ranks is not None:
            return tensors.by_ranks(value, by.ranks, node)
        if value.ranks is not None and by.tensor:
            return tensors.by_ranks(by, value.ranks, node)
        found = tensors.scaled(value, Fraction(1), f"* {by.text}", node)
        found.batches = value.batches | by.batches
        if by.batches and "mask" in by.text:
            found.varies = f"`{by.text}`"
        found.counted = loss_counts.area(value, by)
        found.weighs = by.weighs
        return found

    def _over(self, value: Value, by: Value, node: p.Node) -> Value:
        if not isinstance(value, Unknown):
            if isinstance(by, Unknown) and by.ranks is not None and isinstance(value, Number):
                return Unknown(_shown(value, "/", by), ranks=_share(value, by.ranks))
            if isinstance(by, Unknown) and by.scaler is not None:
                return tensors.derived(_shown(value, "/", by), by, node=node)
            found = tensors.derived(_shown(value, "/", by), value, by, node=node)
            found.per = by if isinstance(by, Unknown) and by.total else None
            return found
        if value.total and not _gradient(value):
            self.read(value, False, node)
        if isinstance(by, Number):
            factor = tensors.fraction(by)
            inverse = Fraction(1) / factor if factor else None
            found = tensors.scaled(value, inverse, "", node, of_steps=self._is_of_steps(by, node))
            if not value.tensor and not value.loss:
                ranks = _multiple(value.ranks, 1 / factor if factor else 0)
                return Unknown(f"{value.text} / {by}", terms=found.terms, ranks=ranks)
            return found
        if not isinstance(by, Unknown):
            return tensors.derived(_shown(value, "/", by), value, by, node=node)
        if not _gradient(value) and loss_counts.is_own_sum(value, by):
            # Weights that make a mean of the sum of what they are multiplied by.
            count = replace(by, text=p.render(node.right)) if isinstance(node, p.Binary) else by
            return replace(value, weighs=count, attributes={})
        if not value.tensor and not value.loss and not by.tensor:
            return Unknown(f"{value.text} / {by.text}")
        if by.ranks is not None and (share := _share(1, by.ranks)) is not None:
            return tensors.by_ranks(value, share, node)
        if by.batches and not _gradient(by):
            own = by.counted.kind == "each" if by.counted is not None else not by.count
            if own and all(x.atom.reduction == "none" for x in value.linear):
                # Each element or row by one of its own (a probability, a length): no mean over the batch is taken.
                return tensors.scaled(value, Fraction(1), f"{t.ELEMENTS}1 / {by.text}", node)
            return self.normalised(value, by, node)
        if by.batches:
            return self._opaque("/", value, by, node)
        if loss_counts.is_masked(value, by):
            return self.normalised(value, by, node)
        return tensors.scaled(value, Fraction(1), f"/ {by.text}", node)

    def normalised(self, value: Unknown, by: Unknown, node: p.Node) -> Unknown:
        """A loss divided by a count: its own micro-batch's makes a mean, the whole window's ends the matter."""
        if by.total:
            # A total by a total of as many micro-batches is their average, shown when all is over.
            shown = bool(value.total) and value.batches >= by.batches
            self.read(by, bool(value.networks or value.parameters) and not shown, node)
        whole = _roots(by.batches)
        own = _roots(value.batches)
        wider = len(by.batches - value.batches) > 0 and not (value.batches >= by.batches)
        collected = own and (len(whole) > len(own) or (wider and whole <= own))
        reduction = "window" if by.total or collected else "mean"
        masks = {f"* {of.text}" for of in by.counted.of} if by.counted is not None else set[str]()
        terms = tuple(
            Term(
                replace(
                    x.atom,
                    reduction=reduction,
                    loss=True,
                    varies=x.atom.varies or f"`{by.text}`",
                    divisor=loss_counts.divisor(x, by, node),
                    attributes={},
                )
                if reduction == "window" or x.atom.reduction != "mean"
                else x.atom,
                x.factor,
                tuple(
                    s
                    for s in (x.symbols if x.atom.reduction == "mean" else tensors.of_elements(x))
                    if "mask" not in s and f"* {s[2:]}" not in masks and s != t.OVER_RANKS
                ),
                x.ranks,
                x.of_steps,
            )
            for x in value.linear
        )
        found = tensors.combined(value.text, terms, value, node=node)
        found.loss = True
        found.reduction = reduction
        found = self._undone(found, by, node)
        found.per = by if by.total and not value.tensor else None
        return found

    def _undone(self, value: Unknown, by: Unknown, node: p.Node) -> Unknown:
        """`value` without the factor that all of the count that divided it has."""
        factor = tensors.shared_factor(by)
        if factor is None:
            return (
                tensors.scaled(value, 1 / loss_counts.times(by), "", node)
                if loss_counts.times(by) != 1
                else value
            )
        inverse = 1 / factor.factor if factor.factor else None
        if len(factor.symbols) == abs(factor.ranks) == 1:
            name = factor.symbols[0][2:]
            power = Ranks(name, power=-factor.ranks)
            return tensors.scaled(value, inverse, power.symbol, node, power.power)
        return tensors.scaled(value, inverse, "/ …" if factor.symbols else "", node)

    def read(self, value: Unknown, divides: bool, node: p.Node) -> None:
        """A running total is used."""
        machine, ordinals = self.machine, self.machine.state.ordinals
        added = tuple(sorted(ordinals[b.when] for b in value.batches if b.when in ordinals))
        machine.emit(t.Read(*machine.stamp(node, value.total), value.total, divides, added))

    def loss_of(
        self, text: str, sources: list[Value], reduction: str, varies: str, node: p.Node
    ) -> Unknown:
        """A new loss made by a loss function."""
        found = tensors.derived(text, *sources, node=node)
        found.loss = True
        found.reduction = reduction
        targets = next((s for s in sources[1:2] if isinstance(s, Unknown)), None)
        picked = targets.left_out if targets is not None else ""
        found.varies = varies or found.varies or (picked if picked.startswith(t.PICKED) else "")
        spans = "position" in p.text_of(node)
        if spans or any(isinstance(s, Unknown) and s.rows for s in sources):
            # One label for each row: the mean is over rows, and these are as many in every micro-batch.
            found.varies = ""
        found.whole = next(
            (s.whole for s in sources[1:] if isinstance(s, Unknown) and s.whole), None
        )
        return found

    def threshold(self, op: str, left: Value, right: Value) -> bool | None:
        """`count >= limit` where the count grew micro-batch by micro-batch: as many as the accumulation steps."""
        if not isinstance(left, Unknown) or _gradient(left) or left.loss:
            return None
        if not left.total and not (left.count and left.batches and self.guards.ends_by_size()):
            return None
        if isinstance(right, Unknown) and right.tensor:
            return None
        size = len(left.batches)
        if isinstance(right, Number) and right <= 1:
            # Is there anything left?
            more, less = size > right, size < right
            return {">": more, ">=": not less, "<": less, "<=": not more}.get(op)
        if op in ("==", "!=") and not self.guards.ends_by_size():
            return None
        reached = size >= self.machine.steps()
        return (
            reached if op in (">=", ">", "==") else not reached if op in ("<", "<=", "!=") else None
        )


def _of_a_model(value: Value) -> Value:
    """An attribute of a model (`model.last_loss`) as what it is reckoned with."""
    match value:
        case Method(path=text):
            return Unknown(text)
        case Object(text=text, traced=None, cls=None, networks=networks):
            return Unknown(text, networks=networks)
        case _:
            return value


def _multiple(ranks: Ranks | None, by: Number) -> Ranks | None:
    factor = tensors.fraction(by)
    return None if ranks is None or factor is None else replace(ranks, factor=ranks.factor * factor)


def _share(number: Number, ranks: Ranks) -> Ranks | None:
    """A number divided by a multiple of the number of ranks."""
    over = tensors.fraction(number)
    if over is None or not ranks.factor:
        return None
    return Ranks(ranks.name, over / ranks.factor, -ranks.power)


def _gradient(value: Unknown) -> bool:
    return bool(value.networks) and not value.parameters


def _roots(batches: frozenset[Batch]) -> frozenset[Batch]:
    found: set[Batch] = set()
    for batch in batches:
        while batch.parent is not None:
            batch = batch.parent
        found.add(batch)
    return frozenset(found)


def _shown(left: Value, op: str, right: Value) -> str:
    return f"{word(left)} {op} {word(right)}"
