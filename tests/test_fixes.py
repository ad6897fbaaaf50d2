"""A defect is found where its marker stands, and a fix turns it into what its page promises, and nothing else.

`python tests/test_fixes.py` writes what the fixes make of the fixtures that have a `.fixed.py`: read it before you
keep it.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from helpers import ROOT, alone, blocks, markers, unmarked

from accumlint.diagnostics import fixing
from accumlint.diagnostics.fixing import Fixed
from accumlint.registry import packs
from accumlint.registry.packs import Entry
from accumlint.rule import Applicability

FIXTURES = ROOT / "fixtures"
BAD = sorted(f for f in FIXTURES.glob("acc*/bad_*.py") if not f.name.endswith(".fixed.py"))
# One of each rule that fixes.
FIXED = {f.parent: f for f in sorted(FIXTURES.glob("acc*/bad_*.fixed.py"))}.values()
ENTRIES = packs.catalogue()
FIXING = (Applicability.SAFE, Applicability.UNSAFE)


def fix(source: str, code: str, name: str = "train.py") -> Fixed:
    """What fixing the source makes of it; unsafely where the rule of this code has no safe fix."""
    target = alone(name, extend_select=(code,))
    unsafe = packs.rule(packs.find(code)).fix is Applicability.UNSAFE
    return fixing.fix(source.encode(), target, unsafe=unsafe)


def code_of(file: Path) -> str:
    return file.parent.name.upper()


def fixed_file(file: Path) -> Path:
    return file.with_name(f"{file.stem}.fixed.py")


def name_of(file: Path) -> str:
    return f"{file.parent.name}/{file.stem}"


@pytest.mark.parametrize("file", BAD, ids=name_of)
def test_the_findings_are_the_markers_and_are_fixed_as_the_neighbour_says(file: Path) -> None:
    marked, code = file.read_text(encoding="utf-8"), code_of(file)
    result = fix(unmarked(marked), code, f"{name_of(file)}.py")
    assert {(r.mark.place.line, r.code) for r in result.first.reports} == markers(marked)
    assert result.first.problems == ()
    mended = {report.code for report in result.checked.mended}
    if fixed_file(file).exists():
        after = result.after.decode()
        assert after == fixed_file(file).read_text(encoding="utf-8")
        assert code in mended
        ast.parse(after)
        shown = {c for r in result.checked.mended if r.fix for c in r.fix.shows}
        assert {report.code for report in result.checked.reports} <= shown
    else:
        assert code not in mended


@pytest.mark.parametrize("file", FIXED, ids=name_of)
def test_what_is_fixed_stays_as_it_is(file: Path) -> None:
    assert not fix(file.read_text(encoding="utf-8"), code_of(file)).is_changed


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.code)
def test_the_good_block_is_what_the_fix_makes_of_the_bad_one(entry: Entry) -> None:
    rule = packs.rule(entry)
    bad, good = (blocks(rule.page(), heading)[0] for heading in ("Bad:", "Good:"))
    result = fix(unmarked(bad), entry.code)
    if result.is_changed:
        assert result.after.decode() == good
    else:
        assert rule.fix not in FIXING or "\nWhen the fix is not offered:" in rule.page()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.code)
def test_a_rule_that_fixes_shows_it(entry: Entry) -> None:
    files = list((FIXTURES / entry.code.lower()).glob("bad_*.fixed.py"))
    assert bool(files) == (packs.rule(entry).fix in FIXING)
    assert all(file.with_name(file.name.replace(".fixed", "")).exists() for file in files)


def rewrite() -> None:
    for file in BAD:
        if fixed_file(file).exists():
            result = fix(unmarked(file.read_text(encoding="utf-8")), code_of(file))
            fixed_file(file).write_bytes(result.after)


if __name__ == "__main__":
    rewrite()
