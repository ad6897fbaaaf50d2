"""What a pass and a control gave, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from accumlint.confirming.cases import worst
from accumlint.confirming.columns import figure
from accumlint.confirming.result import Confirmation, Pass, Regime, Verdict

_REGIMES = {
    Regime.EQUAL: "equal target counts",
    Regime.RAGGED: "differing target counts",
    Regime.TRAILING: "epochs that end inside a window",
    Regime.OVERFLOW: "one gradient that is not finite",
}


def circumstances(done: Pass) -> str:
    """How a pass was run: "4 accumulation steps, 2 ranks, equal target counts"."""
    steps = f"{done.steps} accumulation step{'' if done.steps == 1 else 's'}"
    ranks = f"{done.ranks} rank{'' if done.ranks == 1 else 's'}"
    return f"{steps}, {ranks}, {_REGIMES[done.regime]}"


def summed(done: Pass) -> str:
    """A whole pass in one sentence."""
    updates = f"{len(done.updates)} update{'' if len(done.updates) == 1 else 's'}"
    furthest = worst(done)
    error = f", largest error {figure(furthest.error)}" if furthest else ""
    raised = f", ended by {done.raised.kind}" if done.raised else ""
    return f"{circumstances(done)}: {updates}{error}{raised}."


def exception(done: Pass) -> str:
    """What ended a pass: "RuntimeError at line 51: unscale_() has already been called"; "" for nothing."""
    if done.raised is None:
        return ""
    line = f" at line {done.raised.line}" if done.raised.line else ""
    return f"{done.raised.kind}{line}: {done.raised.message}"


def besides(done: Pass) -> Iterator[str]:
    """What the updates of a pass do not tell: running totals, the scale, a threshold of ours."""
    for total in done.totals:
        graph = f", keeping {total.nodes} graph nodes" if total.nodes else ""
        yield f"`{total.name}` is {figure(total.value)} at update {total.update}{graph}"
    if done.scales:
        yield f"The scale after each update is {', '.join(map(figure, done.scales))}"
    if done.pressure:
        yield f"The clipping threshold was set to {figure(done.pressure)}, so that it acts"


def controlled(one: Confirmation) -> str:
    """What was changed for the control and what it gave; "" without one."""
    if one.control is None:
        return ""
    seen = "the defect is seen" if one.control.detected else "no defect is seen"
    same = one.verdict is not Verdict.UNDECIDED and one.control.detected is (
        one.verdict is Verdict.CONFIRMED
    )
    doubt = ", as here, so that it decides nothing" if same else ""
    return f"{sentence(one.control.what)} Then {seen}{doubt} ({figure(one.control.value)})."


def sentence(text: str) -> str:
    """Text with a full stop at its end."""
    bare = text.rstrip()
    return bare if not bare or bare[-1] in ".!?:" else f"{bare}."
