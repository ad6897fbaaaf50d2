"""Asks every rule about every path, and merges what they say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace

from accumlint.reading.ir import If, Node, walk
from accumlint.reading.program import Program
from accumlint.rule import Confidence, Finding, Related, Rule, Severity
from accumlint.tracing import Exploration
from accumlint.tracing.trace import Trace

# Why a second place belongs to a finding that stands on both sides of an `if`.
_OTHER_SIDE = "and on the other side of the condition"

_Key = tuple[str, object]
Assumption = tuple[str, str]


def judge(
    program: Program,
    exploration: Exploration,
    rules: Iterable[Rule],
    broken: dict[Rule, BaseException] | None = None,
) -> list[Finding]:
    """All findings in a program, each once, with the conditions under which it holds.

    A rule that fails finds nothing and is put into `broken`; without that, what it raises is raised.
    """
    found: list[Finding] = []
    for rule in rules:
        try:
            found += _by(rule, program, exploration)
        except (Exception, SystemExit) as problem:  # noqa: PERF203 (each rule fails by itself)
            if broken is None:
                raise
            broken[rule] = problem
    return list(_gathered(found, program))


def hidden(
    program: Program,
    explored: Callable[[Set[Node]], Exploration],
    rules: Iterable[Rule],
    clears: Sequence[Finding],
    judged: Iterable[Finding],
) -> Iterator[Finding]:
    """What findings about misplaced `clears` hide and is worse than an info: what is found where those stand behind
    the step.

    `explored` gives the program's traces with some clears there. No fix can be tried before they are mended.
    """
    if not clears:
        return
    first, known = clears[0], set(map(_key, judged))
    behind = [r for r in rules if r.code.startswith(first.rule.hides)]
    nodes = {node for f in clears for node in (f.node, *twins(f))}
    after = explored(nodes) if behind else None
    for finding in judge(program, after, behind) if after else ():
        if _key(finding) not in known and finding.severity is not Severity.INFO:
            sure = finding.confidence
            if finding.related and not any(
                program.source.holds(r.node.at) for r in finding.related
            ):
                # Two steps from what is seen: behind another defect, and by evidence of other files alone.
                sure = Confidence.POSSIBLE
            related = (*finding.related, Related(first.node, "what clears the gradients too early"))
            yield replace(
                finding, fixes=(), related=related, confidence=sure, behind=first.rule.code
            )


def twins(finding: Finding) -> Iterator[Node]:
    """Where a finding stands on the other sides of conditions."""
    return (r.node for r in finding.related if r.message == _OTHER_SIDE)


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


def _gathered(findings: list[Finding], program: Program) -> Iterator[Finding]:
    """The findings, where one defect stands on both sides of an `if` as one with a related place."""
    codes = Counter(f.rule.code for f in findings)
    several = [f for f in findings if codes[f.rule.code] > 1]
    sides = _sides(program, {f.node for f in several}) if several else {}
    kept: list[Finding] = []
    # The first finding of a rule on each side of an `if`, by its place in `kept`.
    first: dict[tuple[Rule, Node, bool], int] = {}
    for finding in findings:
        mine = sides.get(finding.node, {})
        across = ((finding.rule, guard, not side) for guard, side in mine.items())
        twin = min((first[key] for key in across if key in first), default=None)
        if twin is None:
            for guard, side in mine.items():
                first.setdefault((finding.rule, guard, side), len(kept))
            kept.append(finding)
        else:
            kept[twin] = _joined(kept[twin], finding)
    return iter(kept)


def _sides(program: Program, places: set[Node]) -> dict[Node, dict[Node, bool]]:
    """For each place the `if`s around it, and whether it stands on their first side."""
    found: dict[Node, dict[Node, bool]] = {}
    for guard in program.of(If):
        if guard.orelse:
            for first, block in ((True, guard.body), (False, guard.orelse)):
                for node in walk(block, into_functions=False):
                    if node in places:
                        found.setdefault(node, {})[guard] = first
    return found


def _joined(finding: Finding, twin: Finding) -> Finding:
    """A finding that is told at its first place, and mended at both."""
    others = dict(twin.conditions)
    fixes = tuple(
        replace(fix, verbs=(*fix.verbs, *other.verbs))
        for fix in finding.fixes
        for other in twin.fixes
        if (fix.message, fix.applicability) == (other.message, other.applicability)
    )
    surer = max(finding, twin, key=lambda f: f.confidence.rank)
    return replace(
        finding,
        confidence=surer.confidence,
        related=(*finding.related, Related(twin.node, _OTHER_SIDE)),
        conditions=tuple((k, c) for k, c in finding.conditions if others.get(k, c) == c),
        fixes=fixes,
    )


def _key(finding: Finding) -> _Key:
    return finding.rule.code, finding.node.at


def _over_paths(rule: Rule, traces: tuple[Trace, ...]) -> dict[_Key, Finding]:
    first: dict[_Key, Finding] = {}
    where: dict[_Key, list[Trace]] = {}
    asked = [
        t
        for t in traces
        if t.told
        and t.exceptional == rule.exceptional
        and (rule.of_losses or t.entry.driven is None)
    ]
    # Paths on which the same happened share their runs.
    said: dict[int, tuple[Finding, ...]] = {}
    for trace in asked:
        if id(trace.runs) not in said:
            said[id(trace.runs)] = tuple(_on_a_path(rule, trace))
        for finding in said[id(trace.runs)]:
            key = _key(finding)
            first.setdefault(key, finding)
            where.setdefault(key, []).append(trace)
    return {
        key: _conditioned(finding, where[key], asked)
        for key, finding in first.items()
        if not (finding.everywhere and _is_shared(finding, where[key], asked))
    }


def _on_a_path(rule: Rule, trace: Trace) -> Iterator[Finding]:
    """The findings on a path; where nobody accumulates by default, with the condition that somebody does."""
    kept: set[_Key] = set()
    if trace.single is not None:
        kept = {_key(found) for found in rule.findings(replace(trace, runs=(trace.single[1],)))}
    for found in rule.findings(trace):
        if trace.single is None or _key(found) in kept:
            yield found
        else:
            yield replace(found, conditions=((f"{trace.single[0]} > 1", "true"),))


def _is_shared(finding: Finding, holding: list[Trace], asked: list[Trace]) -> bool:
    """True when another path goes through the same place and is right there."""
    without = [t for t in asked if t not in holding]
    return any(event.node is finding.node for trace in without for event in trace.main.events)


def _conditioned(finding: Finding, holding: list[Trace], asked: list[Trace]) -> Finding:
    """A finding with the flags it needs; one that needs an unusual choice is a little less sure."""
    finding = replace(finding, trace=holding[0])
    if all(trace.remote for trace in holding):
        finding = replace(finding, confidence=Confidence.POSSIBLE)
    if finding.trace and (driven := finding.trace.entry.driven):
        # The steps are one until they are set.
        finding = replace(finding, conditions=((f"{driven.hook.steps} > 1", "true"),))
    if len({id(t) for t in holding}) == len(asked):
        return finding
    without = [set(t.assumptions) for t in asked if t not in holding]
    common = set(holding[0].assumptions).intersection(*(t.assumptions for t in holding))
    candidates = [a for a in holding[0].assumptions if a in common]
    conditions = (*finding.conditions, *_telling(candidates, without))
    confidence = finding.confidence
    if asked[0] not in holding and confidence is Confidence.CERTAIN:
        confidence = Confidence.LIKELY
    # The same code is right on another path: what mends it here may break it there.
    fixes = () if _is_shared(finding, holding, asked) else finding.fixes
    return replace(finding, conditions=conditions, confidence=confidence, fixes=fixes)


def _telling(candidates: list[Assumption], without: list[set[Assumption]]) -> Iterator[Assumption]:
    """The fewest choices that tell the paths with a finding from those without it, in their order."""

    def contradicts(choice: Assumption, path: set[Assumption]) -> bool:
        return any(key == choice[0] and other != choice[1] for key, other in path)

    open_ = [path for path in without if any(contradicts(c, path) for c in candidates)]
    chosen: list[Assumption] = []
    while open_:
        best = max(candidates, key=lambda c: sum(contradicts(c, path) for path in open_))
        chosen.append(best)
        open_ = [path for path in open_ if not contradicts(best, path)]
    return (c for c in candidates if c in chosen)
