"""The rules find what the fixtures mark, and what their pages promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from accumlint.testing import assert_findings, assert_page

FIXTURES = sorted(Path(__file__).with_name("fixtures").glob("*.py"))


@pytest.mark.parametrize("file", FIXTURES, ids=[file.stem for file in FIXTURES])
def test_the_findings_are_the_markers(file: Path) -> None:
    assert_findings(file, "TEAM")


def test_the_page_tells_the_truth() -> None:
    assert_page("TEAM001")
