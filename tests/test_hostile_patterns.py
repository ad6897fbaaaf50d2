"""No pattern of a .gitignore hangs a run, breaks it down, or means what it does not mean to git."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import pytest
from conftest import Run
from helpers import LOOP

from accumlint.files.gitignore import compiled

CLASSES = [
    ("[[:alpha:]]*.py", "a1.py", True),
    ("[[:alpha:]]*.py", "11.py", False),
    ("[![:alpha:]]*.py", "11.py", True),
    ("[[:upper:][:digit:]_]x", "_x", True),
    ("[[:punct:]]x", "-x", True),
    ("[[:punct:]]x", "xx", False),
    ("[[:space:]]x", " x", True),
    ("[[:klingon:]]x", "kx", False),
    ("[:alpha:]x", "lx", True),
    ("\\[[:alpha:]x", "[lx", True),
    ("[a--b]", "a", False),
    ("[z-a]", "z", False),
    ("[[a]", "a", True),
    ("[a&&b]", "&", True),
]


@pytest.mark.parametrize(("pattern", "name", "matches"), CLASSES)
def test_brackets_of_a_pattern_are_those_of_git(pattern: str, name: str, matches: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bool(compiled("/root", [pattern, "never"]).verdict(f"/root/{name}")) == matches


def test_patterns_that_mean_nothing_are_passed_over(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("".join(f"{pattern}/never\n" for pattern, *_ in CLASSES))
    (tmp_path / "train.py").write_text(LOOP)
    ran = run("check", ".")
    assert (ran.code, ran.err) == (1, "")


DEEP = [
    "**/a/**/a/**/b",
    "**/a" * 20 + "/**/b",
    "**/*a*a*a*/**/*b*b*b/**/*c*c*c",
    "a/**/a/**/a/**/c",
]


@pytest.mark.parametrize("pattern", DEEP)
def test_a_pattern_of_many_folders_is_answered_at_any_depth(pattern: str) -> None:
    patterns = compiled("/root", [pattern])
    start = time.process_time()
    assert not any(patterns.verdict("/root/" + "a/" * depth + "x") for depth in range(0, 800, 2))
    assert time.process_time() - start < 5
    deepest = {"b": "a/" * 100 + "b", "c": "abc/" * 3 + "aaa/bbb/ccc/c"}[pattern[-1]]
    assert patterns.verdict(f"/root/{'a/' * 30}{deepest}")


def test_patterns_in_each_folder_take_no_longer_than_once(run: Run, tmp_path: Path) -> None:
    patterns = "train.py\n" + "".join(f"x{i}*y\n" for i in range(3_000))
    folder = tmp_path
    for _ in range(30):
        (folder / ".gitignore").write_text(patterns)
        for number in range(10):
            (folder / f"m{number}.py").write_text("x = 1\n")
        (folder / "train.py").write_text(LOOP)
        folder = folder / "a"
        folder.mkdir()
    (folder / "main.py").write_text(LOOP)
    start = time.process_time()
    ran = run("check", ".", "-j", "1")
    assert time.process_time() - start < 10
    assert (ran.code, "train.py" in ran.out, ran.out.count("main.py:")) == (1, False, 1)


def test_patterns_past_all_reason_are_passed_over(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("train.py\n" + "*a" * 400_000 + "\n" + "x\n" * 50_000)
    (tmp_path / "train.py").write_text(LOOP)
    (tmp_path / "main.py").write_text(LOOP)
    start = time.process_time()
    ran = run("check", ".")
    assert (ran.code, "train.py" in ran.out) == (1, False)
    assert time.process_time() - start < 20
