"""Every fixture is run: the bad ones show their defect, fixed and good ones do not.

A good fixture has no finding; its rule's question is put to its loop nevertheless. What cannot be answered yet stands
in a table with the reason, and has to leave it when it can.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from helpers import ROOT, markers

from accumlint import packs
from accumlint.config import Settings
from accumlint.confirming.launch import Options
from accumlint.confirming.plan import Plan, Wish, again, planned
from accumlint.confirming.result import Confirmation, Regime, Verdict
from accumlint.confirming.session import confirm
from accumlint.discovery import Target
from accumlint.place import Place
from accumlint.report import Mark, Report
from accumlint.rule import Applicability, Rule

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

FIXTURES = ROOT / "fixtures"
EXPECTED = {"bad": Verdict.CONFIRMED, "fixed": Verdict.REFUTED, "good": Verdict.REFUTED}
# A difference that rounding makes in float64 is far below.
EQUAL = 1e-9

# Rules whose claim no run measures.
UNMEASURED = {
    "ACC407": "memory that is held is not measured",
    "ACC507": "how long a schedule is meant to be is not measured",
    "ACC508": "running averages of the weights are not watched",
    "ACC601": "the loop is that of transformers' Trainer, which is not installed",
    "ACC606": "the loop is that of Lightning's Trainer, which is not installed",
    "ACC701": "what is shown is not watched",
    "ACC702": "what is shown is not watched",
    "ACC703": "no difference exists that could be measured",
    "ACC704": "what is not shown is not watched",
}
ABSENT = "it needs a framework that is not installed"
NO_LOOP = "the loop that uses it stands in another file of the fixture"
OTHER_DATA = "the question is put with data that this loop never sees"
ON_PURPOSE = "it does on purpose what the rule asks about"
NO_STANDIN = "nothing stands in for what it computes its loss from"
NEVER_STEPS = "the optimizer never steps, which is not asked about"
# Fixtures that get another verdict than they should.
EXCEPTIONS: dict[str, str] = {}


@dataclass(frozen=True)
class Case:
    """A question to a loop, under the name of its fixture; `kind` is "bad", "fixed" or "good"."""

    name: str
    kind: str
    plan: Plan
    safe: bool = False


def cases(rule: Rule) -> Iterator[Case]:
    """The questions of one rule to all its fixtures."""
    for path in sorted((FIXTURES / rule.code.lower()).iterdir()):
        kind = path.name.partition("_")[0]
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        for file in files:
            if file.suffix == ".py" and not file.name.endswith(".fixed.py"):
                yield from _cases(file, kind, rule)


def _cases(file: Path, kind: str, rule: Rule) -> Iterator[Case]:
    name = file.relative_to(FIXTURES).with_suffix("").as_posix()
    target = Target(name, str(file), Settings(Path("/"), extend_select=(rule.code,)))
    text = file.read_text(encoding="utf-8")
    if kind == "good":
        yield Case(name, kind, again(_question(target, rule), target, text, Wish()))
        return
    lines = frozenset(line for line, code in markers(text) if code == rule.code)
    if not lines:
        return
    after = file.with_name(f"{file.stem}.fixed.py")
    for plan in planned(target, text, lines, Wish()):
        if plan.report.code != rule.code:
            continue
        yield Case(name, kind, plan)
        if after.exists():
            fixed = again(plan, target, after.read_text(encoding="utf-8"), Wish())
            safe = rule.fix is Applicability.SAFE
            yield Case(f"{name}.fixed", "fixed", replace(fixed, arm="fixed"), safe)


def _question(target: Target, rule: Rule) -> Plan:
    """What a rule would ask, had it found anything."""
    mark = Mark(Place(1, 1, 1, 1), "")
    report = Report(target.shown, target.file, rule.code, rule.name, "", "", "", mark)
    return Plan(report, rule, rule.shows, rule.ranks, None)


def measured(hundreds: str) -> list[Case]:
    """The questions of the rules whose codes begin so, as far as they are measured."""
    return [
        case
        for entry in packs.catalogue()
        if entry.code[3] in hundreds and entry.code not in UNMEASURED
        for case in cases(packs.rule(entry))
    ]


# Two tests, so that both cores have something to do; each starts torchrun once for one rank and once for two.
@pytest.mark.parametrize("hundreds", ["13", "24567"])
def test_every_fixture_gets_the_verdict_that_its_name_promises(hundreds: str) -> None:
    asked = measured(hundreds)
    answers = confirm([case.plan for case in asked], Options(), lambda _: None)
    wrong = {
        case.name: f"{answer.verdict.value}: {answer.reason}"
        for case, answer in zip(asked, answers, strict=True)
        if answer.verdict is not EXPECTED[case.kind]
    }
    excepted = {name for name in EXCEPTIONS if name[3] in hundreds}
    unknown = [f"{name}: {why}" for name, why in wrong.items() if name not in excepted]
    if unknown:
        pytest.fail("\n".join(unknown))
    assert excepted - wrong.keys() == set()
    uneven = {
        case.name: error
        for case, answer in zip(asked, answers, strict=True)
        if case.safe and case.name not in excepted and not (error := worst(answer)) <= EQUAL
    }
    assert uneven == {}


def worst(answer: Confirmation) -> float:
    """The largest relative error of an update that equal numbers of targets were given to."""
    equal = [one for one in answer.passes if one.regime is Regime.EQUAL]
    return max(update.error for one in equal for update in one.updates)


def test_the_tables_name_what_exists() -> None:
    known = {entry.code for entry in packs.catalogue()}
    assert UNMEASURED.keys() <= known
    for name in EXCEPTIONS:
        assert (FIXTURES / f"{name}.py").exists()
