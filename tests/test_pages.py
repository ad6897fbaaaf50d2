"""A rule's page tells the truth: its Bad blocks raise exactly their markers, its Good blocks nothing."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from helpers import ROOT, findings, markers

from accumlint import packs
from accumlint.packs import Entry
from accumlint.rule import Severity

# Code, name and severity are a promise: settings, ignores and reports of users hold them.
CATALOGUE = """
    ACC101 error   mean-loss-not-normalised-by-tokens
    ACC102 warning loss-not-divided
    ACC103 warning double-division
    ACC104 warning divisor-not-window-size
    ACC105 warning sum-loss-not-normalised
    ACC201 error   clip-before-unscale
    ACC202 error   clip-every-microbatch
    ACC203 error   unscale-every-microbatch
    ACC204 warning scaler-update-missing
    ACC205 error   scaler-update-misplaced
    ACC206 error   scaled-backward-plain-step
    ACC207 error   nonfinite-guard-skips-scaler-update
    ACC301 info    no-sync-missing
    ACC302 error   no-sync-wrong-step
    ACC303 info    no-sync-forward-outside
    ACC304 error   sync-flag-after-forward
    ACC305 error   ddp-wrapper-bypassed
    ACC401 error   zero-grad-missing
    ACC402 error   zero-grad-inside-window
    ACC403 error   zero-grad-before-step
    ACC404 info    running-total-not-reset
    ACC405 info    running-total-attached
    ACC406 error   token-count-not-reset
    ACC408 warning skipped-microbatch-breaks-window
    ACC501 warning trailing-window-dropped
    ACC502 info    partial-window-divided-by-full-steps
    ACC503 error   window-off-by-one
    ACC504 error   step-every-microbatch
    ACC506 warning scheduler-per-microbatch
    ACC601 error   hf-compute-loss-ignores-num-items
    ACC602 error   accelerate-backward-bypassed
"""
ORDER = ("Bad:", "Good:", "When the fix is not offered:", "Measured", "See:")

ENTRIES = packs.catalogue()
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def code_of(entry: Entry) -> str:
    return entry.code


def page_of(entry: Entry) -> str:
    return packs.rule(entry).page()


def blocks(entry: Entry, heading: str) -> list[str]:
    """The Python blocks between a heading and the next."""
    page = page_of(entry)
    start = page.index(f"\n{heading}\n")
    ends = [page.find(f"\n{other}", start + 1) for other in ORDER]
    end = min((end for end in ends if end > start), default=len(page))
    return _BLOCK.findall(page[start:end])


def test_the_catalogue_is_the_promised_one() -> None:
    promised = [tuple(line.split()) for line in CATALOGUE.strip().splitlines()]
    rules = [packs.rule(entry) for entry in ENTRIES]
    assert [(rule.code, rule.severity.value, rule.name) for rule in rules] == promised
    assert len({rule.name for rule in rules}) == len(rules)
    assert {rule.severity for rule in rules} <= set(Severity)


@pytest.mark.parametrize("entry", ENTRIES, ids=code_of)
def test_the_bad_blocks_raise_their_markers(entry: Entry) -> None:
    bad = blocks(entry, "Bad:")
    assert bad
    for block in bad:
        assert entry.code in {code for _, code in markers(block)}
        assert findings(block) == markers(block)


@pytest.mark.parametrize("entry", ENTRIES, ids=code_of)
def test_the_good_blocks_are_silent(entry: Entry) -> None:
    good = blocks(entry, "Good:")
    assert good
    for block in good:
        assert findings(block) == set()


@pytest.mark.parametrize("entry", ENTRIES, ids=code_of)
def test_the_page_has_its_order(entry: Entry) -> None:
    page = page_of(entry)
    sentence, effect, *_ = page.split("\n\n")
    assert sentence.endswith(".")
    assert not sentence.startswith(("Bad", "#"))
    assert not effect.startswith(ORDER)
    places = [page.index(f"\n{heading}") for heading in ORDER if f"\n{heading}" in page]
    assert {"Bad:", "Good:"} <= {heading for heading in ORDER if f"\n{heading}\n" in page}
    assert all(before < after for before, after in pairwise(places))


@pytest.mark.parametrize("entry", ENTRIES, ids=code_of)
def test_the_rule_has_fixtures(entry: Entry) -> None:
    folder = ROOT / "fixtures" / entry.code.lower()
    assert list(folder.glob("bad_*.py"))
    assert list(folder.glob("good_*.py"))
