"""Sentences about a pass and a control."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from accumlint.confirming.finding_verdicts import worst
from accumlint.confirming.reports.text_columns import figure
from accumlint.confirming.result import Confirmation, Pass, Regime, Verdict
from accumlint.diagnostics.results.diagram import ranges

# Larger relative errors come from a reference near zero or an overflow.
_HUGE = 1e6
_REGIMES = {
    Regime.EQUAL: "equal target counts",
    Regime.RAGGED: "differing target counts",
    Regime.TRAILING: "epochs that end inside a window",
    Regime.OVERFLOW: "one gradient that is not finite",
    Regime.SCRIPT: "the script's own data",
}


def circumstances(done: Pass) -> str:
    """The settings of a pass: "4 accumulation steps, 2 ranks, equal target counts"."""
    steps = f"{done.steps} accumulation step{'' if done.steps == 1 else 's'}"
    ranks = f"{done.ranks} rank{'' if done.ranks == 1 else 's'}"
    return f"{steps}, {ranks}, {_REGIMES[done.regime]}"


def summed(done: Pass) -> str:
    """A pass in one sentence."""
    updates = f"{len(done.updates)} update{'' if len(done.updates) == 1 else 's'}"
    furthest = worst(done)
    error = f", largest error {figure(furthest.error)}" if furthest else ""
    raised = f", ended by {done.raised.kind}" if done.raised else ""
    return f"{circumstances(done)}: {updates}{error}{raised}."


def exception(done: Pass) -> str:
    """The exception that ended a pass: "RuntimeError at line 51: unscale_() has already been called"; "" for none."""
    if done.raised is None:
        return ""
    line = f" at line {done.raised.line}" if done.raised.line else ""
    return f"{done.raised.kind}{line}: {done.raised.message}"


def besides(done: Pass) -> Iterator[str]:
    """Further results of a pass: unusual figures, running totals, the scale, a changed threshold."""
    yield from _odd(done)
    for total in done.totals:
        graph = f", keeping {total.nodes} graph nodes" if total.nodes else ""
        yield f"`{total.name}` is {figure(total.value)} at update {total.update}{graph}"
    if done.scales:
        yield f"The scale after each update is {', '.join(map(figure, done.scales))}"
    if done.pressure:
        yield f"The clipping threshold was set to {figure(done.pressure)}, so that it acts"


def _odd(done: Pass) -> Iterator[str]:
    """Explanations of figures that are not finite or unusually large."""
    infinite, empty = list[int](), list[int]()
    for update in done.updates:
        if not (math.isfinite(update.applied) and math.isfinite(update.reference)):
            infinite.append(update.number)
        elif not update.reference:
            empty.append(update.number)
        elif update.error > _HUGE:
            yield (
                f"The error of update {update.number} is {figure(update.error)} because the large batch's "
                f"gradient is only {figure(update.reference)} long"
                if update.reference < 1 / _HUGE
                else f"The gradient that update {update.number} applies is {figure(update.applied)} long"
            )
    if infinite:
        yield f"A gradient is not finite at update {ranges(infinite)}, so that nothing is compared there"
    if empty:
        yield f"The large batch's gradient is zero at update {ranges(empty)}, so that there is no relative error"


def controlled(one: Confirmation) -> str:
    """The control and its result; "" without one."""
    if one.control is None:
        return ""
    text = sentence(one.control.what)
    if one.control.detected is (one.verdict is Verdict.CONFIRMED):
        # Nothing was changed: the control shows that the value can be read.
        return text
    return f"{text} {'The' if one.control.detected else 'No'} defect shows then."


def grouped(fakes: Sequence[str]) -> list[str]:
    """The fakes, with equal descriptions grouped."""
    names: dict[str, list[str]] = {}
    for one in fakes:
        name, colon, what = one.partition("`: ")
        names.setdefault(what if colon else one, []).append(f"{name}`" if colon else "")
    return [
        f"{', '.join(of)}: {what}{', each' if len(of) > 1 else ''}" if of[0] else what
        for what, of in names.items()
    ]


def sentence(text: str) -> str:
    """Text with a capital letter and a full stop."""
    bare = text.strip()
    return bare if not bare else f"{bare[0].upper()}{bare[1:]}{'' if bare[-1] in '.!?:' else '.'}"
