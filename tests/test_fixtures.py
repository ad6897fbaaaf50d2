"""Every fixture is checked under all rules (of the opt-in ones, its own), and its markers are the whole truth.

A fixture is a file, or a folder of files that import each other; each of these is checked by itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import ROOT, findings, markers

FIXTURES = ROOT / "fixtures"
# What `accumlint run` watches has tests of its own.
FILES = sorted(file for file in FIXTURES.rglob("*.py") if FIXTURES / "run" not in file.parents)
# What is found in the others, test_fixes.py holds, which mends them.
MENDED = {*FIXTURES.glob("acc*/bad_*.py")}
MARKED = [file for file in FILES if file not in MENDED and not file.name.endswith(".fixed.py")]


def name_of(file: Path) -> str:
    return str(file.relative_to(FIXTURES))


def room_of(file: Path) -> str:
    """The folder that says what a fixture is about: a rule's code, "clean" or "sample"."""
    return file.relative_to(FIXTURES).parts[0]


def fixture_of(file: Path) -> Path:
    """The fixture that a file belongs to: itself, or its folder."""
    return FIXTURES.joinpath(*file.relative_to(FIXTURES).parts[:2])


@pytest.mark.parametrize("file", MARKED, ids=name_of)
def test_the_findings_are_the_markers(file: Path) -> None:
    source = file.read_text(encoding="utf-8")
    own = room_of(file) if room_of(file).startswith("acc") else ""
    name = str(file) if fixture_of(file).is_dir() else name_of(file)
    assert findings(source, name, own) == markers(source)


def misnamed(fixture: Path) -> bool:
    """Whether a fixture has markers that its name or its folder does not promise, or lacks some."""
    files = sorted(fixture.rglob("*.py")) if fixture.is_dir() else [fixture]
    marked = {mark for file in files for mark in markers(file.read_text(encoding="utf-8"))}
    if room_of(fixture) == "clean" or fixture.name.startswith("good_"):
        return marked != set()
    if fixture.name.startswith("bad_") and not fixture.name.endswith(".fixed.py"):
        return room_of(fixture).upper() not in {code for _, code in marked}
    others = ("sample", "hostile", "setup", "script")
    return room_of(fixture) not in others and not fixture.name.endswith(".fixed.py")


def test_a_fixture_is_called_what_it_is() -> None:
    assert [name_of(f) for f in sorted({fixture_of(file) for file in FILES}) if misnamed(f)] == []


def test_a_fixture_says_what_is_particular_about_it() -> None:
    opened = {name_of(file): file.read_text(encoding="utf-8")[:3] for file in FILES}
    assert {name for name, start in opened.items() if start != '"""'} == set()
