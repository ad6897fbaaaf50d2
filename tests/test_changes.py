"""Since a revision, only findings on what changed are reported."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from conftest import Run
from helpers import LOOP

STEP = "        optimizer.step()"
# Edits of a committed file, and whether its finding counts.
EDITS = {
    "nothing": (LOOP, False),
    "lines above": ("import torch\n" + LOOP, False),
    "lines below": (LOOP + "x = 1\n", False),
    "the flagged line": (LOOP.replace("# error: ACC102", "# a remark"), True),
    "an event of the window": (LOOP.replace("optimizer.step()", "optimizer.step()  # go"), True),
    "a line added in the window": (LOOP.replace(STEP, "        x = 1\n" + STEP), False),
    "a line replaced before it": (LOOP.replace("iter(loader)", "iter( loader)"), False),
    "line ends": (LOOP.replace("\n", "\r\n"), False),
}
NAMES = ["again.py", "größe.py", 'a "b"\\.py', "a b.py", "tab\t.py"]


def git(folder: Path, *arguments: str) -> None:
    names = {
        f"GIT_{who}_{what}": "x@y" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(
        ["git", *arguments], cwd=folder, check=True, capture_output=True, env=clean | names
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-b", "main")
    (tmp_path / "train.py").write_text(LOOP)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    return tmp_path


@pytest.mark.parametrize("edit", EDITS)
def test_which_edits_make_a_finding_count(run: Run, repository: Path, edit: str) -> None:
    source, counts = EDITS[edit]
    (repository / "train.py").write_bytes(source.encode())
    assert run("check").code == 1
    assert run("check", "--diff-base", "HEAD").code == int(counts)


def test_what_was_taken_away_counts_within_the_window(run: Run, repository: Path) -> None:
    cleared = LOOP.replace(
        "            loss.backward()",
        "            loss = loss / accumulation_steps\n            loss.backward()",
    )
    (repository / "train.py").write_text(cleared.replace("# error: ACC102", ""))
    git(repository, "commit", "-am", "divided")
    (repository / "train.py").write_text(LOOP.replace("# error: ACC102", ""))
    assert run("check", "--diff-base", "HEAD").code == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_file_may_be_called_anything(run: Run, repository: Path, name: str) -> None:
    (repository / name).write_text(LOOP)
    assert run("check", name, "--diff-base", "HEAD").code == 1
    git(repository, "add", ".")
    git(repository, "commit", "-m", "second")
    assert run("check", name, "--diff-base", "HEAD").code == 0
    (repository / name).write_text(LOOP.replace("# error", "# an error"))
    assert run("check", name, "--diff-base", "HEAD").code == 1


def test_the_revision_is_compared_where_the_branch_left_it(run: Run, repository: Path) -> None:
    git(repository, "checkout", "-b", "topic")
    git(repository, "checkout", "main")
    (repository / "train.py").write_text("x = 1\n")
    git(repository, "commit", "-am", "on main")
    git(repository, "checkout", "topic")
    assert run("check", "--diff-base", "main").code == 0


def test_a_renamed_file_is_not_new(run: Run, repository: Path) -> None:
    git(repository, "mv", "train.py", "fit.py")
    assert run("check", "--diff-base", "HEAD").code == 0


def test_code_that_looks_like_a_patch_is_code(run: Run, repository: Path) -> None:
    (repository / "train.py").write_text("'''\n++ b/other.py\n@@ -1 +1 @@\n'''\n" + LOOP)
    assert run("check", "--diff-base", "HEAD").code == 0


@pytest.mark.parametrize("revision", ["absent", "--output=x", "HEAD:train.py", "HEAD^9", " "])
def test_an_unknown_revision_is_told(run: Run, repository: Path, revision: str) -> None:
    ran = run("check", f"--diff-base={revision}")
    assert (ran.code, ran.err) == (2, f"accumlint: git knows no revision {revision!r}\n")


@pytest.mark.parametrize("depth", [1, 2])
def test_a_shallow_checkout_is_told_what_to_do(
    run: Run,
    repository: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    depth: int,
) -> None:
    """The revision lies before what was fetched, or on a branch whose beginning was not."""
    for _ in range(3):
        git(repository, "commit", "--allow-empty", "-qm", "more")
    git(repository, "branch", "base", "HEAD~3")
    copy = tmp_path_factory.mktemp("shallow")
    asked = (f"--depth={depth}", "--no-single-branch", f"file://{repository}")
    git(copy, "clone", "-q", *asked, ".")
    monkeypatch.chdir(copy)
    for revision in ("HEAD~3", "origin/base"):
        ran = run("check", "--diff-base", revision)
        assert ran.code == 2
        (line,) = ran.err.splitlines()
        assert revision in line
        assert "git fetch --unshallow" in line
        assert "fetch-depth: 0" in line


def test_without_a_repository_or_git(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    ran = run("check", "--diff-base", "HEAD")
    assert (ran.code, ran.err.startswith("accumlint: not a git repository")) == (2, True)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    ran = run("check", "..", "--diff-base", "HEAD")
    assert (ran.code, ran.err.startswith("accumlint: git cannot be run: ")) == (2, True)
