"""What files for people and for installers say about the project is the same."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from helpers import ROOT
from readers import complaints, yaml

from accumlint import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*-alarm.yml"))


def test_the_versions_agree() -> None:
    assert PROJECT["version"] == __version__
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_citation_is_of_this_version() -> None:
    assert complaints(str(ROOT / "CITATION.cff"), "citation-file-format") == ""
    cited = yaml(ROOT / "CITATION.cff")
    assert (cited["title"], cited["version"]) == (PROJECT["name"], __version__)
    assert (cited["license"], cited["keywords"]) == (PROJECT["license"], PROJECT["keywords"])


def test_the_conda_recipe_installs_what_the_wheel_does() -> None:
    recipe = yaml(ROOT / "recipe" / "recipe.yaml")
    assert recipe["context"]["version"] == __version__
    # conda has one package for all versions of Python: it takes along what only some of them need.
    wheel = [re.sub(r"(>=.*?)(;.*)?$", r" \1", need) for need in PROJECT["dependencies"]]
    assert recipe["requirements"]["run"] == [f"python {PROJECT['requires-python']}", *wheel]
    scripts = [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_the_issue_forms_are_github_s(form: Any) -> None:
    assert complaints(str(form), "github-issue-forms") == ""
    text = form.read_text(encoding="utf-8")
    assert "accumlint doctor" in text
    assert "--report" in text


def test_there_is_a_form_for_each_kind_of_wrong_answer() -> None:
    assert [form.stem for form in FORMS] == ["false-alarm", "missed-alarm"]
    assert complaints(str(FORMS[0].with_name("config.yml")), "github-issue-config") == ""
