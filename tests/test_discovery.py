"""A folder's Python files are found, each once, without what git or the settings leave out."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Run

from accumlint.config import Options
from accumlint.files.inputs.discovery import find

TREE = ["a.py", "a.pyi", "notes.txt", "src/b.py", "src/gen/c.py", "src/gen/d.py", "test/e.py"]
EVERYTHING = ["a.py", "src/b.py", "src/gen/c.py", "src/gen/d.py", "test/e.py"]

# .gitignore files by folder, and what is found besides.
IGNORED: list[tuple[dict[str, str], list[str]]] = [
    ({}, EVERYTHING),
    ({".": "src/"}, ["a.py", "test/e.py"]),
    ({".": "*.py"}, []),
    ({".": "/*.py"}, ["src/b.py", "src/gen/c.py", "src/gen/d.py", "test/e.py"]),
    ({".": "gen"}, ["a.py", "src/b.py", "test/e.py"]),
    ({".": "*.py\n!b.py"}, ["src/b.py"]),
    ({".": "src/gen/*\n!src/gen/c.py"}, ["a.py", "src/b.py", "src/gen/c.py", "test/e.py"]),
    ({".": "*.py", "src": "!b.py"}, ["src/b.py"]),
    ({"src": "gen/"}, ["a.py", "src/b.py", "test/e.py"]),
    ({"src": "/b.py"}, ["a.py", "src/gen/c.py", "src/gen/d.py", "test/e.py"]),
    ({"test": "# a remark\n\ne.py  \n"}, ["a.py", "src/b.py", "src/gen/c.py", "src/gen/d.py"]),
    ({".": "gen/\n!c.py"}, ["a.py", "src/b.py", "test/e.py"]),
]


def plant(folder: Path, files: list[str]) -> None:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")


def found(*paths: str, force_exclude: bool = False) -> list[str]:
    targets, problems = find(paths, Options(), force_exclude=force_exclude)
    assert [problem for problem in problems if problem.kind] == []
    return [target.shown for target in targets]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    return tmp_path


@pytest.mark.parametrize(("ignored", "expected"), IGNORED)
def test_what_git_ignores_is_left_out(
    folder: Path, ignored: dict[str, str], expected: list[str]
) -> None:
    plant(folder, TREE)
    for home, patterns in ignored.items():
        (folder / home / ".gitignore").write_text(patterns)
    assert found(".") == expected


def test_a_gitignore_above_holds_up_to_the_repository_s_root(folder: Path) -> None:
    plant(folder, TREE)
    (folder / ".gitignore").write_text("/src/gen/\n")
    assert found("src") == ["src/b.py"]
    (folder / "src" / ".git").mkdir()
    assert found("src") == ["src/b.py", "src/gen/c.py", "src/gen/d.py"]


@pytest.mark.parametrize("name", [".git", ".venv", "venv", "node_modules", "build", "__pycache__"])
def test_folders_that_hold_no_source_are_left_out(folder: Path, name: str) -> None:
    plant(folder, ["a.py", f"{name}/b.py", f"src/{name}/c.py", f"src/{name}s/d.py"])
    assert found(".") == ["a.py", f"src/{name}s/d.py"]


def test_a_named_path_is_found_whatever_it_is_called(folder: Path) -> None:
    plant(folder, ["build/a.py", "script", "ignored.py"])
    (folder / ".gitignore").write_text("ignored.py\n")
    assert found("build/a.py", "script", "ignored.py") == ["build/a.py", "ignored.py", "script"]
    assert found("build") == ["build/a.py"]


def test_force_exclude_asks_the_excludes_about_named_files(folder: Path) -> None:
    plant(folder, ["build/a.py", "legacy/deep/b.py", "c.py"])
    (folder / "pyproject.toml").write_text("[tool.accumlint]\nextend-exclude = ['legacy/']\n")
    names = ["build/a.py", "c.py", "legacy/deep/b.py"]
    assert found(*names) == names
    assert found(*names, force_exclude=True) == ["c.py"]


def test_a_file_is_found_once_under_its_first_name(folder: Path) -> None:
    plant(folder, ["src/a.py"])
    assert found("src/a.py", "src", ".", str(folder / "src" / "a.py")) == ["src/a.py"]


def test_links_to_files_are_followed_and_links_to_folders_are_not(folder: Path) -> None:
    plant(folder, ["src/a.py"])
    (folder / "b.py").symlink_to("src/a.py")
    (folder / "lib").symlink_to("src", target_is_directory=True)
    (folder / "gone.py").symlink_to("nowhere")
    assert found(".") == ["b.py", "src/a.py"]
    assert found("lib") == ["lib/a.py"]


@pytest.mark.parametrize(
    ("path", "shown"),
    [(".", "src/a.py"), ("src", "src/a.py"), ("src/", "src/a.py"), ("./src", "./src/a.py")],
)
def test_paths_are_shown_as_they_were_given(folder: Path, path: str, shown: str) -> None:
    plant(folder, ["src/a.py"])
    assert found(path) == [shown]


def test_excludes_are_relative_to_the_file_that_names_them(run: Run, folder: Path) -> None:
    plant(folder, ["one/gen/a.py", "two/gen/b.py", "one/c.py", "gen/d.py"])
    (folder / "one" / "pyproject.toml").write_text("[tool.accumlint]\nexclude = ['/gen/']\n")
    ran = run("check", "--show-files")
    assert ran.out.splitlines() == ["gen/d.py", "one/c.py", "two/gen/b.py"]
