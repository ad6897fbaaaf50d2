"""What is said of a rule's accuracy is what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli
from conftest import Run
from helpers import FLAGGED, LOOP, ROOT
from readers import table_rows

from accumlint.registry import accuracy, packs
from accumlint.registry.accuracy import Accuracy

FIGURES: dict[str, dict[str, int]] = json.loads((ROOT / "rules" / "accuracy.json").read_text())
LABELS = """
[[loop]]
repository = "owner/name"
commit = "HEAD"
path = "train.py"
line = {line}
defects = {defects}
debatable = {debatable}
complete = {complete}
"""
USUAL = {"line": str(FLAGGED), "defects": "[]", "debatable": "[]", "complete": "false"}
DIVIDED = LOOP.replace("loss.b", "(loss / accumulation_steps).b")


@pytest.mark.parametrize(
    ("figures", "precision"),
    [
        ((8, 0), "very-high"),
        ((7, 0), "high"),
        ((2, 0), "high"),
        ((1, 0), "medium"),
        ((2, 2), "medium"),
        ((0, 1), "low"),
        ((0, 0), ""),
    ],
)
def test_a_few_findings_are_no_certainty(figures: tuple[int, int], precision: str) -> None:
    assert Accuracy(*figures, missed=0).precision == precision


def test_the_figures_are_of_rules_that_exist() -> None:
    assert {entry.code for entry in packs.catalogue()} >= set(FIGURES)
    assert all(set(figure) == {"right", "wrong", "missed"} for figure in FIGURES.values())


def test_the_page_of_a_rule_tells_them(run: Run) -> None:
    code = max(FIGURES, key=lambda code: FIGURES[code]["right"])
    measured = accuracy.of(code)
    assert measured is not None
    assert f"On labelled loops: {measured.sentence}" in run("rule", code).out.splitlines()
    unmeasured = next(entry for entry in packs.catalogue() if entry.code not in FIGURES)
    assert accuracy.of(unmeasured.code) is None
    assert "On labelled loops" not in run("rule", unmeasured.code).out


def test_the_documentation_tells_them() -> None:
    page = (ROOT / "docs" / "samples.md").read_text(encoding="utf-8")
    section = page[page.index("## Rule by rule") :]
    section = section[: section.index("\n## ", 1)]
    rows = {row[0].split()[0]: tuple(map(int, row[1:])) for row in table_rows(section)}
    assert rows == {code: tuple(figure.values()) for code, figure in FIGURES.items()}


@pytest.mark.parametrize(
    ("source", "label", "expected"),
    [
        (LOOP, {"defects": '[["loss-not-divided"]]'}, {"right": 1, "wrong": 0, "missed": 0}),
        (
            LOOP,
            {"defects": '[["double-division", "loss-not-divided"]]'},
            {"right": 1, "wrong": 0, "missed": 0},
        ),
        (LOOP, {"complete": "true"}, {"right": 0, "wrong": 1, "missed": 0}),
        (LOOP, {"complete": "true", "debatable": '["loss-not-divided"]'}, {}),
        (LOOP, {"complete": "false"}, {}),
        (LOOP, {"complete": "true", "line": "400"}, {}),
        (DIVIDED, {"defects": '[["loss-not-divided"]]'}, {"right": 0, "wrong": 0, "missed": 1}),
    ],
)
def test_the_command_counts_labels(
    tmp_path: Path, source: str, label: dict[str, str], expected: dict[str, int]
) -> None:
    repository = tmp_path / "owner" / "name"
    repository.mkdir(parents=True)
    (repository / "train.py").write_text(source)
    identity = ["-c", "user.name=x", "-c", "user.email=x"]
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "x"]):
        subprocess.run(["git", *command], cwd=repository, check=True)
    labels = tmp_path / "labels.toml"
    labels.write_text(LABELS.format(**{**USUAL, **label}))
    figures = tmp_path / "figures.json"
    subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "accuracy.py", labels, tmp_path, "--write", figures],
        check=True,
        capture_output=True,
    )
    assert json.loads(figures.read_text()) == ({"ACC102": expected} if expected else {})


def data(name: str) -> list[dict[str, Any]]:
    (rows,) = tomli.loads((ROOT / "docs" / "data" / f"{name}.toml").read_text("utf-8")).values()
    return rows


def test_the_tables_and_the_plot_are_those_of_the_data() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "samples.py"), "--check"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_causes_of_wrong_findings_add_up() -> None:
    samples = [(row["findings"][2], row["wrong"]) for row in data("samples") if "wrong" in row]
    readings = [(row["before"][2], row["causes"]) for row in data("readings") if "causes" in row]
    counted = [(wrong, sum(n for n, _ in causes)) for wrong, causes in [*samples, *readings]]
    # Of two findings of one reading nobody noted the cause.
    assert [pair for pair in counted if pair[0] != pair[1]] == [(37, 35)]
