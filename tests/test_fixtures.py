"""Every fixture is checked under all rules (of the opt-in ones, its own), and its markers are the whole truth."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import ROOT, findings, markers

FIXTURES = ROOT / "fixtures"
FILES = sorted(FIXTURES.rglob("*.py"))


def name_of(file: Path) -> str:
    return str(file.relative_to(FIXTURES))


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_the_findings_are_the_markers(file: Path) -> None:
    source = file.read_text(encoding="utf-8")
    own = file.parent.name if file.parent.name.startswith("acc") else ""
    assert findings(source, name_of(file), own) == markers(source)


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_a_fixture_is_called_what_it_is(file: Path) -> None:
    marked = markers(file.read_text(encoding="utf-8"))
    if file.parent.name == "clean" or file.name.startswith("good_"):
        assert marked == set()
    elif file.name.startswith("bad_") and not file.name.endswith(".fixed.py"):
        assert file.parent.name.upper() in {code for _, code in marked}
    else:
        assert file.parent.name == "sample" or file.name.endswith(".fixed.py")


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_a_fixture_says_what_is_particular_about_it(file: Path) -> None:
    assert file.read_text(encoding="utf-8").startswith('"""')
