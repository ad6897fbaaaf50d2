"""Fixtures are run: the bad ones show their defect, fixed and good ones do not.

A good fixture has no finding; its rule's question is put to its loop nevertheless. What cannot be answered yet stands
in a table with the reason, and has to leave it when it can.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from helpers import AROUND_FIXTURES, ROOT, markers
from unanswered import EXCEPTIONS

from accumlint import check
from accumlint.check import Examined
from accumlint.common.place import Place
from accumlint.config import Settings
from accumlint.confirming.launch import Options
from accumlint.confirming.passes import FEWER, UPDATES, Overrides
from accumlint.confirming.pipeline import confirm
from accumlint.confirming.plan import Plan, planned, replanned
from accumlint.confirming.result import Confirmation, Regime, Verdict
from accumlint.diagnostics.results.report import Mark, Report
from accumlint.files.inputs.discovery import Target
from accumlint.registry import packs
from accumlint.rule import Applicability, Rule, Symptom

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

FIXTURES = ROOT / "fixtures"
EXPECTED = {"bad": Verdict.CONFIRMED, "fixed": Verdict.REFUTED, "good": Verdict.REFUTED}
# A difference that rounding makes in float64 is far below.
EQUAL = 1e-9


@dataclass(frozen=True)
class Case:
    """A question to a loop, under the name of its fixture; `kind` is "bad", "fixed" or "good"."""

    name: str
    kind: str
    plan: Plan
    safe: bool = False


def cases(rule: Rule, *, first: bool = False) -> Iterator[Case]:
    """The questions of one rule to its fixtures; with `first`, to its first bad one alone.

    The first gets the verdict that it should, and has a fixed text where any has.
    """
    paths = sorted((FIXTURES / rule.code.lower()).iterdir())
    paths.sort(key=lambda p: (name_of(p) in EXCEPTIONS, not p.with_suffix(".fixed.py").exists()))
    for kind in ("bad", "good"):
        named = [p for p in paths if p.name.startswith(f"{kind}_") and ".fixed" not in p.name]
        for path in (named[:1] if kind == "bad" else []) if first else named:
            for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
                if file.suffix == ".py" and not file.name.endswith(".fixed.py"):
                    yield from _cases(file, kind, rule, mended=not first)


def name_of(path: Path) -> str:
    return path.relative_to(FIXTURES).with_suffix("").as_posix()


def _cases(file: Path, kind: str, rule: Rule, *, mended: bool) -> Iterator[Case]:
    name = name_of(file)
    target = Target(name, str(file), Settings(Path("/"), extend_select=(rule.code,)))
    text = file.read_text(encoding="utf-8")
    examined = _examined(text, target)
    if examined is None:
        # Nothing in it trains.
        return
    if kind == "good":
        yield Case(name, kind, replanned(_question(target, rule), examined, Overrides()))
        return
    lines = frozenset(line for line, code in markers(text) if code == rule.code)
    if not lines:
        return
    after = file.with_name(f"{file.stem}.fixed.py")
    for plan in planned(examined, lines, Overrides()):
        if plan.report.code != rule.code:
            continue
        yield Case(name, kind, plan)
        if mended and after.exists():
            text_after = _examined(after.read_text(encoding="utf-8"), target)
            assert text_after is not None
            fixed = replanned(plan, text_after, Overrides())
            safe = rule.fix is Applicability.SAFE or rule.code == "ACC101"
            yield Case(f"{name}.fixed", "fixed", replace(fixed, arm="fixed"), safe)


# Right loops whose loss weighs more or less on purpose, which a window of one micro-batch shows.
WEIGHED = {
    "acc102/good_quarter_weight", "acc102/good_times_the_columns", "acc406/good_reported_after_the_step",
}  # fmt: skip


# Data that only some questions ask for; a report shows them to all.
_ASKED_OF = {
    Regime.RAGGED: {Symptom.WEIGHTS},
    Regime.TRAILING: {
        Symptom.LEFT, Symptom.PARTIAL, Symptom.GRADIENT, Symptom.MISSED, Symptom.RAISES, Symptom.SPREAD,
    },
}  # fmt: skip


# What a loop is made right by, for controls.
_MENDS = {"mend", "average", "regular", "free", "drop", "mute", "even", "flush"}


def trimmed(case: Case) -> Plan:
    """A question's plan without the passes that the expected verdict does not rest on.

    A defect is confirmed when a loop made right does not show it; it is refuted when a broken one does.
    """
    plan = case.plan
    if plan.job is None:
        return plan
    passes = (
        spec
        for spec in plan.job.passes
        if plan.symptom in _ASKED_OF.get(Regime(spec.regime), {plan.symptom})
        and (not spec.sabotage or (spec.sabotage in _MENDS) == (case.kind == "bad"))
        # What its targets weigh on purpose shows alone.
        and (
            spec.steps > 1
            or case.kind == "bad"
            or (case.kind == "fixed" and plan.symptom is Symptom.SCALE)
            or case.name in WEIGHED
        )
    )
    return replace(plan, job=replace(plan.job, passes=tuple(passes)))


def shortened(case: Case) -> Plan:
    """The same with fewer updates and the controls that most defects need; what is shown in two updates is shown."""
    plan = trimmed(case)
    if plan.job is None:
        return plan
    fewer = 2 if case.kind == "bad" else FEWER
    passes = (
        replace(spec, updates=min(spec.updates, fewer))
        if spec.updates in (UPDATES, FEWER)
        else spec
        for spec in plan.job.passes
        if not spec.unscaled and (case.kind != "bad" or spec.sabotage in ("", "mend"))
    )
    return replace(plan, job=replace(plan.job, passes=tuple(passes)))


def _examined(text: str, target: Target) -> Examined | None:
    examined = check.examine(text.encode(), target, AROUND_FIXTURES)
    return examined if isinstance(examined, Examined) else None


def _question(target: Target, rule: Rule) -> Plan:
    """What a rule would ask, had it found anything."""
    mark = Mark(Place(1, 1, 1, 1), "")
    report = Report(target.shown, target.file, rule.code, rule.name, "", "", "", mark)
    return Plan(report, rule, rule.ranks, None)


def measured(hundreds: str, *, first: bool = False) -> list[Case]:
    """The questions of the rules whose codes begin so, as far as they are measured."""
    return [
        case
        for entry in packs.catalogue()
        if entry.code[3] in hundreds and not packs.rule(entry).unmeasured
        for case in cases(packs.rule(entry), first=first)
    ]


# Two tests of about the same length, so that both cores have something to do; each starts torchrun once for one rank
# and once for two. Each rule is asked about one bad fixture, and about all where CI asks for it.
@pytest.mark.long
@pytest.mark.parametrize("hundreds", ["124", "3567"])
@pytest.mark.parametrize(
    "first", [True, pytest.param(False, marks=pytest.mark.whole)], ids=["the first", "all"]
)
def test_fixtures_get_the_verdict_that_their_names_promise(hundreds: str, first: bool) -> None:
    asked = [c for c in measured(hundreds, first=first) if c.name not in EXCEPTIONS]
    answers = answered(asked)
    assert wrong(asked, answers) == {}
    uneven = {
        case.name: error
        for case, answer in zip(asked, answers, strict=True)
        if case.safe and not (error := worst(answer)) <= EQUAL
    }
    assert uneven == {}


# Loops that cannot be run are tried in every way, which takes long.
@pytest.mark.excepted
@pytest.mark.parametrize("hundreds", ["124", "3567"])
def test_who_has_left_the_table_s_reason_behind_leaves_the_table(hundreds: str) -> None:
    asked = [case for case in measured(hundreds) if case.name in EXCEPTIONS]
    right = {case.name for case in asked} - wrong(asked, answered(asked)).keys()
    assert right == set()


@pytest.mark.gpu
@pytest.mark.long
def test_fixtures_get_the_same_verdict_on_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch can use no GPU")
    asked = [c for c in measured("12", first=True) if c.name not in EXCEPTIONS]
    assert wrong(asked, answered(asked, Options(device="cuda"))) == {}


def answered(asked: list[Case], options: Options | None = None) -> list[Confirmation]:
    """The answers to cases: most need few updates and one control, the others are asked with all."""
    options = options or Options()
    answers = confirm([shortened(case) for case in asked], options, lambda _: None)
    open_ = wrong(asked, answers)
    # A fix is judged by what the text that it mends has shown.
    reports = {id(case.plan.report) for case in asked if case.name in open_}
    more = [number for number, case in enumerate(asked) if id(case.plan.report) in reports]
    whole = confirm([trimmed(asked[number]) for number in more], options, lambda _: None)
    for number, answer in zip(more, whole, strict=True):
        answers[number] = answer
    return answers


def wrong(asked: list[Case], answers: list[Confirmation]) -> dict[str, str]:
    """What was answered where another verdict is expected."""
    return {
        case.name: f"{answer.verdict.value}: {answer.reason}"
        for case, answer in zip(asked, answers, strict=True)
        if answer.verdict is not EXPECTED[case.kind]
    }


def worst(answer: Confirmation) -> float:
    """The largest relative error of an update, of one with differing numbers of targets where those were asked for."""
    whole = [one for one in answer.passes if one.regime in (Regime.EQUAL, Regime.RAGGED)]
    return max(update.error for one in whole for update in one.updates)


@pytest.mark.parametrize("rule", [r for r in packs.everything() if r.unmeasured], ids=type)
def test_what_no_run_measures_is_not_run(rule: Rule) -> None:
    plans = [case.plan for case in cases(rule, first=True) if case.kind == "bad"]
    assert plans
    for answer in confirm(plans, Options(), lambda _: None):
        assert (answer.verdict, answer.reason) == (Verdict.UNDECIDED, rule.unmeasured)


def test_the_table_names_what_exists() -> None:
    assert all((FIXTURES / f"{name}.py").exists() for name in EXCEPTIONS)
