"""What the rules find in one program, and where it is told: with what misplaced clears hide and other files tell."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set

from accumlint import tracing
from accumlint.common.frozen import frozen
from accumlint.diagnostics import judge
from accumlint.diagnostics.location import Known, placed
from accumlint.reading.ir import Node
from accumlint.reading.program import Program
from accumlint.reading.project import Project
from accumlint.reading.syntax import Source
from accumlint.registry import packs
from accumlint.rule import Finding, Rule
from accumlint.tracing import Exploration
from accumlint.tracing import budget as limits
from accumlint.tracing.budget import Budget


@frozen
class Findings:
    """The findings of the rules that were asked, `judged` wherever they stand and `placed` in the program.

    `broken` are the rules that failed. `budget` is what comparing with other files' checks has left of the file's work.
    """

    judged: Sequence[Finding]
    placed: Sequence[Finding]
    broken: Mapping[Rule, BaseException]
    budget: Budget


def findings(
    program: Program,
    exploration: Exploration,
    project: Project,
    asked: Collection[Rule],
    told_by: Callable[[Source], tuple[Known, int]],
) -> Findings:
    """What the rules find; `told_by` gives what the check of another file tells, and the steps that it takes."""
    broken: dict[Rule, BaseException] = {}
    budget = Budget(limits.STEPS - exploration.steps)
    told: dict[Source, Known] = {}

    def known(source: Source) -> Known | None:
        if source not in told and not budget.is_over(1):
            told[source], steps = told_by(source)
            budget.spend(steps)
        return told.get(source)

    def mended(misplaced: Set[Node]) -> Exploration:
        trial = Budget(budget.left)
        found = tracing.explore_alone(program, project, trial, misplaced=misplaced)
        budget.spend(trial.spent)
        return found

    judged = judge.judge(program, exploration, asked, broken)
    # What a finding hides does not depend on whether its rule is selected.
    hiding = {r for r in packs.everything() if r.misplaced}
    clears = [f for f in judged if f.rule in hiding]
    clears += judge.judge(program, exploration, hiding - set(asked), broken)
    behind = judge.hidden(program, mended, set(asked) - broken.keys(), clears, judged)
    there = list(placed([*judged, *behind], program, exploration.leads, known))
    return Findings(judged, there, broken, budget)
