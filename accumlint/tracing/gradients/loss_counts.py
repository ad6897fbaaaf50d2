"""What the counts that divide losses are counts of: all elements, rows, or those that a mask leaves in."""

from __future__ import annotations

from fractions import Fraction

from accumlint.reading import ir as p
from accumlint.tracing.events import Divisor
from accumlint.tracing.values import Counted, Term, Unknown


def left_out(term: Term) -> str:
    """The mask that a term is multiplied by, "" without one."""
    return next((f"`{s[2:]}`" for s in term.symbols if "mask" in s), "")


def is_masked(value: Unknown, by: Unknown) -> bool:
    """True for `(loss * mask).sum() / mask.sum()`, wherever the mask comes from."""
    if by.counted is None or by.counted.kind != "some":
        return False
    masks = {f"* {of.text}" for of in by.counted.of}
    return all(x.atom.reduction == "sum" and masks & {*x.symbols} for x in value.linear)


def is_own_sum(mask: Unknown, by: Unknown) -> bool:
    """True for `mask / mask.sum()`."""
    if by.counted is None or by.counted.kind != "some":
        return False
    of = mask.counted.of if mask.counted is not None else ()
    return not {mask.text, *(x.text for x in of)}.isdisjoint(x.text for x in by.counted.of)


def divisor(term: Term, by: Unknown, node: p.Node) -> Divisor:
    """What is known of the count `by` as the divisor of a loss's term."""
    written = node.right if isinstance(node, p.Binary) else None
    if isinstance(node, p.Augment):
        written = node.value
    counted = by.counted
    target = term.atom.whole
    return Divisor(
        p.render(written) if written is not None else by.text,
        counted.kind if counted is not None else "",
        by.over,
        term.atom.varies or left_out(term),
        counted is not None and any(of is target for of in counted.of),
    )


def times(by: Unknown) -> Fraction:
    """The number that a count was multiplied by as a whole, such as the steps: it divides beside the count."""
    terms = by.terms or ()
    factor = terms[0].factor if terms else None
    # Most terms of a long sum share one number.
    same = all(x.factor is factor or x.factor == factor for x in terms)
    return factor if factor and same else Fraction(1)


def both(left: Counted | None, right: Counted | None) -> Counted | None:
    """What a sum of two counts counts."""
    if left is None or right is None or left.kind != right.kind:
        return None
    return Counted(left.kind, (*left.of, *right.of))


def without(left: Counted | None, right: Counted | None) -> Counted | None:
    """What a count counts from which those are taken that a mask leaves in: `labels.numel() - padding.sum()`."""
    if left is None or right is None or right.kind != "some":
        return None
    return Counted("some", ())


def area(of: Unknown, by: Unknown) -> Counted | None:
    """What a product counts: rows times columns, or times a setting, are all elements, a mask times a mask is one."""
    left, right = of.counted, by.counted
    if left is None or right is None:
        plain = not by.tensor and not by.count and right is None
        return (
            Counted("elements", ())
            if left and left.kind in ("rows", "elements") and plain
            else None
        )
    if left.kind == right.kind == "rows":
        return Counted("elements", ())
    return Counted("some", ()) if left.kind == right.kind == "some" else None
