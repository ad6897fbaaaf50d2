"""A rule's page tells the truth: its Bad blocks raise exactly their markers, its Good blocks nothing."""

from __future__ import annotations

from itertools import pairwise

import pytest
from helpers import ORDER, ROOT, blocks, findings, markers

from accumlint.registry import packs
from accumlint.registry.packs import Entry

ENTRIES = packs.catalogue()


def code_of(entry: Entry) -> str:
    return entry.code


def page_of(entry: Entry) -> str:
    return packs.rule(entry).page()


def test_every_file_of_the_rules_is_a_rule_or_a_helper() -> None:
    files = {file.stem for file in (ROOT / "rules").glob("*.py") if file.name[0] != "_"}
    assert files == {entry.module.rpartition(".")[2] for entry in ENTRIES}


def test_every_folder_of_fixtures_belongs_to_a_rule() -> None:
    folders = {path.name.upper() for path in (ROOT / "fixtures").glob("acc*")}
    assert folders == {entry.code for entry in ENTRIES}


def test_no_two_rules_share_a_name() -> None:
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)


@pytest.mark.parametrize("entry", ENTRIES, ids=code_of)
def test_the_file_is_called_what_the_rule_is(entry: Entry) -> None:
    rule = packs.rule(entry)
    assert entry.module.endswith(f".{rule.code}_{rule.name}".lower().replace("-", "_"))


@pytest.mark.parametrize("entry", ENTRIES, ids=code_of)
def test_the_bad_blocks_raise_their_markers(entry: Entry) -> None:
    bad = blocks(page_of(entry), "Bad:")
    assert bad
    for block in bad:
        assert entry.code in {code for _, code in markers(block)}
        assert findings(block, also=entry.code) == markers(block)


@pytest.mark.parametrize("entry", ENTRIES, ids=code_of)
def test_the_good_blocks_are_silent(entry: Entry) -> None:
    good = blocks(page_of(entry), "Good:")
    assert good
    for block in good:
        assert findings(block, also=entry.code) == set()


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
