"""One edit of a right program raises the rule that the edit breaks, and no other."""

from __future__ import annotations

from collections import Counter

import pytest
from edits import EDITS
from helpers import ROOT, findings, markers

from accumlint.registry import packs


@pytest.mark.parametrize(
    ("code", "fixture", "old", "new"), EDITS, ids=[f"{row[0]}-{row[1]}" for row in EDITS]
)
def test_one_edit_raises_its_rule(code: str, fixture: str, old: str, new: str) -> None:
    source = (ROOT / "fixtures" / fixture).read_text(encoding="utf-8")
    assert source.count(old) == 1
    assert not markers(source)
    # What rules that are not opt-in find there is the question of test_fixtures.py.
    if packs.rule(packs.find(code)).opt_in:
        assert findings(source, also=code) == set()
    assert {found for _, found in findings(source.replace(old, new), also=code)} == {code}


def test_every_rule_is_raised_by_an_edit() -> None:
    rules = {path.name[:6].upper() for path in (ROOT / "rules").glob("acc*.py")}
    edited = Counter(code for code, *_ in EDITS)
    assert set(edited) == rules
