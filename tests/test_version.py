"""The version is told once to users and once to installers, and both are the same."""

from __future__ import annotations

import re

from helpers import ROOT

from accumlint import __version__


def test_the_versions_agree() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.findall(r'^version = "(.*)"$', project, re.MULTILINE) == [__version__]
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
