"""Asks every rule about every path, and merges what they say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from accumlint.reading.program import Program
from accumlint.rule import Confidence, Finding, Rule
from accumlint.tracing import Exploration
from accumlint.tracing.trace import Trace

_Key = tuple[str, object]


def judge(
    program: Program,
    exploration: Exploration,
    rules: Iterable[Rule],
    broken: dict[Rule, Exception] | None = None,
) -> list[Finding]:
    """All findings in a program, each once, with the conditions under which it holds.

    A rule that fails finds nothing and is put into `broken`; without that, what it raises is raised.
    """
    found: list[Finding] = []
    for rule in rules:
        try:
            found += _by(rule, program, exploration)
        except Exception as problem:  # noqa: PERF203
            if broken is None:
                raise
            broken[rule] = problem
    return found


def _by(rule: Rule, program: Program, exploration: Exploration) -> Iterable[Finding]:
    found: dict[_Key, Finding] = {}
    for finding in rule.check_program(program):
        found.setdefault(_key(finding), finding)
    for traces in exploration.traces:
        for key, finding in _over_paths(rule, traces).items():
            known = found.get(key)
            if known is None or known.confidence.rank < finding.confidence.rank:
                found[key] = finding
    return found.values()


def _key(finding: Finding) -> _Key:
    return finding.rule.code, finding.node.at


def _over_paths(rule: Rule, traces: tuple[Trace, ...]) -> dict[_Key, Finding]:
    first: dict[_Key, Finding] = {}
    where: dict[_Key, list[Trace]] = {}
    asked = [t for t in traces if t.exceptional == rule.exceptional]
    for trace in asked:
        for finding in rule.check(trace):
            key = _key(finding)
            first.setdefault(key, finding)
            where.setdefault(key, []).append(trace)
    return {
        key: _conditioned(finding, where[key], asked)
        for key, finding in first.items()
        if not (finding.everywhere and _is_shared(finding, where[key], asked))
    }


def _is_shared(finding: Finding, holding: list[Trace], asked: list[Trace]) -> bool:
    """True when another path goes through the same place and is right there."""
    without = [t for t in asked if t not in holding]
    return any(event.node is finding.node for trace in without for event in trace.main.events)


def _conditioned(finding: Finding, holding: list[Trace], asked: list[Trace]) -> Finding:
    """A finding with the flags it needs; one that needs an unusual choice is a little less sure."""
    if len({id(t) for t in holding}) == len(asked):
        return finding
    common = set(holding[0].assumptions).intersection(*(t.assumptions for t in holding))
    without = [t for t in asked if t not in holding]
    conditions = tuple(
        (key, choice)
        for key, choice in holding[0].assumptions
        if (key, choice) in common
        and any(k == key and c != choice for t in without for k, c in t.assumptions)
    )
    confidence = finding.confidence
    if asked[0] not in holding and confidence is Confidence.CERTAIN:
        confidence = Confidence.LIKELY
    # The same code is right on another path: what mends it here may break it there.
    fixes = () if _is_shared(finding, holding, asked) else finding.fixes
    return replace(finding, conditions=conditions, confidence=confidence, fixes=fixes)
