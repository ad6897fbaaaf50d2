"""The sample pack of rules under docs/ works as it says: installed, and as a folder that the settings name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

PACK = ROOT / "docs" / "examples" / "sample-pack"
RULES = PACK / "team_rules"
DEFECT = PACK / "tests" / "fixtures" / "bad_accumulated.py"
FOUND = "bad_accumulated.py:12:9: TEAM001 [warning] `optimizer` steps without a clip"


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that pip has installed the pack into, offline, from a copy that it may litter."""
    target = tmp_path_factory.mktemp("installed")
    copy = tmp_path_factory.mktemp("source") / "sample-pack"
    shutil.copytree(PACK, copy)
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target"]
    command = [sys.executable, "-m", "pip", "install", *options, str(target), str(copy)]
    ran = subprocess.run(command, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    return target


def run(*arguments: str, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a module of Python's in a folder, with what is installed in `path` besides."""
    environment = {**os.environ, "PYTHONPATH": str(path or ""), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_an_installed_pack_is_a_part_of_the_catalogue(installed: Path, tmp_path: Path) -> None:
    assert "TEAM001" in run("accumlint", "rules", cwd=tmp_path, path=installed).stdout
    page = run("accumlint", "rule", "clip-missing", cwd=tmp_path, path=installed).stdout
    assert "one bad window is enough" in " ".join(page.split())


def test_an_installed_pack_finds_what_it_is_about(installed: Path, tmp_path: Path) -> None:
    shutil.copy(DEFECT, tmp_path)
    ran = run("accumlint", "check", "--select", "TEAM", cwd=tmp_path, path=installed)
    assert (ran.returncode, ran.stdout.splitlines()[:1]) == (1, [FOUND]), ran.stderr


def test_the_tests_of_the_pack_pass(installed: Path) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(PACK), "tests"]
    ran = run("pytest", "-c", os.devnull, *options, cwd=PACK, path=installed)
    assert ran.returncode == 0, ran.stdout
    assert "4 passed" in ran.stdout


def test_a_folder_in_the_settings_needs_no_installation(tmp_path: Path) -> None:
    shutil.copy(DEFECT, tmp_path)
    shutil.copytree(RULES, tmp_path / "tools" / "rules")
    (tmp_path / "accumlint.toml").write_text('rule-folders = ["tools/rules"]\nselect = ["TEAM"]\n')
    named = ("--config", "accumlint.toml")
    ran = run("accumlint", "check", *named, cwd=tmp_path)
    assert (ran.returncode, ran.stdout.splitlines()[:1]) == (1, [FOUND]), ran.stderr
    assert "TEAM001" in run("accumlint", "rules", *named, cwd=tmp_path).stdout


def test_a_folder_of_rules_may_bring_what_was_measured(tmp_path: Path) -> None:
    shutil.copy(DEFECT, tmp_path)
    shutil.copytree(RULES, tmp_path / "rules")
    named = ("--config", 'rule-folders = ["rules"]')
    ran = run("accumlint", "rule", *named, "TEAM001", cwd=tmp_path)
    assert (ran.returncode, "findings right" in ran.stdout) == (0, False), ran.stderr
    figures = {"TEAM001": {"right": 9, "wrong": 0, "missed": 1}}
    (tmp_path / "rules" / "accuracy.json").write_text(json.dumps(figures))
    ran = run("accumlint", "rule", *named, "TEAM001", cwd=tmp_path)
    assert "9 of 9 findings right, 1 of 10 defects missed" in ran.stdout, ran.stderr
    ran = run("accumlint", "check", *named, "--output-format", "sarif", cwd=tmp_path)
    (about,) = json.loads(ran.stdout)["runs"][0]["tool"]["driver"]["rules"]
    assert (about["id"], about["properties"]["precision"]) == ("TEAM001", "very-high")


def test_the_settings_of_what_is_checked_bring_no_rules(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    shutil.copy(DEFECT, theirs)
    (theirs / "rules").mkdir()
    (theirs / "rules" / "evil1_rule.py").write_text("open('was_here', 'w')\n")
    (theirs / "accumlint.toml").write_text('rule-folders = ["rules"]\n')
    ran = run("accumlint", "check", "theirs", cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert not (tmp_path / "was_here").exists()


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "accumlint.toml").write_text('rule-folders = ["tools/rules"]\n')
    ran = run("accumlint", "check", "--config", "accumlint.toml", cwd=tmp_path)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1)
    assert "there is no such folder of rules" in ran.stderr
