"""The command says what it found, where, and with the right exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Run
from helpers import FLAGGED, LOOP

from accumlint import __version__

TWICE = LOOP + LOOP.replace("def train", "def train_again")

# The finding is a warning.
GRADED = ("--config", "severity={ALL='warning'}")


@pytest.fixture
def loop(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text(LOOP)
    return file


def test_a_finding_is_one_line_and_exit_code_1(run: Run, loop: Path) -> None:
    ran = run("check")
    first, last, _ = ran.out.splitlines()
    assert ran.code == 1
    assert first.startswith(f"train.py:{FLAGGED}:13: ACC102 [")
    assert last.startswith("1 finding (1 ")
    assert last.endswith(") in 1 file")
    assert ran.err == ""


def test_a_file_without_findings_is_all_clear_and_exit_code_0(run: Run, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("x = 1\n")
    ran = run("check", "model.py")
    assert (ran.code, ran.out, ran.err) == (0, "All clear: no finding in 1 file\n", "")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["check", "--exit-zero"], 0, ""),
        (["check", "--ignore", "ACC102"], 0, ""),
        (["check", "--ignore", "loss-not-divided"], 0, ""),
        (["check", "--ignore", "ACC1"], 0, ""),
        (["check", "--select", "ACC2,ACC3"], 0, ""),
        (["check", "--select", "ACC2", "--select", "ACC102"], 1, ""),
        (["check", "--select", "acc102"], 1, ""),
        (["check", "--select", "ALL"], 1, ""),
        (["check", "--select", "ACC2", "--extend-select", "ACC102"], 1, ""),
        (["check", "--ignore", "ACC1", "--extend-select", "ACC102"], 1, ""),
        (["check", "--min-confidence", "possible"], 1, ""),
        (["check", "--min-severity", "info"], 1, ""),
        (["check", "--min-severity", "error"], 1, ""),
        (["check", *GRADED, "--min-severity", "error"], 0, ""),
        (["check", *GRADED, "--min-severity", "warning"], 1, ""),
        (["check", *GRADED, "--config", "min-severity=error"], 0, ""),
        (["check", *GRADED, "--config", "min-severity=error", "--min-severity", "info"], 1, ""),
        (["check", "--min-severity", "grave"], 2, "--min-severity"),
        (["check", *GRADED, "--fail-on", "warning"], 1, ""),
        (["check", *GRADED, "--fail-on", "error"], 0, ""),
        (["check", *GRADED, "--exit-zero", "--fail-on", "warning"], 0, ""),
        (["check", "--fail-on", "never"], 2, "--fail-on"),
        (["check", "--isolated", "--no-cache"], 1, ""),
        (["check", "--select", "ACC999"], 2, "'ACC999' names no rule"),
        (["check", "--select", "loss-not-divide"], 2, "did you mean 'loss-not-divided'?"),
        (["check", "--min-confidence", "sure"], 2, "--min-confidence"),
        (["check", "--config", "absent.toml"], 2, "absent.toml"),
        (["check", "--isolated", "--config", "train.py"], 2, "exclude each other"),
        (["check", "--selekt", "ACC1"], 2, "--selekt"),
        (["chek"], 2, "No such command 'chek'. Did you mean 'check'?"),
        (["rule", "loss-not-divide"], 2, "did you mean 'loss-not-divided'?"),
    ],
)
@pytest.mark.usefixtures("loop")
def test_options_and_their_exit_codes(
    run: Run, arguments: list[str], code: int, message: str
) -> None:
    ran = run(*arguments)
    assert ran.code == code
    assert message in ran.err
    assert len(ran.err.splitlines()) == (1 if message else 0)


@pytest.mark.usefixtures("loop")
def test_json_has_the_shape_that_editors_know(run: Run, loop: Path) -> None:
    ran = run("check", "--output-format", "json")
    (finding,) = json.loads(ran.out)
    assert ran.code == 1
    assert finding["filename"] == str(loop)
    assert finding["location"] == {"row": FLAGGED, "column": 13}
    assert finding["end_location"] == {"row": FLAGGED, "column": 28}
    assert (finding["code"], finding["name"]) == ("ACC102", "loss-not-divided")
    assert finding["severity"] in {"error", "warning", "info"}
    assert finding["confidence"] in {"certain", "likely"}
    assert (finding["cell"], finding["url"]) == (None, None)
    assert finding["fix"]["applicability"] == "unsafe"
    assert finding["noqa_row"] == FLAGGED
    assert {"message", "condition", "applied", "expected", "related"} <= set(finding)


def test_json_is_sorted_and_empty_when_nothing_is_found(run: Run, tmp_path: Path) -> None:
    for name in ("b.py", "a.py"):
        (tmp_path / name).write_text(TWICE)
    (tmp_path / "c.py").write_text("")
    found = json.loads(run("check", "b.py", "a.py", "c.py", "--output-format", "json").out)
    places = [(Path(f["filename"]).name, f["location"]["row"]) for f in found]
    again = FLAGGED + len(LOOP.splitlines())
    assert places == [("a.py", FLAGGED), ("a.py", again), ("b.py", FLAGGED), ("b.py", again)]
    assert run("check", "c.py", "--output-format", "json").out == "[]\n"


@pytest.mark.usefixtures("loop")
def test_quiet_prints_findings_only(run: Run) -> None:
    loud, quiet = (run("check", *words) for words in ((), ("--quiet",)))
    assert quiet.out == loud.out.splitlines(keepends=True)[0]
    assert (quiet.code, quiet.err) == (1, "")
    assert run("check", "-q", "--select", "ACC201").out == ""


@pytest.mark.usefixtures("loop")
def test_full_shows_source_window_and_both_gradients(run: Run) -> None:
    ran = run("check", "--output-format", "full")
    assert "ACC102 loss-not-divided" in ran.out
    assert f"train.py:{FLAGGED}:13" in ran.out
    assert "loss.backward()" in ran.out
    assert "^^^^^^^^^^^^^^^\n" in ran.out
    assert "g1 + g2 + g3 + g4" in ran.out
    assert "1/4 g1 + 1/4 g2 + 1/4 g3 + 1/4 g4" in ran.out
    assert "accumlint rule ACC102" in ran.out


def test_statistics_count_by_rule(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TWICE)
    ran = run("check", "--statistics")
    count, code, _, name = ran.out.splitlines()[0].split()
    assert (ran.code, count, code, name) == (1, "2", "ACC102", "loss-not-divided")
    counted = json.loads(run("check", "--statistics", "--output-format", "json").out)
    assert [(row["code"], row["count"]) for row in counted] == [("ACC102", 2)]


def test_show_files_lists_what_would_be_checked(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b.py", "a.py", "sub/c.py", "notes.txt"):
        (tmp_path / name).write_text("")
    ran = run("check", "--show-files")
    assert (ran.code, ran.out.splitlines()) == (0, ["a.py", "b.py", "sub/c.py"])


def test_stdin_is_checked_under_the_name_that_is_given(run: Run) -> None:
    ran = run("check", "-", "--stdin-filename", "src/train.py", stdin=LOOP.encode())
    assert ran.code == 1
    assert ran.out.startswith(f"src/train.py:{FLAGGED}:13: ACC102")
    assert run("check", "-", stdin=LOOP.encode()).out.startswith(f"-:{FLAGGED}:13: ACC102")


@pytest.mark.parametrize(
    ("option", "environment", "colored"),
    [
        ("auto", {}, False),
        ("auto", {"FORCE_COLOR": "1"}, True),
        ("auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ("always", {"NO_COLOR": "1"}, True),
        ("never", {"FORCE_COLOR": "1"}, False),
    ],
)
@pytest.mark.usefixtures("loop")
def test_colours(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    environment: dict[str, str],
    colored: bool,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ("\x1b[" in run("check", "--color", option).out) == colored


def test_a_rule_is_found_by_code_and_by_name(run: Run) -> None:
    by_code, by_name = run("rule", "ACC102"), run("rule", "loss-not-divided")
    assert by_code.code == 0
    assert by_code.out.startswith("# ACC102 loss-not-divided\n")
    assert "\nBad:\n" in by_code.out
    assert by_code.out == by_name.out


def test_the_catalogue_has_a_line_for_each_rule(run: Run) -> None:
    ran = run("rules")
    line = next(line for line in ran.out.splitlines() if line.startswith("ACC102"))
    assert ran.code == 0
    assert line.split()[1:3] == ["warning", "loss-not-divided"]
    assert line.endswith(".")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--version"], f"accumlint {__version__} ("),
        (["--help"], "check"),
        ([], "check"),
        (["check", "--help"], "--min-confidence"),
    ],
)
def test_help_and_version(run: Run, arguments: list[str], text: str) -> None:
    ran = run(*arguments)
    assert ran.code == 0
    assert text in ran.out


def test_it_runs_as_a_module(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "accumlint", "--version"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert ran.stdout.decode().startswith(f"accumlint {__version__} (")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["rule", "loss-not"], "loss-not-divided"),
        (["check", "--select", "ACC201,acc10"], "ACC201,ACC102"),
        (["check", "--output", "js"], "json-lines"),
        (["check", "--min-confidence", "l"], "likely"),
    ],
)
def test_shells_complete_what_is_typed(
    run: Run, monkeypatch: pytest.MonkeyPatch, typed: list[str], offered: str
) -> None:
    monkeypatch.setenv("_ACCUMLINT_COMPLETE", "zsh_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(["accumlint", *typed]))
    monkeypatch.setenv("COMP_CWORD", str(len(typed)))
    assert offered in run().out.splitlines()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_calls_us(run: Run, shell: str) -> None:
    ran = run("completion", shell)
    assert ran.code == 0
    assert f"_ACCUMLINT_COMPLETE={shell}_complete" in ran.out


TWO_TERMS = """\
import torch
import torch.nn.functional as F


def train(model, loader, accumulation_steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for i, (x, y) in enumerate(loader):
            out, hidden = model(x)
            loss = F.cross_entropy(out, y) + hidden.pow(2).mean()
            (loss / accumulation_steps).backward()
            if (i + 1) % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
"""


def test_a_loss_of_two_terms_weighs_what_each_of_them_weighs(run: Run, tmp_path: Path) -> None:
    """Two quarters are no half: a quarter of the loss goes backward."""
    (tmp_path / "train.py").write_text(TWO_TERMS)
    shown = run("check", "--isolated", "--output-format", "full", "train.py")
    assert "micro-batch 2: backward adds 1/4 g2" in shown.out
