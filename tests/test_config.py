"""Settings come from the nearest pyproject.toml, and a mistake in them is told in one line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from conftest import Run
from helpers import LOOP

from accumlint import config, judge
from accumlint.rule import Confidence, Finding

MISTAKES = [
    ('selct = ["ACC1"]', "has no key 'selct'; did you mean 'select'?"),
    ("min_confidence = 'likely'", "did you mean 'min-confidence'?"),
    ('select = "ACC1"', "select must be a list of strings"),
    ("select = [1]", "select must be a list of strings"),
    ('extend-exclude = ""', 'extend-exclude must be a list of strings, such as ["legacy/"]'),
    ("min-confidence = 'likly'", "did you mean 'likely'?"),
    ("min-confidence = 1", "min-confidence must be one of"),
    ("output-format = 'xml'", "output-format must be one of 'concise', 'full', 'grouped'"),
    ('per-file-ignores = ["ACC1"]', "per-file-ignores must be a table"),
    ('per-file-ignores = { "*.py" = "ACC1" }', "must be a list of strings"),
    ('per-file-ignores = { "*.py" = ["ACC999"] }', "'ACC999' names no rule"),
    ('select = ["ACC999"]', "'ACC999' names no rule"),
    ('ignore = ["loss-not-divide"]', "did you mean 'loss-not-divided'?"),
    ("select = [", "pyproject.toml: "),
]
EFFECTS = [
    ("", 1),
    ('select = ["ACC2"]', 0),
    ('select = ["ACC2"]\nextend-select = ["loss-not-divided"]', 1),
    ('ignore = ["ACC102"]', 0),
    ('exclude = ["train.py"]', 0),
    ('extend-exclude = ["*.py"]', 0),
    ('extend-exclude = ["/other/"]', 1),
    ('per-file-ignores = { "tr*.py" = ["ACC1"] }', 0),
    ('per-file-ignores = { "other/" = ["ACC1"] }', 1),
]


def configure(folder: Path, table: str) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.accumlint]\n{table}\n")


@pytest.fixture(autouse=True)
def loop(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)


@pytest.mark.parametrize(("table", "message"), MISTAKES)
def test_a_mistake_is_one_line_with_the_file_and_the_mend(
    run: Run, tmp_path: Path, table: str, message: str
) -> None:
    configure(tmp_path, table)
    ran = run("check")
    assert ran.code == 2
    assert ran.err.startswith("accumlint: pyproject.toml: ")
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(("table", "code"), EFFECTS)
def test_each_key_has_its_effect(run: Run, tmp_path: Path, table: str, code: int) -> None:
    configure(tmp_path, table)
    assert run("check").code == code


def test_the_output_format_can_be_configured(run: Run, tmp_path: Path) -> None:
    configure(tmp_path, "output-format = 'json'")
    assert run("check").out.startswith("[")
    assert run("check", "--output-format", "concise").out.startswith("train.py:")


def test_the_nearest_file_with_our_table_wins(run: Run, tmp_path: Path) -> None:
    configure(tmp_path, 'ignore = ["ACC102"]')
    for name in ("strict", "plain"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(LOOP)
    configure(tmp_path / "strict", "")
    (tmp_path / "plain" / "pyproject.toml").write_text("[project]\nname = 'accumlint-user'\n")
    lines = run("check").out.splitlines()
    assert [line.split(":")[0] for line in lines[:-1]] == ["strict/train.py"]


def test_a_file_that_is_none_of_ours_is_not_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("{{ cookiecutter.project }} = [")
    assert run("check").code == 1


def test_isolated_reads_no_file(run: Run, tmp_path: Path) -> None:
    configure(tmp_path, 'ignore = ["ACC102"]')
    assert run("check").code == 0
    assert run("check", "--isolated").code == 1


def test_a_named_file_holds_for_the_whole_run(run: Run, tmp_path: Path) -> None:
    (tmp_path / "ci.toml").write_text("[tool.accumlint]\nignore = ['ACC102']\n")
    assert run("check", "--config", "ci.toml").code == 0
    (tmp_path / "other.toml").write_text("[tool.other]\n")
    ran = run("check", "--config", "other.toml")
    assert ran.err == "accumlint: other.toml: holds no [tool.accumlint] table\n"
    assert ran.code == 2


def test_select_on_the_command_line_starts_afresh(run: Run, tmp_path: Path) -> None:
    configure(tmp_path, 'ignore = ["ACC102"]\nselect = ["ACC2"]')
    assert run("check", "--select", "ACC102").code == 1
    assert run("check", "--extend-select", "ACC102").code == 0


def test_findings_below_the_least_confidence_are_not_shown(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = judge.judge

    def unsure(*arguments: object) -> list[Finding]:
        found = real(*arguments)  # pyright: ignore[reportArgumentType]
        return [dataclasses.replace(f, confidence=Confidence.POSSIBLE) for f in found]

    monkeypatch.setattr("accumlint.judge.judge", unsure)
    assert run("check").code == 0
    assert run("check", "--min-confidence", "possible").code == 1
    configure(tmp_path, "min-confidence = 'possible'")


def test_the_words_for_confidence_are_the_engine_s() -> None:
    assert set(config.CONFIDENCES) == {confidence.value for confidence in Confidence}
