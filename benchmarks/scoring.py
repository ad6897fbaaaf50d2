"""Compares what a linter found with the labels of the public benchmark."""

from __future__ import annotations

import ast
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from labelled import Defect, Loop, Sample, Source
from linted import OWN, Finding

# A finding this many lines from a label belongs to it, whatever stands between.
NEAR = 60
# Rules that tell of the same defect, by the rule of the label.
EQUIVALENT: Mapping[str, frozenset[str]] = {
    "ACC101": frozenset({"ACC108"}),
    "ACC102": frozenset({"ACC104", "ACC105"}),
    "ACC103": frozenset({"ACC104"}),
    "ACC302": frozenset({"ACC303", "ACC304"}),
    "ACC303": frozenset({"ACC302", "ACC304"}),
}
Scopes: TypeAlias = Sequence[tuple[int, int]]
Rules: TypeAlias = Mapping[str, frozenset[str]]


@dataclass
class Score:
    """The figures of one sample; `by_rule` has "labelled", "found" and "wrong"."""

    sample: Sample
    files: int = 0
    counts: Counter[str] = field(default_factory=Counter[str])
    by_rule: defaultdict[str, Counter[str]] = field(
        default_factory=lambda: defaultdict(Counter[str])
    )
    unmapped: Counter[str] = field(default_factory=Counter[str])
    missed: list[str] = field(default_factory=list[str])
    wrong: list[str] = field(default_factory=list[str])


def score(sample: Sample, findings: Iterable[Finding], alone: Path, rules: Rules) -> Score:
    """How the findings compare with a sample whose files lie in `alone`; files that are not there are left out."""
    by_file: defaultdict[tuple[str, str], list[Finding]] = defaultdict(list)
    for found in findings:
        by_file[found.folder, found.path].append(found)
    loops: defaultdict[Source, list[Loop]] = defaultdict(list)
    for loop in sample.loops:
        loops[loop.source].append(loop)
    counted = Score(sample)
    for source, held in loops.items():
        file = alone / source.folder / source.path
        if file.is_file():
            counted.files += 1
            here = by_file[source.folder, source.path]
            _count(counted, held, scopes_of(file.read_bytes()), here, rules)
    return counted


def _count(
    counted: Score, held: Sequence[Loop], scopes: Scopes, here: Sequence[Finding], rules: Rules
) -> None:
    for defect in (defect for loop in held for defect in loop.defects):
        close = [found for found in here if near(found.line, defect.line, scopes)]
        found = any(not told(rule.rule, rules).isdisjoint(tells_of(defect)) for rule in close)
        kinds = ["all", "gradients"] if defect.changes_gradients else ["all"]
        for kind in kinds:
            counted.counts[kind] += 1
            counted.counts[f"{kind} found"] += found
        counted.by_rule[key(defect)].update({"labelled": 1, "found": int(found)})
        if not found:
            counted.missed.append(
                f"{_place(held[0].source, defect.line)} {key(defect)} {defect.name}"
            )
    wrong: list[int] = []
    for found in here:
        kind = judged(found, held, scopes, rules, counted.sample.rules)
        counted.counts[kind] += 1
        if kind == "unmapped":
            counted.unmapped[found.rule] += 1
        elif kind == "wrong":
            wrong.append(found.line)
            counted.wrong.append(f"{_place(held[0].source, found.line)} {found.rule}")
            code = min(told(found.rule, rules), default=found.rule)
            counted.by_rule[code]["wrong"] += 1
    for loop in held:
        if right(loop, counted.sample.rules):
            counted.counts["right loops"] += 1
            counted.counts["silent"] += not any(belongs(line, loop, scopes) for line in wrong)


def judged(
    found: Finding, held: Sequence[Loop], scopes: Scopes, rules: Rules, asked: frozenset[str]
) -> str:
    """Whether a finding is "right", "debatable" or "wrong", "unmapped", or "unjudged" where no label says."""
    if not (names := told(found.rule, rules)) and found.rule not in rules:
        return "unmapped"
    if asked and names.isdisjoint(asked):
        return "unjudged"
    around = [loop for loop in held if loop.complete and belongs(found.line, loop, scopes)]
    if not around:
        return "unjudged"
    labels = {name for loop in around for code in loop.holds for name in alike(code)}
    for defect in (defect for loop in held for defect in loop.defects):
        if near(found.line, defect.line, scopes):
            labels |= tells_of(defect)
    if not names.isdisjoint(labels):
        return "right"
    debatable = any(not names.isdisjoint(alike(code)) for loop in around for code in loop.debatable)
    return "debatable" if debatable else "wrong"


def right(loop: Loop, asked: frozenset[str]) -> bool:
    """True of what was read completely and has no defect that the sample asks for."""
    labels = loop.holds.union(map(key, loop.defects))
    return loop.complete and not (labels & asked if asked else labels)


def told(rule: str, rules: Rules) -> frozenset[str]:
    """The rules of the labels that a linter's rule stands for; its own where it is one of them."""
    return rules.get(rule, frozenset({rule}) if OWN.fullmatch(rule) else frozenset())


def key(defect: Defect) -> str:
    """The code of its rule, or its name where there is no rule."""
    return defect.code or defect.name


def alike(code: str) -> frozenset[str]:
    """A rule and those equivalent to it."""
    return EQUIVALENT.get(code, frozenset()) | {code}


def tells_of(defect: Defect) -> frozenset[str]:
    """The rules that tell of a defect."""
    return alike(key(defect)) | defect.also


def belongs(line: int, loop: Loop, scopes: Scopes) -> bool:
    """Whether a line belongs to what was read."""
    return loop.line is None or near(line, loop.line, scopes)


def near(line: int, other: int, scopes: Scopes) -> bool:
    """Whether two lines are close, or in one function or class."""
    lines = line, other
    together = any(all(first <= each <= last for each in lines) for first, last in scopes)
    return together or abs(line - other) <= NEAR


def scopes_of(source: bytes) -> Scopes:
    """The first and last lines of functions and classes."""
    return tuple(_scopes(source))


def _scopes(source: bytes) -> Iterator[tuple[int, int]]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, kinds):
            yield node.lineno, node.end_lineno or node.lineno


def _place(source: Source, line: int) -> str:
    return f"{source.repository}@{source.commit[:10]} {source.path}:{line}"
