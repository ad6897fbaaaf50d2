"""Which reports are shown, and which a comment, a setting or the baseline silences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from accumlint.config import Settings
from accumlint.config.setting_keys import SEVERITIES
from accumlint.diagnostics.report_builder import remark_report
from accumlint.diagnostics.results.report import Report, Silenced
from accumlint.files import gitignore
from accumlint.files.inputs.discovery import Target
from accumlint.files.inputs.document import Text
from accumlint.registry import packs

if TYPE_CHECKING:
    from accumlint.diagnostics.suppression import Match, Suppressions
    from accumlint.rule import Finding

# A report, and the ignores that silence it.
Matched: TypeAlias = "tuple[Report, list[Match]]"


@cache
def selection(settings: Settings) -> packs.Selection:
    """The rules that the settings select."""
    return packs.select(settings.select, settings.extend_select, settings.ignore)


def is_confident_enough(finding: Finding, settings: Settings) -> bool:
    from accumlint.rule import Confidence

    return finding.confidence.rank >= Confidence(settings.min_confidence).rank


def is_as_grave(report: Report, least: str) -> bool:
    """True for a finding that is at least as grave as a severity."""
    return SEVERITIES.index(report.severity) <= SEVERITIES.index(least)


def about_ignores(
    suppressions: Suppressions,
    silenced: Mapping[Match, int] | None,
    text: Text,
    target: Target,
) -> Iterator[Matched]:
    """What the rules about ignores report, with the ignores that name these very rules: no other may hide it."""
    from accumlint.diagnostics.rule_references import in_comments

    if not suppressions.ignores:
        return
    rules = [rule for rule in selection(target.settings).rules if rule.meta]
    unmeasured = {word.lower() for rule in rules for word in (rule.code, rule.name)}
    mentions = list(in_comments(suppressions, silenced, unmeasured, text.rows))
    for remark in (remark for rule in rules for remark in rule.check_mentions(mentions)):
        code, name, line = remark.rule.code, remark.rule.name, remark.mention.place.line
        ignores = suppressions.naming(code, name, line)
        yield remark_report(remark, text, target), ignores


def sifted(
    reports: Sequence[Matched], data: bytes, target: Target
) -> tuple[tuple[Report, ...], tuple[Silenced, ...]]:
    """The reports in order, and those that a comment, `per-file-ignores` or the baseline silences."""
    if not reports:
        return (), ()
    from accumlint.diagnostics.results import baseline
    from accumlint.diagnostics.results.fingerprint import fingerprinted

    ordered = sorted(reports, key=lambda pair: pair[0].key)
    named = fingerprinted([report for report, _ in ordered], data)
    file = target.settings.baseline
    known = Counter(baseline.load(file) if file else {})
    kept: list[Report] = []
    silenced: list[Silenced] = []
    for report, (_, ignores) in zip(named, ordered, strict=True):
        if not is_as_grave(report, target.settings.min_severity):
            continue
        if ignores:
            silenced.append(Silenced(report, by_comment=True, reason=ignores[0].ignore.reason))
        elif report.code in _ignored(target.file, target.settings):
            silenced.append(Silenced(report, by_comment=False))
        elif file and known[baseline.known(report, file)] > 0:
            known[baseline.known(report, file)] -= 1
            silenced.append(Silenced(report, by_comment=False, known=True))
        else:
            kept.append(report)
    return tuple(kept), tuple(silenced)


@cache
def _ignored(file: str, settings: Settings) -> frozenset[str]:
    """The codes that `per-file-ignores` silences in a file."""
    selectors = [
        selector
        for pattern, listed in settings.per_file_ignores[: gitignore.MOST]
        if gitignore.compiled(str(settings.root), [pattern]).verdict(file)
        for selector in listed
    ]
    return frozenset(e.code for e in packs.select(selectors).entries) if selectors else frozenset()
