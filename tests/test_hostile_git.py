"""`--diff-base` executes nothing that a repository brings, and nothing that it brings hides a finding."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import Run
from helpers import LOOP
from test_changes import git

from accumlint.files.git import Git, GitError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the commands are a Unix shell's")

CHANGED = LOOP.replace("# error: ACC102", "# a remark")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose finding stands on a line that changed since HEAD, in the folder `code`."""
    top = tmp_path / "top"
    (top / "code").mkdir(parents=True)
    (top / "code" / "train.py").write_text(LOOP)
    (top / "code" / "still.py").write_text(LOOP)
    git(tmp_path, "init", "-b", "main", "top")
    git(top, "add", ".")
    git(top, "commit", "-m", "first")
    (top / "code" / "train.py").write_text(CHANGED)
    return top


@pytest.fixture
def evil(tmp_path: Path) -> str:
    """A command that leaves a trace."""
    script = tmp_path / "evil.sh"
    script.write_text(f"#!/bin/sh\ntouch '{tmp_path}/was_here'\ncat\n")
    script.chmod(0o755)
    return str(script)


def bare(folder: Path, evil: str, *settings: str) -> None:
    """Makes a folder one that git takes for a repository, file by file."""
    for name in ("objects", "refs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "HEAD").write_text("ref: refs/heads/main\n")
    rows = ("bare = false", f"worktree = {folder}", f"fsmonitor = {evil}", *settings)
    (folder / "config").write_text("[core]\n" + "".join(f"\t{row}\n" for row in rows))


def attributes(top: Path, line: str) -> None:
    (top / ".gitattributes").write_text(f"*.py {line}\n")


def a_bare_repository_inside(top: Path, evil: str) -> None:
    bare(top / "code", evil)


def a_git_file_that_points_inside(top: Path, evil: str) -> None:
    (top / ".git").rename(top / "objects_of_git")
    (top / ".git").write_text("gitdir: objects_of_git\n")
    git(top, "config", "core.fsmonitor", evil)


def a_monitor(top: Path, evil: str) -> None:
    git(top, "config", "core.fsmonitor", evil)


def hooks(top: Path, evil: str) -> None:
    git(top, "config", "core.hooksPath", str(top / "hooks"))
    (top / "hooks").mkdir()
    for name in ("post-index-change", "reference-transaction", "post-checkout", "pre-auto-gc"):
        (top / "hooks" / name).symlink_to(evil)
        (top / ".git" / "hooks").mkdir(exist_ok=True)
        (top / ".git" / "hooks" / name).symlink_to(evil)


def an_external_diff(top: Path, evil: str) -> None:
    git(top, "config", "diff.external", evil)
    git(top, "config", "diff.evil.command", evil)
    attributes(top, "diff=evil")


def a_text_conversion(top: Path, evil: str) -> None:
    git(top, "config", "diff.evil.textconv", evil)
    git(top, "config", "diff.evil.cachetextconv", "true")
    attributes(top, "diff=evil")


def a_filter(top: Path, evil: str) -> None:
    for name in ("clean", "smudge", "process"):
        git(top, "config", f"filter.evil.{name}", evil)
    git(top, "config", "filter.evil.required", "true")
    attributes(top, "filter=evil")


def a_pager(top: Path, evil: str) -> None:
    for name in ("core.pager", "pager.diff", "core.editor", "core.askPass", "gpg.program"):
        git(top, "config", name, evil)


def a_remote_to_fetch_from(top: Path, evil: str) -> None:
    """A clone that lacks objects, which git would fetch when they are asked for."""
    git(top, "config", "extensions.partialClone", "origin")
    git(top, "config", "remote.origin.promisor", "true")
    git(top, "config", "remote.origin.url", f"ext::{evil}")
    git(top, "config", "protocol.ext.allow", "always")
    git(top, "config", "core.sshCommand", evil)
    git(top, "config", "credential.helper", f"!{evil}")


def a_submodule(top: Path, evil: str) -> None:
    (top / "module").mkdir()
    git(top, "init", "module")
    git(top / "module", "commit", "--allow-empty", "-m", "first")
    git(top, "add", "module")
    git(top / "module", "config", "core.fsmonitor", evil)
    (top / "module" / "train.py").write_text("x = 1\n")


def other_objects(top: Path, evil: str) -> None:
    bare(top / "more", evil)
    (top / ".git" / "objects" / "info").mkdir(exist_ok=True)
    (top / ".git" / "objects" / "info" / "alternates").write_text(f"{top}/more/objects\n")
    git(top, "config", "core.alternateRefsCommand", evil)


def another_working_tree(top: Path, evil: str) -> None:
    bare(top / "more", evil)
    git(top, "config", "core.worktree", str(top / "more"))


def a_setting_included(top: Path, evil: str) -> None:
    (top / "settings").write_text(f"[core]\n\tfsmonitor = {evil}\n")
    git(top, "config", "include.path", str(top / "settings"))


def a_setting_included_under_a_condition(top: Path, evil: str) -> None:
    (top / "settings").write_text(f"[core]\n\tfsmonitor = {evil}\n[diff]\n\texternal = {evil}\n")
    git(top, "config", "includeIf.gitdir:/.path", str(top / "settings"))


def settings_of_a_worktree(top: Path, evil: str) -> None:
    git(top, "config", "extensions.worktreeConfig", "true")
    (top / ".git" / "config.worktree").write_text(f"[core]\n\tfsmonitor = {evil}\n")


def a_common_folder_inside(top: Path, evil: str) -> None:
    shutil.copytree(top / ".git", top / "common")
    git(top, "config", "-f", "common/config", "core.fsmonitor", evil)
    (top / ".git" / "commondir").write_text("../common\n")


def other_commands(top: Path, evil: str) -> None:
    for name in ("diff", "cat-file", "ls-tree", "rev-parse", "merge-base"):
        git(top, "config", f"alias.{name}", f"!{evil}")
    for name in ("eventTarget", "normalTarget", "perfTarget"):
        git(top, "config", f"trace2.{name}", str(top.parent / "was_here"))
    git(top, "config", "core.gitProxy", evil)
    git(top, "config", "uploadpack.packObjectsHook", evil)


def grafts(top: Path, evil: str) -> None:
    (top / ".git" / "info").mkdir(exist_ok=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=top, capture_output=True, check=True)
    (top / ".git" / "info" / "grafts").write_bytes(head.stdout)
    (top / ".git" / "shallow").write_bytes(head.stdout)


TRAPS: dict[str, Callable[[Path, str], None]] = {
    trap.__name__.replace("_", " "): trap
    for trap in (
        a_bare_repository_inside,
        a_git_file_that_points_inside,
        a_monitor,
        hooks,
        an_external_diff,
        a_text_conversion,
        a_filter,
        a_pager,
        a_remote_to_fetch_from,
        a_submodule,
        other_objects,
        another_working_tree,
        a_setting_included,
        a_setting_included_under_a_condition,
        settings_of_a_worktree,
        a_common_folder_inside,
        other_commands,
        grafts,
    )
}


@pytest.mark.parametrize("inside", [False, True], ids=["at the top", "in the folder"])
@pytest.mark.parametrize("trap", TRAPS)
def test_no_command_of_a_repository_is_executed(
    run: Run, tmp_path: Path, repository: Path, evil: str, monkeypatch: pytest.MonkeyPatch,
    trap: str, inside: bool,
) -> None:  # fmt: skip
    TRAPS[trap](repository, evil)
    monkeypatch.chdir(repository / "code" if inside else repository)
    ran = run("check", "--diff-base", "HEAD", "train.py" if inside else "code/train.py")
    assert not (tmp_path / "was_here").exists()
    assert (ran.code, ran.err) == (1, "")


# Commands that would execute what a trap names; accumlint asks for none of them.
OBEYING: dict[str, tuple[str, ...]] = {
    "a monitor": ("status",),
    "hooks": ("checkout", "--quiet", "--force", "HEAD"),
    "an external diff": ("diff", "HEAD"),
    "a remote to fetch from": ("fetch", "origin"),
}


@pytest.mark.parametrize("trap", OBEYING)
def test_settings_overrule_those_of_a_repository_whatever_is_asked(
    tmp_path: Path, repository: Path, evil: str, trap: str
) -> None:
    TRAPS[trap](repository, evil)
    (repository / ".gitattributes").unlink(missing_ok=True)
    with suppress(GitError):
        Git(str(repository)).ask(*OBEYING[trap])
    assert not (tmp_path / "was_here").exists()


def test_a_folder_that_looks_like_a_repository_is_none(repository: Path, evil: str) -> None:
    a_bare_repository_inside(repository, evil)
    with pytest.raises(GitError, match=r"bare repository|not a git repository"):
        Git(str(repository / "code")).ask("rev-parse", "--git-dir")


def test_objects_that_are_missing_are_told_and_not_fetched(
    run: Run, tmp_path: Path, repository: Path, evil: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_remote_to_fetch_from(repository, evil)
    asked = ["git", "rev-parse", "HEAD:code/train.py"]
    name = subprocess.run(asked, cwd=repository, capture_output=True, check=True).stdout.decode()
    (repository / ".git" / "objects" / name[:2] / name[2:].strip()).unlink()
    monkeypatch.chdir(repository)
    ran = run("check", "--diff-base", "HEAD")
    assert not (tmp_path / "was_here").exists()
    assert (ran.code, len(ran.err.splitlines()), ran.err[:11]) == (2, 1, "accumlint: ")


VARIABLES: dict[str, Callable[[Path, str], dict[str, str]]] = {
    "an external diff": lambda _, evil: {"GIT_EXTERNAL_DIFF": evil},
    "a pager": lambda _, evil: {"GIT_PAGER": evil, "PAGER": evil},
    "a connection": lambda _, evil: {"GIT_SSH_COMMAND": evil, "GIT_ASKPASS": evil},
    "settings": lambda _, evil: {
        "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsmonitor", "GIT_CONFIG_VALUE_0": evil,
    },
    "another repository": lambda top, _: {"GIT_DIR": str(top / "none"), "GIT_INDEX_FILE": "none"},
    "another tree": lambda top, _: {"GIT_WORK_TREE": str(top / "none")},
    "a file to write": lambda top, _: {"GIT_TRACE": str(top.parent / "was_here")},
}  # fmt: skip


@pytest.mark.parametrize("name", VARIABLES)
def test_no_variable_of_git_reaches_it(
    run: Run, tmp_path: Path, repository: Path, evil: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:  # fmt: skip
    for variable, value in VARIABLES[name](repository, evil).items():
        monkeypatch.setenv(variable, value)
    monkeypatch.chdir(repository)
    ran = run("check", "--diff-base", "HEAD")
    assert not (tmp_path / "was_here").exists()
    assert (ran.code, ran.err) == (1, "")


def test_a_program_of_the_tree_is_not_taken_for_git(
    run: Run, tmp_path: Path, repository: Path, evil: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "git").symlink_to(evil)
    monkeypatch.setenv("PATH", os.pathsep.join(["", ".", os.environ["PATH"]]))
    monkeypatch.chdir(repository)
    assert run("check", "--diff-base", "HEAD").code == 1
    assert not (tmp_path / "was_here").exists()


ATTRIBUTES = (
    "-diff",
    "binary",
    "-text -diff",
    "working-tree-encoding=UTF-16LE",
    "eol=crlf",
    "ident",
)


@pytest.mark.parametrize("line", ATTRIBUTES)
def test_no_attribute_hides_a_change(
    run: Run, repository: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    attributes(repository, line)
    monkeypatch.chdir(repository)
    ran = run("check", "--diff-base", "HEAD")
    assert (ran.code, ran.out.count("train.py:"), ran.out.count("still.py:")) == (1, 1, 0)


@pytest.mark.parametrize("first", ["# \r" * 9 + "\n", "'''\r\r\r\r'''\n"])
def test_no_line_end_moves_a_change_away_from_its_finding(
    run: Run, repository: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    (repository / "code" / "train.py").write_bytes((first + CHANGED).encode())
    monkeypatch.chdir(repository)
    assert "train.py:" in run("check", "--diff-base", "HEAD").out


def test_what_lies_in_another_repository_counts_as_new(
    run: Run, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(repository, "init", "code/inner")
    (repository / "code" / "inner" / "train.py").write_text(LOOP)
    git(repository / "code" / "inner", "add", ".")
    git(repository / "code" / "inner", "commit", "-m", "first")
    monkeypatch.chdir(repository)
    assert "inner/train.py:" in run("check", "--diff-base", "HEAD").out


def object_of(top: Path, kind: str, content: bytes) -> str:
    asked = ["git", "hash-object", "-w", "-t", kind, "--stdin", "--literally"]
    return subprocess.run(
        asked, cwd=top, input=content, capture_output=True, check=True
    ).stdout.decode().strip()  # fmt: skip


@pytest.mark.timeout(60)
def test_a_commit_that_unfolds_without_end_is_told(
    run: Run, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, mode = object_of(repository, "blob", b"x = 1\n"), b"100644"
    for _ in range(9):
        rows = (mode + b" d%d\0" % i + bytes.fromhex(name) for i in range(10))
        name, mode = object_of(repository, "tree", b"".join(rows)), b"40000"
    made = ["git", "commit-tree", name, "-p", "HEAD", "-m", "bomb"]
    author = {
        f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    bomb = subprocess.run(
        made, cwd=repository, env={**os.environ, **author}, capture_output=True, check=True
    ).stdout.decode().strip()  # fmt: skip
    git(repository, "update-ref", "refs/heads/main", bomb)
    monkeypatch.chdir(repository)
    ran = run("check", "--diff-base", "HEAD")
    assert (ran.code, len(ran.err.splitlines())) == (2, 1)
    assert "git ls-tree prints more than 128 MiB" in ran.err
