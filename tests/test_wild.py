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


@pytest.mark.parametrize("script", ["wild.py", "history.py"])
def test_the_table_is_made_from_the_data(script: str) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / script), "--check"]
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


FIXES: list[dict[str, Any]] = tomllib.loads(
    (ROOT / "docs" / "data" / "fixes.toml").read_text(encoding="utf-8")
)["fix"]


@pytest.mark.parametrize("fix", FIXES, ids=lambda f: f"{f['repository']}-{f['after'][:7]}")
def test_each_fix_names_two_commits_and_what_was_found(fix: dict[str, Any]) -> None:
    assert fix["before"] != fix["after"]
    assert all(re.fullmatch("[0-9a-f]{40}", fix[side]) for side in ("before", "after"))
    assert fix["places"]
    assert all(packs.knows(place["code"]) for place in fix["places"])
