"""Chooses the fix that a finding is offered with: one after which it is gone and nothing else has come."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from accumlint import report
from accumlint.editing.edits import Edit, applied
from accumlint.editing.layout import Layout
from accumlint.editing.resolving import edits
from accumlint.editing.verbs import nodes
from accumlint.frozen import frozen
from accumlint.place import Place
from accumlint.reading.program import Program
from accumlint.rule import Confidence, Finding, Fix
from accumlint.text import difference
from accumlint.tracing import Exploration

# Trying a fix costs as much as checking the file. Past this much work, what is left is reported without one.
SECONDS = 6.0


@frozen
class Health:
    """What is wrong with a text: findings by code, all and without those that are only possible; loops that cannot be
    followed; tracing that ended early.
    """

    findings: Counter[str]
    sure: Counter[str]
    untraced: int
    stopped: bool

    def improves_on(self, before: Health, mended: str) -> bool:
        """True when one finding of a code is gone, no other one that is sure has come, and no less could be seen."""
        return (
            self.findings[mended] < before.findings[mended]
            and self.sure <= before.sure
            and self.untraced <= before.untraced
            and self.stopped <= before.stopped
        )


def health(findings: Sequence[Finding], exploration: Exploration) -> Health:
    """What the findings of all rules say about a text."""
    codes = Counter(finding.rule.code for finding in findings)
    sure = (f for f in findings if f.confidence is not Confidence.POSSIBLE)
    return Health(
        codes,
        Counter(f.rule.code for f in sure),
        len(exploration.untraced),
        bool(exploration.stopped),
    )


def offers(
    findings: Sequence[Finding],
    program: Program,
    before: Health,
    examine: Callable[[str], Health | None],
) -> list[report.Fix | None]:
    """The fix of each finding, None where there is no certain one. `examine` is None for a text that is no program."""
    verbs = [verb for finding in findings for fix in finding.fixes for verb in fix.verbs]
    layout = Layout(program, (node for verb in verbs for node in nodes(verb)))
    start = time.process_time()
    found: list[report.Fix | None] = []
    for finding in findings:
        offer = None
        for fix in finding.fixes:
            made = edits(fix.verbs, layout)
            if not made or time.process_time() - start > SECONDS:
                continue
            after = examine(applied(program.text, made))
            if after is not None and after.improves_on(before, finding.rule.code):
                offer = _plain(fix, made, layout)
                break
        found.append(offer)
    return found


def _plain(fix: Fix, made: Sequence[Edit], layout: Layout) -> report.Fix:
    """A fix as plain values, with its difference for people."""
    new = applied(layout.text, made)
    return report.Fix(
        fix.applicability.value,
        fix.message,
        tuple(_edit(edit, layout) for edit in made),
        difference(layout.text, new),
    )


def _edit(edit: Edit, layout: Layout) -> report.Edit:
    start, end = layout.position(edit.start), layout.position(edit.end)
    lines = (layout.program.lines[start[0] - 1], layout.program.lines[end[0] - 1])
    return report.Edit(Place(*start, *end), edit.start, edit.end, edit.content, lines)
