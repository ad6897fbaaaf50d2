"""Values made of others: what a tensor carries of its sources, linear combinations and reductions of losses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

from accumlint.reading import ir as p
from accumlint.reading import names
from accumlint.tracing import trace as t
from accumlint.tracing.events import Divisor
from accumlint.tracing.gradients.loss_counts import left_out
from accumlint.tracing.values import MOST, Batch, Counted, Ranks, Term, Unknown, Value


def derived(text: str, *sources: Value, node: p.Node | None = None) -> Unknown:
    """A new value that depends on others: on their data, their networks and their forwards."""
    batches: set[Batch] = set()
    networks: set[str] = set()
    forwards: dict[t.Forward, None] = {}
    varies = ""
    reduced: list[Unknown] = []
    for source in flat(sources):
        if isinstance(source, Unknown):
            batches |= source.batches
            if not source.parameters:
                networks |= source.networks
            forwards.update(dict.fromkeys(source.forwards))
            if not (source.rows and source.networks):
                # What was summed up for each row leaves nothing out of the rows.
                varies = varies or source.varies
            if source.over:
                reduced.append(source)
    found = Unknown(text, frozenset(batches), frozenset(networks), tuple(forwards), origin=node)
    found.varies = varies
    # Of how other ranks' values came into it, a loss asks only for what its gradient comes through.
    found.over = next((s.over for s in reduced if s.networks or not networks), "")
    return found


def flat(values: Iterable[Value], depth: int = 3) -> list[Value]:
    """The values inside lists, tuples and dicts, a few levels deep."""
    found: list[Value] = []
    for value in values:
        if isinstance(value, list | tuple) and depth:
            found += flat(value, depth - 1)
        elif isinstance(value, dict) and depth:
            found += flat(value.values(), depth - 1)
        else:
            found.append(value)
        if len(found) > MOST:
            break
    return found


def combined(text: str, terms: tuple[Term, ...], *sources: Unknown, node: p.Node | None) -> Unknown:
    """A linear combination, with what its sources carry."""
    found = derived(text, *sources, node=node)
    found.terms = terms
    found.loss = any(s.loss for s in sources)
    found.lost = any(s.lost for s in sources)
    found.scaler = next((s.scaler for s in sources if s.scaler is not None), None)
    found.reduction = sources[0].reduction if sources else "unknown"
    found.rows = any(s.rows and s.networks for s in sources)
    return found


def scaled(
    value: Unknown,
    factor: Fraction | None,
    symbol: str,
    node: p.Node | None,
    ranks: int = 0,
    of_steps: bool = False,
) -> Unknown:
    """`value` times a known factor (None: not followed) and an unknown one (`symbol`, "" for none).

    `ranks` is the power of the number of ranks that the symbol stands for.
    """
    terms = tuple(
        Term(
            x.atom,
            None if x.factor is None or factor is None else x.factor * factor,
            (*x.symbols, symbol) if symbol else x.symbols,
            x.ranks + ranks,
            x.of_steps or of_steps,
        )
        for x in value.linear
    )
    found = combined(value.text, terms, value, node=node)
    found.total = value.total
    found.count = value.count
    found.counted = value.counted
    return found


def copied(value: Unknown, node: p.Node) -> Unknown:
    """`value.clone()`: what is done to it in place leaves `value` as it is."""
    found = scaled(value, Fraction(1), "", node)
    found.rows, found.whole = value.rows, value.whole
    return found


def by_ranks(value: Unknown, ranks: Ranks, node: p.Node) -> Unknown:
    """`value` times a multiple or a power of the number of ranks."""
    return scaled(value, ranks.factor, ranks.symbol, node, ranks.power)


def detached(value: Unknown) -> Unknown:
    """The number without its graph: the same combination of the same losses."""
    found = Unknown(
        value.text, value.batches, loss=value.loss, reduction=value.reduction, varies=value.varies, total=value.total,
        count=value.count, origin=value.origin, over=value.over, counted=value.counted, whole=value.whole,
    )  # fmt: skip
    if value.terms is not None:
        found.terms = tuple(
            replace(x, atom=found if x.atom is value else detached(x.atom)) for x in value.terms
        )
    factor = shared_factor(value)
    if factor is not None and not value.loss:
        found.terms = (replace(factor, atom=found),)
    return found


def shared_factor(value: Unknown) -> Term | None:
    """The factor that all terms of a count have; None where it is 1, or differs."""
    first = value.linear[0]
    if value.counted is None or (first.factor == 1 and not first.symbols):
        return None
    same = all(
        (x.factor, x.symbols, x.ranks) == (first.factor, first.symbols, first.ranks)
        for x in value.linear
    )
    return first if same else None


def summed(value: Unknown, over: Value, node: p.Node) -> Unknown:
    """A sum over all elements, or, `over` other dimensions than the batch's, one for each row."""
    dimensions = over if isinstance(over, list | tuple) else [over]
    by_row = bool(dimensions) and all(isinstance(d, int) and d != 0 for d in dimensions)
    if by_row and value.networks and value.reduction in ("unknown", "none"):
        # What follows decides how the loss is reduced.
        return replace(_unreduced(value), rows=True)
    found = reduced(value, "sum", node)
    if not value.networks:
        found.loss, found.count = False, True
        of = value.counted.of if value.counted is not None else (value,)
        kind = value.counted.kind if value.counted is not None else "some"
        found.counted = Counted("each" if by_row else kind, of)
    return found


