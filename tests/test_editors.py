"""What the documentation tells editors to do works with what we print."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from conftest import Run
from helpers import FLAGGED, LOOP, ROOT

PAGE = (ROOT / "docs" / "editors.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)


def test_the_task_finds_the_problems(run: Run, tmp_path: Any) -> None:
    (task,) = json.loads(BLOCKS[-1])["tasks"]
    matcher: dict[str, Any] = task["problemMatcher"]
    pattern: dict[str, Any] = matcher["pattern"]
    (tmp_path / "train.py").write_text(LOOP)
    command, *arguments = task["command"].split()
    arguments.remove("--watch")
    lines = run(*arguments).out.splitlines()
    (found,) = filter(None, (re.match(pattern["regexp"], line) for line in lines))
    place = found[pattern["file"]], int(found[pattern["line"]]), found[pattern["code"]]
    assert (command, *place) == ("accumlint", "train.py", FLAGGED, "ACC102")
    source = (ROOT / "accumlint" / "cli" / "watch_mode.py").read_text(encoding="utf-8")
    for mark in ("beginsPattern", "endsPattern"):
        assert matcher["background"][mark].strip("^$") in source


def test_every_block_is_json() -> None:
    assert [type(json.loads(block)) for block in BLOCKS] == [dict, dict]


def test_the_extension_is_of_the_same_release_and_lets_no_repository_choose_a_command() -> None:
    manifest = json.loads((ROOT / "editors" / "vscode" / "package.json").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for key in ("name", "version", "license"):
        assert manifest[key] == project[key]
    urls: dict[str, str] = project.get("urls", {})
    repository: dict[str, str] = manifest.get("repository", {})
    assert manifest.get("homepage") == urls.get("Homepage")
    assert repository.get("url") == urls.get("Repository")
    restricted = {"accumlint.path", "accumlint.args"}
    settings: dict[str, Any] = manifest["contributes"]["configuration"]["properties"]
    trust = manifest["capabilities"]["untrustedWorkspaces"]
    assert (trust["supported"], set(trust["restrictedConfigurations"])) == ("limited", restricted)
    assert {settings[key]["scope"] for key in restricted} == {"machine-overridable"}
