"""What we offer for CI systems is well-formed, and the action does what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from helpers import LOOP, ROOT
from readers import complaints, sarif_run, yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CI = ROOT / "docs" / "ci"
# What check-jsonschema's own hooks ask for.
LOOSE = ("--regex-variant", "nonunicode", "--data-transform")
FILES = {
    ROOT / "action.yml": ("github-actions",),
    CI / "github-actions.yml": ("github-workflows",),
    CI / "github-code-scanning.yml": ("github-workflows",),
    CI / "reviewdog.yml": ("github-workflows",),
    CI / "gitlab-ci.yml": ("gitlab-ci", *LOOSE, "gitlab-ci"),
    CI / "azure-pipelines.yml": ("azure-pipelines", *LOOSE, "azure-pipelines"),
}
OTHERS = {CI / "Jenkinsfile", CI / "pre-commit-config.yaml"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_is_what_its_system_takes(file: Path) -> None:
    assert complaints(str(file), *FILES[file]) == ""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_broken_file_is_noticed(file: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"
    text = file.read_text(encoding="utf-8")
    broken.write_text(text.replace("steps:", "stops:").replace("script:", "skript: "))
    assert complaints(str(broken), *FILES[file])


def test_every_example_is_checked_and_named() -> None:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    held = set(CI.iterdir())
    assert held == {file for file in FILES if file.parent == CI} | OTHERS
    assert all(f"(ci/{file.name})" in page for file in held)


def test_the_page_lists_the_action_s_inputs() -> None:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    assert [
        name for name in yaml(ROOT / "action.yml")["inputs"] if f"| `{name}` |" not in page
    ] == []


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ({"PATHS": "."}, 1),
        ({"PATHS": "train.py clean.py", "OPTIONS": "--select ACC102 --exit-zero"}, 0),
        ({"PATHS": "clean.py"}, 0),
        ({"PATHS": "clean.py\ntrain.py\n"}, 1),
        ({"PATHS": "clean.py\n\n  train.py", "OPTIONS": "--select ACC102\n--exit-zero\n"}, 0),
        ({"PATHS": "train.py", "CHANGED_LINES": "false", "BASE": "absent"}, 1),
        ({"PATHS": "train.py", "CHANGED_LINES": "true", "BASE": "0" * 40}, 1),
        ({"PATHS": "train.py", "CHANGED_LINES": "true", "BASE": ""}, 1),
        ({"PATHS": "train.py", "CHANGED_LINES": "true", "BASE": "absent"}, 2),
        ({"PATHS": "$(touch harm)"}, 2),
        ({"PATHS": ". --isolated", "OPTIONS": ""}, 2),
        ({"PATHS": "*.py"}, 2),
        ({"PATHS": "clean.py", "OPTIONS": "$(touch harm) `touch harm` ; touch harm"}, 2),
        ({"PATHS": "train.py", "CHANGED_LINES": "true; touch harm"}, 1),
        ({"PATHS": "train.py", "CHANGED_LINES": "true", "BASE": "--output=harm"}, 2),
        ({"PATHS": "train.py", "CHANGED_LINES": "true", "BASE": "$(touch harm)"}, 2),
    ],
)
def test_the_action_checks(tmp_path: Path, inputs: dict[str, str], code: int) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    (tmp_path / "clean.py").write_text("")
    programs = tmp_path / "runner" / "accumlint" / "bin"
    programs.mkdir(parents=True)
    (programs / "accumlint").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m accumlint "$@"\n')
    (programs / "accumlint").chmod(0o755)
    (step,) = [s for s in yaml(ROOT / "action.yml")["runs"]["steps"] if s.get("id") == "check"]
    variables = {
        "RUNNER_TEMP": str(tmp_path / "runner"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "OPTIONS": "",
        "CHANGED_LINES": "",
        "BASE": "",
        "SARIF_FILE": "a log.sarif",
    }
    ran = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
        cwd=tmp_path,
        env={**os.environ, **variables, **inputs},
        capture_output=True,
        check=False,
    )
    assert (ran.returncode, (tmp_path / "output").read_text()) == (code, f"exit-code={code}\n")
    assert not (tmp_path / "harm").exists()
    if code == 2 and "BASE" in inputs:
        assert b"git" in ran.stderr
        return
    log = sarif_run((tmp_path / "a log.sarif").read_text())
    assert bool(log["results"]) == ("::" in ran.stdout.decode())


def test_the_action_pins_what_it_installs() -> None:
    text = (ROOT / ".github" / "action-requirements.txt").read_text(encoding="utf-8")
    pinned = re.findall(r"^([\w-]+)==[\w.]+(?: ;.*)? \\\n    --hash=sha256:", text, re.MULTILINE)
    assert len(pinned) == len(re.findall("^[^ #]", text, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needs = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    assert {re.split(r"[>=;]", need)[0] for need in needs} <= set(pinned)


def test_no_script_has_a_value_of_the_workflow_put_into_it() -> None:
    """Who names a branch or a file would write a part of the script; values come as variables."""
    scripts = [script for file in FILES for script in scripts_in(yaml(file))]
    assert len(scripts) > 6
    marks = ("${{", "$[", "$(Build", "$(System")
    assert [script for script in scripts if any(mark in script for mark in marks)] == []


def scripts_in(held: object) -> Iterator[str]:
    """The texts behind `run`, `script` and the like in what a YAML file holds."""
    match held:
        case dict():
            for key, value in cast("dict[str, object]", held).items():
                if key in ("run", "script", "before_script", "bash"):
                    lines = cast("list[str]", value) if isinstance(value, list) else [str(value)]
                    yield from map(str, lines)
                else:
                    yield from scripts_in(value)
        case list():
            for value in cast("list[object]", held):
                yield from scripts_in(value)
        case _:
            pass


def test_no_module_of_the_tree_is_imported_while_the_action_installs(tmp_path: Path) -> None:
    for name in ("venv", "pip", "logging", "runpy"):
        (tmp_path / f"{name}.py").write_text("open('harm', 'w').close()")
    programs = tmp_path / "runner" / "accumlint" / "bin"
    programs.mkdir(parents=True)
    # What it would do takes long, so it is only asked how it is done.
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@" --help\n')
    (programs / "python").chmod(0o755)
    step, _ = yaml(ROOT / "action.yml")["runs"]["steps"]
    variables = {
        "PYTHON": str(programs / "python"),
        "RUNNER_TEMP": str(tmp_path / "runner"),
        "GITHUB_ACTION_PATH": str(tmp_path / "action"),
    }
    ran = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
        cwd=tmp_path, env={**os.environ, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert not (tmp_path / "harm").exists()
    assert "ENV_DIR" in ran.stdout
    assert "pip install" in ran.stdout