def _unreduced(value: Unknown) -> Unknown:
    """A loss of which there is one number for each row still, whatever it is made of."""
    terms = value.terms
    if terms is not None:
        terms = tuple(
            replace(x, atom=replace(x.atom, reduction="none", attributes={}))
            if x.atom.reduction == "unknown"
            else x
            for x in terms
        )
    return replace(value, reduction="none", terms=terms, attributes={})


def mean_over(value: Unknown, over: Value, node: p.Node) -> Unknown:
    """A mean over all elements, or, `over` dimensions behind rows and positions, one for each position."""
    dimensions = over if isinstance(over, list | tuple) else [over]
    of_features = bool(dimensions) and all(isinstance(d, int) and d >= 2 for d in dimensions)
    if of_features and value.networks and value.reduction == "none":
        return replace(value, attributes={})
    found = reduced(value, "mean", node)
    found.rows = value.loss and over is not None and 0 not in dimensions
    return found


def reduced(value: Unknown, reduction: str, node: p.Node) -> Unknown:
    """`value.mean()` or `value.sum()`: what that does to the loss's reduction."""
    known = "none", "unknown"
    picked = value.varies if value.varies.startswith(t.PICKED) else ""

    def atom(old: Unknown) -> Unknown:
        if old.reduction in known and (
            old.reduction == "none" or reduction == "sum" or not old.loss
        ):
            return replace(old, reduction=reduction, loss=True, attributes={})
        return old

    def averaged(old: Term) -> Term:
        fresh = atom(old.atom)
        out = left_out(old) or ("" if picked else old.atom.varies)
        if picked and reduction == "mean" and fresh is not old.atom:
            # A mean over what was picked, of whatever that was made of.
            fresh = replace(fresh, varies=picked)
        # Something unknown that divided already may be each row's own count.
        divided = any(symbol.startswith("/ ") for symbol in old.symbols)
        if reduction == "mean" and own_counts(old):
            # The elements of a row count no more.
            fresh = replace(fresh, varies="")
        elif out and reduction == "mean" and old.atom.reduction == "none" and not divided:
            # A mean over every element, those too that the loss or a mask makes 0.
            fresh = replace(fresh, divisor=Divisor("mean()", "elements", "", out, False))
        if reduction == "mean" and (old.atom.reduction in known or value.rows):
            return replace(old, atom=fresh, symbols=of_elements(old))
        return replace(old, atom=fresh)

    terms = tuple(averaged(x) for x in value.linear)
    found = combined(value.text, terms, value, node=node)
    found.loss = True
    if reduction == "mean" and all(map(own_counts, value.linear)):
        found.varies = ""
    found.reduction = terms[0].atom.reduction
    if value.terms is None and value.reduction == "unknown" and not value.networks:
        found.count = reduction == "sum"
    found.total = value.total
    if value.over == "gathered":
        # The sum over what all ranks gave is their sum.
        found.over = reduction
    found.counted = value.counted
    return found


def own_counts(term: Term) -> str:
    """What the rows of a term were divided by, each by a count of its own; "" where they were not."""
    by_row = f"{t.ELEMENTS}1 / "
    return next((s.removeprefix(by_row) for s in term.symbols if s.startswith(by_row)), "")


def of_elements(term: Term) -> tuple[str, ...]:
    """The unknown factors of a term of which the mean is taken now: they are weights of its elements."""
    if term.ranks:
        return term.symbols
    return tuple(
        f"{t.ELEMENTS}{s[2:]}" if s.startswith("* ") and names.is_elementwise(s[2:]) else s
        for s in term.symbols
    )


def fraction(number: int | float | Fraction) -> Fraction | None:
    """A number as a factor, None for what is none: infinity, or no number at all."""
    try:
        return Fraction(number)
    except (ValueError, OverflowError):
        return None
