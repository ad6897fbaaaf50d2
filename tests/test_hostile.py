"""A hostile tree cannot hang a run, break it down, or make it grow."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Run
from helpers import LOOP

from accumlint.files.regular import LARGEST, SETTINGS

unix = pytest.mark.skipif(sys.platform == "win32", reason="makes links and pipes as Unix does")

Make = Callable[[Path], object]
NO_FILE = "it is no regular file"


def pipe(file: Path) -> None:
    os.mkfifo(file)


def endless(file: Path) -> None:
    file.symlink_to("/dev/zero")


def terminal(file: Path) -> None:
    file.symlink_to("/dev/tty")


def listening(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        # The path of a socket is short.
        here = os.getcwd()
        os.chdir(file.parent)
        server.bind(file.name)
        os.chdir(here)


def large(file: Path) -> None:
    with open(file, "wb") as new:
        new.truncate(LARGEST + 1)


MADE: dict[str, Make] = {
    "a pipe": pipe, "an endless device": endless, "a terminal": terminal, "a socket": listening,
    "a large file": large,
}  # fmt: skip
TOO_LARGE = f"it is larger than {LARGEST // 1024 // 1024} MiB"
TOO_MUCH = f"it is larger than {SETTINGS // 1024 // 1024} MiB"
# What is in the way of a command, and what it says of a pipe or a device, and of a large file ("" for nothing).
IN_THE_WAY: dict[str, tuple[str, tuple[str, ...], str, str]] = {
    "a file": (
        "x.py", ("check", "x.py", "train.py"),
        f"x.py: cannot be read: {NO_FILE}", f"x.py: cannot be read: {TOO_LARGE}",
    ),
    "a notebook": (
        "x.ipynb", ("check", "x.ipynb", "train.py"),
        f"x.ipynb: cannot be read: {NO_FILE}", f"x.ipynb: cannot be read: {TOO_LARGE}",
    ),
    "a file of the tree": ("x.py", ("check", "."), "", f"x.py: cannot be read: {TOO_LARGE}"),
    "patterns": (".gitignore", ("check", "."), "", ""),
    "patterns above": ("../.gitignore", ("check", "."), "", ""),
    "settings": ("accumlint.toml", ("check",), "", f"accumlint: accumlint.toml: cannot be read: {TOO_MUCH}"),
    "a project": ("pyproject.toml", ("check",), "", f"accumlint: pyproject.toml: cannot be read: {TOO_MUCH}"),
    "settings that are named": (
        "x.toml", ("check", "--config", "x.toml"),
        "accumlint check: Invalid value for '--config': 'x.toml' is neither a file nor KEY=VALUE.",
        f"accumlint: x.toml: cannot be read: {TOO_MUCH}",
    ),
    "a baseline": (
        "known.json", ("check", "--baseline", "known.json"),
        f"cannot be read: {NO_FILE}", f"accumlint: known.json: cannot be read: {TOO_LARGE}",
    ),
    "a baseline to show": (
        "known.json", ("baseline", "show", "--baseline", "known.json"),
        f"cannot be read: {NO_FILE}", f"accumlint: known.json: cannot be read: {TOO_LARGE}",
    ),
    "a module": ("helper.py", ("check", "train.py"), "", ""),
    "a file to trace": (
        "x.py", ("trace", "x.py"),
        f"accumlint: x.py: cannot be read: {NO_FILE}", f"accumlint: x.py: cannot be read: {TOO_LARGE}",
    ),
    "a file to fix": (
        "x.py", ("check", "--fix", "x.py"),
        f"x.py: cannot be read: {NO_FILE}", f"x.py: cannot be read: {TOO_LARGE}",
    ),
    "a file to start from": (
        "pyproject.toml", ("init",), f"accumlint: cannot write here: {NO_FILE}",
        f"accumlint: pyproject.toml: cannot be read: {TOO_MUCH}",
    ),
}  # fmt: skip


@unix
@pytest.mark.timeout(60)
@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("name", IN_THE_WAY)
def test_only_regular_files_are_read_and_not_more_than_there_is_room_for(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, made: str
) -> None:
    file, arguments, of_no_file, of_a_large_one = IN_THE_WAY[name]
    told = of_a_large_one if made == "a large file" else of_no_file
    tree = tmp_path / "tree"
    (tree / ".git").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    (tree / "train.py").write_text(f"from helper import seed\n{LOOP}")
    MADE[made](tree / file)
    monkeypatch.chdir(tree)
    ran = run(*arguments)
    # Of a baseline the option follows the link.
    assert [row[-len(told) :] for row in ran.err.splitlines()[:1]] == ([told] if told else [])
    assert ran.code == (2 if told else 1)
    if arguments[0] == "check" and not told.startswith("accumlint"):
        assert ("train.py:12:" in ran.out) == (
            "train.py" in arguments or "." in arguments or not told
        )


@unix
@pytest.mark.parametrize("name", ["pyproject.toml", "accumlint.toml", ".pre-commit-config.yaml"])
def test_init_writes_through_no_link(run: Run, tmp_path: Path, name: str) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for theirs, text in (("theirs.toml", ""), ("theirs.yaml", "repos:\n- repo: local\n")):
        (tmp_path / theirs).write_text(text)
    for target in ("theirs.toml", "theirs.yaml", "none"):
        (tree / name).symlink_to(tmp_path / target)
        before = {file.name: file.read_text() for file in tmp_path.glob("theirs*")}
        os.chdir(tree)
        run("init", "--pre-commit")
        assert {file.name: file.read_text() for file in tmp_path.glob("theirs*")} == before
        assert not (tmp_path / "none").exists()
        (tree / name).unlink()


def a_link(tree: Path, outside: Path) -> str:
    (tree / "report").symlink_to(outside / "precious")
    return "report"


def a_link_to_what_is_not_there(tree: Path, outside: Path) -> str:
    (tree / "report").symlink_to(outside / "new")
    return "report"


def a_folder_that_is_a_link(tree: Path, outside: Path) -> str:
    (tree / "reports").symlink_to(outside)
    return "reports/new"


def a_link_within(tree: Path, outside: Path) -> str:
    (tree / "report").symlink_to(".git/config")
    return str(tree / "report")


def a_pipe(tree: Path, outside: Path) -> str:
    os.mkfifo(tree / "report")
    return "report"


CLIPPED = LOOP.replace(
    "\n        optimizer.step()", "\n            CLIP\n        optimizer.step()"
).replace("CLIP", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)")


@unix
@pytest.mark.parametrize("is_repository", [True, False])
@pytest.mark.parametrize("path", [".", "train.py"])
@pytest.mark.parametrize("option", ["--fix", "--add-ignore"])
def test_no_link_of_the_tree_says_which_file_is_changed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, path: str,
    is_repository: bool,
) -> None:  # fmt: skip
    """Their loop has a fix that is safe: it clips in each micro-batch."""
    tree, theirs = tmp_path / "tree", tmp_path / "theirs.py"
    tree.mkdir()
    if is_repository:
        (tree / ".git").mkdir()
    theirs.write_text(CLIPPED)
    (tree / "train.py").symlink_to(theirs)
    monkeypatch.chdir(tree)
    ran = run("check", "--select", "ACC202", option, path)
    assert theirs.read_text() == CLIPPED
    assert ran.err.startswith("train.py: cannot be written: it is a link that leads to a file ")
    assert ran.code == 2
    # Whose it is may name it.
    assert run("check", "--select", "ACC202", option, str(theirs)).code == 0
    assert theirs.read_text() != CLIPPED


DETOURS = (a_link, a_link_to_what_is_not_there, a_folder_that_is_a_link, a_link_within, a_pipe)
WRITING: dict[str, Callable[[str], tuple[str, ...]]] = {
    "check": lambda file: ("check", "--output", f"sarif={file}"),
    "trace": lambda file: ("trace", "train.py", "--output", f"html={file}"),
    "baseline": lambda file: ("baseline", "write", "--baseline", file),
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("command", WRITING)
@pytest.mark.parametrize("detour", DETOURS, ids=lambda detour: detour.__name__)
def test_no_link_of_the_tree_says_where_a_report_is_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    detour: Callable[[Path, Path], str], command: str,
) -> None:  # fmt: skip
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    (tree / ".git").mkdir(parents=True)
    outside.mkdir()
    (tree / "train.py").write_text(LOOP)
    for precious in (outside / "precious", tree / ".git" / "config"):
        # What a command that reads its file before it writes it takes for its own.
        precious.write_text('{"accumlint-baseline": 1, "findings": []}')
    monkeypatch.chdir(tree)
    ran = run(*WRITING[command](detour(tree, outside)))
    assert ran.code == 2
    assert "cannot be written: it is " in ran.err or "cannot be read" in ran.err
    assert [file.name for file in outside.iterdir()] == ["precious"]
    for precious in (outside / "precious", tree / ".git" / "config"):
        assert precious.read_text() == '{"accumlint-baseline": 1, "findings": []}'


def test_settings_that_are_found_name_no_baseline_elsewhere_to_write(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "train.py").write_text(LOOP)
    (tree / "accumlint.toml").write_text('baseline = "../elsewhere.json"\n')
    monkeypatch.chdir(tree)
    ran = run("baseline", "write")
    assert (ran.code, len(ran.err.splitlines())) == (2, 1)
    assert not (tmp_path / "elsewhere.json").exists()
    assert run("baseline", "write", "--baseline", "../elsewhere.json").code == 0
    assert (tmp_path / "elsewhere.json").exists()


@pytest.mark.parametrize("command", ["check", "confirm", "trace"])
@pytest.mark.parametrize(
    "name", ["--config=settings.py", "--config=rule-folders=['rules'].py", "-h.py", "--fix"]
)
def test_no_file_is_taken_for_an_option(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, name: str
) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "acc999_evil.py").write_text("open('was_here', 'w')\n")
    (tmp_path / "settings.py").write_text('rule-folders = ["rules"]\n')
    (tmp_path / "train.py").write_text(LOOP)
    (tmp_path / name).write_text(LOOP)
    monkeypatch.chdir(tmp_path)
    ran = run(command, name, "train.py")
    assert (ran.code, ran.out) == (2, "")
    told = f"accumlint: {name}: is an option and the name of a file; write ./{name}\n"
    assert ran.err == told
    assert not (tmp_path / "was_here").exists()


def test_a_file_that_is_called_like_an_option_is_checked(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-.py").write_text(LOOP)
    assert run("check", "./-.py").code == run("check", "--", "-.py").code == run("check").code == 1
