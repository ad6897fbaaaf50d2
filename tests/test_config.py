"""Settings come from the nearest pyproject.toml, and a mistake in them is told in one line."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import jsonschema
import pytest
from conftest import Run
from helpers import LOOP, ROOT

from accumlint.config import setting_keys
from accumlint.diagnostics import judge
from accumlint.rule import Confidence, Finding

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MISTAKES = [
    ('selct = ["ACC1"]', "the settings have no key 'selct'; did you mean 'select'?"),
    ("min_confidence = 'likely'", "did you mean 'min-confidence'?"),
    ('select = "ACC1"', "select must be a list of strings"),
    ("select = [1]", "select must be a list of strings"),
    ('extend-exclude = ""', 'extend-exclude must be a list of strings, such as ["legacy/"]'),
    ("min-confidence = 'likly'", "did you mean 'likely'?"),
    ("min-confidence = 1", "min-confidence must be one of"),
    ("output-format = 'xml'", "output-format must be one of 'concise', 'full', 'grouped'"),
    ('per-file-ignores = ["ACC1"]', "per-file-ignores must be a table"),
    ('per-file-ignores = { "*.py" = "ACC1" }', "must be a list of strings"),
    (
        "severity = { ACC1 = 'eror' }",
        "severity.ACC1 must be one of 'error', 'warning', 'info'; did",
    ),
    ("severity = 'error'", "severity must be a table, such as"),
    ("baseline = 1", "baseline must be a path"),
    ("extend = ''", "extend must be a path"),
    ("extend = 'absent.toml'", "extend: there is no file absent.toml"),
    ("extend = 'pyproject.toml'", "extend leads back to pyproject.toml"),
    ("extend = '.'", "extend: there is no file"),
    ("select = [", "pyproject.toml: "),
]
EFFECTS = [
    ("", 1),
    ('select = ["ACC2"]', 0),
    ('select = ["ACC2"]\nextend-select = ["loss-not-divided"]', 1),
    ('ignore = ["ACC102"]', 0),
    ('exclude = ["train.py"]', 0),
    ('extend-exclude = ["*.py"]', 2),
    ('extend-exclude = ["/other/"]', 1),
    ('per-file-ignores = { "tr*.py" = ["ACC1"] }', 0),
    ('per-file-ignores = { "other/" = ["ACC1"] }', 1),
    ("severity = { ACC1 = 'info' }", 1),
    ("baseline = 'absent.json'", 2),
]
# Settings that name rules that there are not, with the line and column and the hint.
UNKNOWN = [
    ('select = ["ACC102", "ACC999"]', "2:22", "`accumlint rules` lists them"),
    ('select = ["ACC999"]', "2:12", "`accumlint rules` lists them"),
    (
        'ignore = [\n  # "divided-twice"\n  "double-divison",\n]',
        "4:4",
        "did you mean 'double-division'?",
    ),
    ("per-file-ignores = { 'ACC9998' = ['ACC999'] }", "2:36", "lists them"),
    ("severity = { ACC12 = 'error' }", "2:14", "did you mean 'ACC102'?"),
    ("extend-select = ['ACC1022']", "2:19", "did you mean 'ACC102'?"),
]
SEVERITIES = [
    ("ACC102 = 'info'", "info"),
    ("loss-not-divided = 'warning'\nACC1 = 'info'", "warning"),
    ("ALL = 'info'\nACC = 'error'", "error"),
    ("ACC2 = 'info'\nACC102 = 'warning'", "warning"),
]
INLINE = [
    (["ignore=['ACC102']"], 0, ""),
    (["min-confidence=likely", "ignore=['ACC2']"], 1, ""),
    (["per-file-ignores.'*.py'=['ACC1']"], 0, ""),
    (["severity.ACC102='info'"], 1, ""),
    (["ignore=['ACC102']", "ignore=['ACC2']"], 1, ""),
    (["ignore=['ACC1022']"], 2, "'ACC1022' names no rule; did you mean 'ACC102'?"),
    (["ignore=ACC102"], 2, "ignore=ACC102: ignore must be a list of strings"),
    (["ignor=['ACC102']"], 2, "did you mean 'ignore'?"),
    (["min-confidence=sure"], 2, "min-confidence must be one of"),
    (["ignore=["], 2, "--config ignore=[: "),
    (["ci.toml"], 2, "neither a file nor KEY=VALUE"),
    (["a.toml", "b.toml"], 2, "one file of settings is enough"),
    (["."], 2, "neither a file nor KEY=VALUE"),
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
    (tmp_path / "model.py").write_text("x = 1\n")
    assert run("check").code == code


@pytest.mark.parametrize(("table", "place", "hint"), UNKNOWN)
def test_an_unknown_rule_is_a_finding_in_the_file(
    run: Run, tmp_path: Path, table: str, place: str, hint: str
) -> None:
    configure(tmp_path, table)
    first, *_ = run("check").out.splitlines()
    assert first.startswith(f"pyproject.toml:{place}: ACC902 [warning] ")
    assert first.endswith(hint)
    assert run("check", "--ignore", "ACC102,ACC902").code == 0


@pytest.mark.parametrize(("rows", "severity"), SEVERITIES)
def test_the_closest_selector_gives_the_severity(
    run: Run, tmp_path: Path, rows: str, severity: str
) -> None:
    configure(tmp_path, f"[tool.accumlint.severity]\n{rows}")
    assert f"ACC102 [{severity}]" in run("check").out


@pytest.mark.parametrize(("configs", "code", "message"), INLINE)
def test_settings_on_the_command_line(
    run: Run, tmp_path: Path, configs: list[str], code: int, message: str
) -> None:
    configure(tmp_path, "")
    for name in ("a.toml", "b.toml"):
        (tmp_path / name).write_text("")
    ran = run("check", *(word for value in configs for word in ("--config", value)))
    assert (ran.code, message in ran.err, "Traceback" in ran.err) == (code, True, False)


def test_a_file_of_our_own_needs_no_table_and_is_asked_first(run: Run, tmp_path: Path) -> None:
    configure(tmp_path, "select = ['ACC2']")
    (tmp_path / "accumlint.toml").write_text("select = ['ACC102']")
    assert run("check").code == 1
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "accumlint.toml").write_text("slect = ['ACC102']")
    told = (
        "accumlint: sub/accumlint.toml: the settings have no key 'slect'; did you mean 'select'?\n"
    )
    assert run("check", "sub").err == told


def test_a_file_may_extend_another(run: Run, tmp_path: Path) -> None:
    base = "select = ['ACC1']\nextend-exclude = ['base.py']\nmin-confidence = 'certain'\n"
    (tmp_path / "base.toml").write_text(base)
    sub = tmp_path / "sub"
    sub.mkdir()
    (sub / "accumlint.toml").write_text(
        "extend = '../base.toml'\nselect = ['ACC2']\nextend-exclude = ['sub.py']\n"
    )
    ran = run("config", "sub")
    assert ran.code == 0
    told = dict(line.split("  # ") for line in ran.out.splitlines() if "  # " in line)
    assert told['select = ["ACC2"]'] == "sub/accumlint.toml"
    assert told['min-confidence = "certain"'] == "base.toml"
    assert told['extend-exclude = ["base.py", "sub.py"]'] == "base.toml, sub/accumlint.toml"
    assert "# ignore is not set" in ran.out


def test_what_is_told_about_the_settings_can_be_pasted(run: Run, tmp_path: Path) -> None:
    table = "ignore = ['ACC2']\nseverity = { ACC102 = 'info' }\nper-file-ignores = { 'a \"b' = ['ALL'] }"
    configure(tmp_path, table)
    first = run("config", "train.py")
    (tmp_path / "accumlint.toml").write_text(first.out)
    second = run("config", "--config", "min-confidence=certain")
    assert (first.code, second.code) == (0, 0)
    assert first.out.replace("pyproject", "accumlint").splitlines()[2] in second.out.splitlines()
    assert 'min-confidence = "certain"  # the command line' in second.out.splitlines()
    assert run("config", "absent").code == 2


def test_the_published_schema_is_the_settings_own(run: Run) -> None:
    printed = run("config", "--schema").out
    assert (ROOT / "docs" / "settings.schema.json").read_text(encoding="utf-8") == printed
    schema = json.loads(printed)
    jsonschema.Draft7Validator.check_schema(schema)
    assert list(schema["properties"]) == list(setting_keys.KEYS)


@pytest.mark.parametrize("table", [table for table, _ in (*MISTAKES[:-1], *EFFECTS)])
def test_the_schema_refuses_what_is_refused_for_its_form(
    run: Run, tmp_path: Path, table: str
) -> None:
    configure(tmp_path, table)
    held = tomllib.loads(table)
    validator = jsonschema.Draft7Validator(setting_keys.schema())
    valid = next(validator.iter_errors(held), None) is None  # pyright: ignore[reportUnknownMemberType]
    told = run("config").err
    # Whether a file is there is more than its form.
    assert valid == (told == "" or "extend: there is no" in told or "leads back" in told)


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
    assert [line.split(":")[0] for line in lines if ": ACC" in line] == ["strict/train.py"]


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

    monkeypatch.setattr("accumlint.diagnostics.judge.judge", unsure)
    assert run("check").code == 0
    assert run("check", "--min-confidence", "possible").code == 1
    configure(tmp_path, "min-confidence = 'possible'")


def test_the_words_for_confidence_are_the_engine_s() -> None:
    assert set(setting_keys.CONFIDENCES) == {confidence.value for confidence in Confidence}
