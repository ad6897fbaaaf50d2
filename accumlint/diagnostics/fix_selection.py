"""Chooses the fix that a finding is offered with: it is gone, and only what it hid has come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace

from accumlint import reading, tracing
from accumlint.common.frozen import frozen
from accumlint.common.place import Place
from accumlint.diagnostics.judge import judge
from accumlint.diagnostics.results import report
from accumlint.editing.edits import Edit, applied
from accumlint.editing.fix_resolution import edits
from accumlint.editing.layout import Layout
from accumlint.editing.operations import nodes
from accumlint.editing.receivers import Standing, may_stream, standing, unmeasured
from accumlint.files.inputs.document import difference
from accumlint.reading.program import Program
from accumlint.reading.project import Project
from accumlint.registry import packs
from accumlint.rule import Applicability, Confidence, Finding, Fix, Rule, Severity
from accumlint.tracing import Exploration
from accumlint.tracing.budget import (
    NODES_OF_STEP,
    STEPS,
    STEPS_OF_CHARACTER,
    STEPS_OF_JUDGED,
    Budget,
)


@frozen
class Health:
    """What is wrong with a text: findings by code, all and without those that are only possible; the codes of those
    that are worse than an info; loops that cannot be followed; tracing that ended early.
    """

    findings: Counter[str]
    probable: Counter[str]
    grave: frozenset[str]
    untraced: int
    stopped: bool

    def improves_on(self, before: Health, mended: Rule) -> bool:
        """True when one finding of a rule is gone, what has come was hidden by it, and no less could be seen."""
        return (
            self.findings[mended.code] < before.findings[mended.code]
            and all(
                code not in self.grave or code.startswith(mended.hides)
                for code in self.new_since(before)
            )
            and self.untraced <= before.untraced
            and self.stopped <= before.stopped
        )

    def new_since(self, before: Health) -> tuple[str, ...]:
        """The codes of which there are more findings that are sure."""
        return tuple(sorted(self.probable - before.probable))


def health(findings: Sequence[Finding], exploration: Exploration) -> Health:
    """What the findings of all rules say about a text."""
    codes = Counter(finding.rule.code for finding in findings)
    sure = [f for f in findings if f.confidence is not Confidence.POSSIBLE]
    return Health(
        codes,
        Counter(f.rule.code for f in sure),
        frozenset(f.rule.code for f in sure if f.severity is not Severity.INFO),
        len(exploration.untraced),
        bool(exploration.stopped),
    )


def offers(
    findings: Sequence[Finding],
    program: Program,
    exploration: Exploration,
    project: Project,
    judged: Iterable[Finding],
    asked: Set[Rule],
) -> list[report.Fix | None]:
    """The fix of each finding, None where there is no certain one; of fewer where the budget has no more steps.

    `judged` are the findings of the rules that were `asked` about the program.
    """
    # A fix must not bring what some rule would find, whether that rule is selected or not.
    rules = packs.select(also=[finding.rule.code for finding in findings]).rules
    if exploration.alone is not None:
        # A changed text has no callers.
        exploration = exploration.alone
        known = judge(program, exploration, rules, {})
    else:
        known = [f for f in judged if f.rule in rules]
        known += judge(program, exploration, set(rules) - asked, {})
    # A file that took long to follow takes as long to be followed again, once for each fix.
    budget = Budget(STEPS - exploration.steps)
    cost = exploration.steps + STEPS_OF_JUDGED * exploration.events

    def examine(text: str) -> Health | None:
        try:
            changed = reading.read(text, program.path, project)
        except reading.UnreadableSource:
            return None
        # A changed text may take far more than the file itself.
        explored = tracing.explore_alone(changed, project, trial := Budget(budget.left))
        budget.spend(trial.spent + STEPS_OF_JUDGED * explored.events)
        return health(judge(changed, explored, rules, {}), explored)

    return _tried(findings, program, health(known, exploration), examine, budget, cost)


def _tried(
    findings: Sequence[Finding],
    program: Program,
    before: Health,
    examine: Callable[[str], Health | None],
    budget: Budget,
    cost: int,
) -> list[report.Fix | None]:
    """The fix of each finding; `examine` is None for a text that is no program.

    Trying a fix takes as many steps as checking the file, `cost`. Where the budget has fewer, fewer are returned.
    """
    verbs = [verb for finding in findings for fix in finding.fixes for verb in fix.verbs]
    layout = Layout(program, (node for verb in verbs for node in nodes(verb)))
    found: list[report.Fix | None] = []
    if verbs and budget.is_over(STEPS_OF_CHARACTER * layout.size):
        return found
    for finding in findings:
        offer = None
        for fix in finding.fixes:
            if budget.is_over(cost):
                return found
            made = edits(fix.verbs, layout)
            budget.spend(len(program.nodes) // NODES_OF_STEP)
            fix = _allowed(fix, program)
            if fix is None or not made:
                continue
            after = examine(applied(program.text, made))
            if after is not None and after.stopped and budget.is_over(1):
                return found
            if after is not None and after.improves_on(before, finding.rule):
                next_ = after.new_since(before)
                if after.grave.intersection(next_) and fix.applicability is Applicability.SAFE:
                    fix = replace(fix, applicability=Applicability.UNSAFE)
                offer = _plain(fix, next_, made, layout)
                break
        found.append(offer)
    return found


def _allowed(fix: Fix, program: Program) -> Fix | None:
    """A fix as far as it may be made: None where a method that it calls is missing, shown only where one may be."""
    sure = standing(fix.verbs, program)
    if sure is Standing.LACKING:
        return None
    unknown = unmeasured(fix.verbs, program)
    applicability = fix.applicability
    if sure is Standing.UNKNOWN or (unknown and may_stream(program)):
        applicability = Applicability.DISPLAY
    elif unknown and applicability is Applicability.SAFE:
        applicability = Applicability.UNSAFE
    needs = "".join(f"; `{name}` must have a length" for name in unknown)
    return replace(fix, message=fix.message + needs, applicability=applicability)


def _plain(fix: Fix, shows: Sequence[str], made: Sequence[Edit], layout: Layout) -> report.Fix:
    """A fix as plain values, with its difference for people; it says what it `shows` that was hidden."""
    new = applied(layout.text, made)
    then = " and ".join(f"{code} ({packs.find(code).name})" for code in shows)
    verb = "shows" if len(shows) == 1 else "show"
    return report.Fix(
        fix.applicability.value,
        f"{fix.message}; then {then} {verb}" if shows else fix.message,
        tuple(_edit(edit, layout) for edit in made),
        difference(layout.text, new),
        shows=tuple(shows),
    )


def _edit(edit: Edit, layout: Layout) -> report.Edit:
    start, end = layout.position(edit.start), layout.position(edit.end)
    lines = (layout.program.lines[start[0] - 1], layout.program.lines[end[0] - 1])
    return report.Edit(Place(*start, *end), edit.start, edit.end, edit.content, lines)
