"""`accumlint init` writes what can be started from, and changes nothing that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import Run
from readers import hook_entries

from accumlint import config
from accumlint.cli.commands.init import HOOKS, TEMPLATE

PROJECT = '[project]\nname = "größe"\n'
ADDED = f"\n[tool.accumlint]\n{TEMPLATE}"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({}, {"accumlint.toml": TEMPLATE}, "Wrote accumlint.toml"),
        (
            {"pyproject.toml": PROJECT},
            {"pyproject.toml": PROJECT + ADDED},
            "Added [tool.accumlint] to pyproject.toml",
        ),
        (
            {"pyproject.toml": PROJECT.replace("\n", "\r\n").rstrip()},
            {"pyproject.toml": (PROJECT + ADDED).replace("\n", "\r\n")},
            "Added [tool.accumlint] to pyproject.toml",
        ),
        (
            {"pyproject.toml": "[tool.accumlint]\n"},
            {},
            "pyproject.toml has settings already, and stays as it is",
        ),
        ({"accumlint.toml": ""}, {}, "accumlint.toml has settings already, and stays as it is"),
        ({"pyproject.toml": "tool = {}\n"}, {"accumlint.toml": TEMPLATE}, "Wrote accumlint.toml"),
        ({"pyproject.toml": "{{ x }}\n"}, {"accumlint.toml": TEMPLATE}, "Wrote accumlint.toml"),
    ],
)
def test_settings_are_added_never_changed(
    run: Run, tmp_path: Path, before: dict[str, str], after: dict[str, str], said: str
) -> None:
    for name, text in before.items():
        (tmp_path / name).write_bytes(text.encode())
    ran = run("init")
    assert (ran.code, ran.out.splitlines()[0], ran.err) == (0, said, "")
    assert files(tmp_path) == before | after
    config.forget()
    assert "already" in run("init").out
    assert files(tmp_path) == before | after
    assert run("config").code == 0


def test_what_is_commented_out_can_be_said(run: Run, tmp_path: Path) -> None:
    said = re.sub(r"^# (?=[\w-]+ =)", "", TEMPLATE, flags=re.MULTILINE)
    (tmp_path / "accumlint.toml").write_text(said)
    assert len(config.settings(tmp_path, config.Options()).all) > said.count("\n# ")
    assert run("config").out.count("# accumlint.toml") == said.count(" = ")


@pytest.mark.parametrize(
    ("before", "repos"),
    [
        (None, ["local"]),
        (
            "repos:\n- repo: https://x.org/a\n  rev: v1\n  hooks:\n  - id: b",
            ["https://x.org/a", "local"],
        ),
        (
            "fail_fast: true\nrepos:\n    - repo: meta\n      hooks:\n          - id: identity\n",
            ["meta", "local"],
        ),
    ],
)
def test_a_hook_is_added(run: Run, tmp_path: Path, before: str | None, repos: list[str]) -> None:
    file = tmp_path / HOOKS
    if before:
        file.write_text(before)
    ran = run("init", "--pre-commit")
    assert (ran.code, ran.err) == (0, "")
    assert file.read_text().startswith(before or "repos:\n")
    assert [repo for repo, _ in hook_entries(file)] == repos
    assert hook_entries(file)[-1] == ("local", ["accumlint"])
    written = file.read_text()
    assert "has the hook already" in run("init", "--pre-commit").out
    assert file.read_text() == written


@pytest.mark.parametrize("text", ["repos: []\n", "repos:\n- repo: meta\n  hooks: []\nci: {}\n", ""])
def test_a_file_that_cannot_be_extended_stays(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / HOOKS).write_text(text)
    ran = run("init", "--pre-commit")
    assert (ran.code, len(ran.err.splitlines())) == (2, 1)
    assert "id: accumlint" in ran.out
    assert (tmp_path / HOOKS).read_text() == text


def test_the_hook_goes_where_pre_commit_reads_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    inner = tmp_path / "src" / "train"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    ran = run("init", "--pre-commit")
    assert (ran.code, ran.err) == (0, "")
    assert f"Wrote ../../{HOOKS}; " in ran.out
    assert hook_entries(tmp_path / HOOKS) == [("local", ["accumlint"])]
    assert set(files(inner)) == {"accumlint.toml"}


def files(folder: Path) -> dict[str, str]:
    return {file.name: file.read_bytes().decode() for file in folder.iterdir()}
