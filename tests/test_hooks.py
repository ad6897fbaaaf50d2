"""The hooks run under pre-commit and under prek, in an environment of their own and without torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import FLAGGED, LOOP, ROOT
from readers import yaml

HOOKS = ROOT / ".pre-commit-hooks.yaml"
EXAMPLE = ROOT / "docs" / "ci" / "pre-commit-config.yaml"
BIN = Path(sys.executable).parent


def ran(folder: Path, *command: str) -> subprocess.CompletedProcess[bytes]:
    home = folder.parent / "home"
    names = {"PRE_COMMIT_HOME": str(home), "PREK_HOME": str(home), "NO_COLOR": "1"}
    identity = {
        f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **names, **identity},
        capture_output=True,
        check=False,
    )


def repository(folder: Path) -> str:
    """Makes a folder a repository with all that it holds, and gives the commit."""
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        assert ran(folder, "git", *command).returncode == 0
    return ran(folder, "git", "rev-parse", "HEAD").stdout.decode().strip()


def published(folder: Path) -> str:
    """Makes a folder a repository of what our hooks need, and gives the commit."""
    folder.mkdir()
    for name in ("accumlint", "rules", "pyproject.toml", "README.md", "LICENSE", HOOKS.name):
        assert ran(folder.parent, "cp", "-r", str(ROOT / name), str(folder)).returncode == 0
    return repository(folder)


@pytest.mark.parametrize(("kind", "file"), [("manifest", HOOKS), ("config", EXAMPLE)])
def test_pre_commit_takes_our_files(kind: str, file: Path, tmp_path: Path) -> None:
    assert ran(tmp_path, str(BIN / "pre-commit"), f"validate-{kind}", str(file)).returncode == 0


def test_the_example_names_hooks_that_exist() -> None:
    named = [hook["id"] for repo in yaml(EXAMPLE)["repos"] for hook in repo["hooks"]]
    assert set(named) <= {hook["id"] for hook in yaml(HOOKS)}


@pytest.mark.network
@pytest.mark.parametrize("tool", ["pre-commit", "prek"])
def test_the_hook_runs_in_a_repository(tool: str, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    bad = ROOT / "fixtures" / "acc205"
    before = re.sub("  # error: .*", "", (bad / "bad_outside_boundary.py").read_text())
    after = (bad / "bad_outside_boundary.fixed.py").read_text()
    theirs.mkdir()
    commit = published(ours)
    hooks = ", ".join(f"{{id: {hook['id']}}}" for hook in yaml(HOOKS))
    config = f"repos: [{{repo: {ours}, rev: {commit}, hooks: [{hooks}]}}]\n"
    (theirs / ".pre-commit-config.yaml").write_text(config)
    (theirs / "model.py").write_text("import torch\n")
    (theirs / "notes.txt").write_text(LOOP)
    repository(theirs)
    hook = [str(BIN / tool), "run", "accumlint", "--all-files"]
    clean = ran(theirs, *hook)
    assert clean.returncode == 0, clean
    (theirs / "train.py").write_text(LOOP)
    assert ran(theirs, "git", "add", "train.py").returncode == 0
    found = ran(theirs, *hook)
    assert found.returncode == 1
    assert f"train.py:{FLAGGED}:13: ACC102".encode() in found.stdout
    assert "notes.txt" not in found.stdout.decode()
    (theirs / "fixable.py").write_text(before)
    assert ran(theirs, "git", "add", "fixable.py").returncode == 0
    ran(theirs, str(BIN / tool), "run", "accumlint-fix", "--files", "fixable.py")
    assert (theirs / "fixable.py").read_text() == after
    installed = {path.name for path in (tmp_path / "home").rglob("site-packages/*")}
    assert "libcst" in installed
    assert "torch" not in installed


@pytest.mark.network
def test_the_hooks_are_tried_as_pre_commit_tries_a_repository(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    theirs.mkdir()
    published(ours)
    (theirs / "model.py").write_text("import torch\n")
    (theirs / "train.py").write_text(LOOP)
    repository(theirs)
    hook = [str(BIN / "pre-commit"), "try-repo", str(ours), "accumlint", "--files"]
    assert ran(theirs, *hook, "model.py").returncode == 0
    found = ran(theirs, *hook, "train.py")
    assert found.returncode == 1
    assert f"train.py:{FLAGGED}:13: ACC102".encode() in found.stdout
