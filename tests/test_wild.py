"""The page of defects found in public code says what its data say, and each has a rule and a measured figure."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from helpers import ROOT

from accumlint.registry import packs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DATA = ROOT / "docs" / "data" / "wild.toml"
FOUND: list[dict[str, Any]] = tomllib.loads(DATA.read_text(encoding="utf-8"))["defect"]


def test_the_table_is_made_from_the_data() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "wild.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0


@pytest.mark.parametrize("found", FOUND, ids=lambda f: f"{f['repository']}-{f['code']}")
def test_each_defect_changes_updates_and_is_measured(found: dict[str, Any]) -> None:
    assert packs.knows(found["code"])
    # What a log or a total shows is no defect of the gradient.
    assert found["code"] < "ACC7"
    assert re.search(r"\d", found["measured"])
    assert re.fullmatch("[0-9a-f]{40}", found["commit"])
    assert re.search(
        r"in the newest commit, of \d{4}-\d\d-\d\d$|fixed (since|in \[#\d)", found["state"]
    )
