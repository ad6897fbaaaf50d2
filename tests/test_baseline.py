"""A baseline hides what was there before, and nothing that is new."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Run
from helpers import FLAGGED, LOOP

FILE = "accumlint-baseline.json"
OTHER = LOOP.replace("def train", "def train_again")
DIVIDED = LOOP.replace("loss.backward()", "(loss / accumulation_steps).backward()")

# What becomes of a file whose finding is known, how many findings are new, and how many known.
EDITS = {
    "nothing": (LOOP, 0, 1),
    "lines above": ("import torch\n\n\n" + LOOP, 0, 1),
    "another layout": (LOOP.replace("loss.backward()", "loss.backward(\n            )"), 0, 1),
    "a comment": (LOOP.replace("# error: ACC102", "# a remark"), 0, 1),
    "the same in another function": (OTHER, 1, 0),
    "the same once more": (LOOP + OTHER, 1, 1),
    "the same twice in one function": (LOOP + LOOP, 1, 1),
    "another statement": (LOOP.replace("loss.backward()", "(loss + 0).backward()"), 1, 0),
    "mended": (DIVIDED, 0, 0),
}
BROKEN = {
    "": "is no baseline that can be read",
    "{": "is no baseline that can be read",
    "[]": "it does not say that it is one",
    "null": "it does not say that it is one",
    '{"accumlint-baseline": 99, "findings": []}': "it is of version 99, and this accumlint reads",
    '{"accumlint-baseline": 1}': "it lists no findings",
    '{"accumlint-baseline": 1, "findings": [1]}': "finding 1 lacks a file, code,",
    '{"accumlint-baseline": 1, "findings": [{"file": "a", "code": "b", "scope": "c", '
    '"statement": "d", "count": true}]}': "finding 1 lacks a file, code,",
    "[" * 100_000: "is no baseline that can be read",
    "\udcff": "is no baseline that can be read",
}


@pytest.fixture(autouse=True)
def loop(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)


def held(folder: Path) -> dict[str, int]:
    """The known findings by file and scope."""
    document = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return {f"{f['file']}:{f['scope']}": f["count"] for f in document["findings"]}


@pytest.mark.parametrize("edit", EDITS)
def test_what_is_new_after_an_edit(run: Run, tmp_path: Path, edit: str) -> None:
    ran = run("baseline", "write")
    assert (ran.code, ran.out) == (0, f"1 finding known in {FILE}\n")
    source, new, known = EDITS[edit]
    (tmp_path / "train.py").write_text(source)
    ran = run("check", "--baseline", FILE)
    assert ran.code == (1 if new else 0)
    assert sum(": ACC102 " in line for line in ran.out.splitlines()) == new
    assert ("1 finding known in the baseline" in ran.out) == bool(known)


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_baseline_is_told_and_kept(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text, encoding="utf-8", errors="surrogateescape")
    before = (tmp_path / FILE).read_bytes()
    commands = [
        ["check", "--baseline", FILE],
        *(["baseline", c] for c in ("write", "prune", "show")),
    ]
    for command in commands:
        ran = run(*command)
        assert ran.code == 2
        assert ran.err.startswith(f"accumlint: {FILE}: ")
        assert BROKEN[text] in ran.err
        assert len(ran.err.splitlines()) == 1
    assert (tmp_path / FILE).read_bytes() == before


@pytest.mark.parametrize("command", [["check"], ["baseline", "show"]])
def test_a_baseline_that_is_not_there_is_told(run: Run, command: list[str]) -> None:
    ran = run(*command, "--baseline", "absent.json")
    assert ran.err == (
        "accumlint: absent.json: there is no baseline; `accumlint baseline write` makes it\n"
    )
    assert ran.code == 2


def test_a_baseline_where_it_cannot_be_written(run: Run) -> None:
    ran = run("baseline", "write", "--baseline", "absent/known.json")
    assert ran.err.startswith("accumlint: absent/known.json: cannot be written: ")
    assert ran.code == 2


def test_writing_some_files_keeps_the_others(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("again.py", "sub/gone.py"):
        (tmp_path / name).write_text(OTHER)
    run("baseline", "write")
    assert held(tmp_path) == {
        "again.py:train_again": 1,
        "sub/gone.py:train_again": 1,
        "train.py:train": 1,
    }
    (tmp_path / "sub" / "gone.py").unlink()
    (tmp_path / "train.py").write_text(LOOP + OTHER)
    run("baseline", "write", "train.py")
    assert held(tmp_path) == {
        "again.py:train_again": 1,
        "train.py:train": 1,
        "train.py:train_again": 1,
    }


def test_a_file_that_cannot_be_read_keeps_what_is_known_of_it(run: Run, tmp_path: Path) -> None:
    run("baseline", "write")
    (tmp_path / "train.py").write_text(LOOP + "def (:\n")
    for command in ("write", "prune"):
        ran = run("baseline", command)
        assert (ran.code, held(tmp_path)) == (2, {"train.py:train": 1})
        assert ran.err.splitlines()[-1].startswith("train.py:")


def test_pruning_forgets_what_is_gone_and_learns_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(LOOP + LOOP)
    run("baseline", "write")
    (tmp_path / "twice.py").write_text(LOOP)
    (tmp_path / "train.py").write_text(OTHER)
    assert run("baseline", "prune").code == 0
    assert held(tmp_path) == {"twice.py:train": 1}
    assert run("baseline", "show").out.splitlines() == [
        "twice.py: ACC102 in train: loss.backward()",
        f"1 finding known in {FILE}",
    ]


def test_a_setting_names_the_baseline_beside_its_file(run: Run, tmp_path: Path) -> None:
    sub = tmp_path / "sub"
    sub.mkdir()
    (sub / "train.py").write_text(LOOP)
    (sub / "accumlint.toml").write_text("baseline = 'known.json'\n")
    (sub / "known.json").write_text('{"accumlint-baseline": 1, "findings": []}')
    assert run("baseline", "write", "sub").code == 0
    assert "sub/known.json" in run("baseline", "write", "sub").out
    assert not (tmp_path / FILE).exists() or held(tmp_path) == {}
    assert run("check", "sub").code == 0
    assert run("check", "train.py").out.startswith(f"train.py:{FLAGGED}:")


def test_a_baseline_knows_files_only(run: Run) -> None:
    assert "`-` is none" in run("baseline", "write", "-").err
