"""One edit of a right program raises the rule that the edit breaks, and no other."""

from __future__ import annotations

from collections import Counter

import pytest
from edits import EDITS
from helpers import ROOT, findings, markers

from accumlint.registry import packs

# The first edit of each rule, and all where CI asks for them.
CASES = [
    pytest.param(*row, id=f"{row[0]}-{row[1]}", marks=pytest.mark.whole if row[0] == before else ())
    for before, row in zip(("", *(row[0] for row in EDITS)), EDITS, strict=False)
]


@pytest.mark.parametrize(("code", "fixture", "old", "new"), CASES)
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
