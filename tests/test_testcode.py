"""Findings in tests are one line per file, and fail no run, unless somebody asks for them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from conftest import Run
from helpers import LOOP

from accumlint import check, reading
from accumlint.config import Settings
from accumlint.files.inputs import testcode
from accumlint.files.inputs.discovery import Target

PATHS = [
    ("/repo/tests/train.py", True),
    ("/repo/src/test/unit/train.py", True),
    ("/repo/src/test_train.py", True),
    ("/repo/src/train_test.py", True),
    ("/repo/conftest.py", True),
    ("/repo/train.py", False),
    ("/repo/latest/contest.py", False),
    ("/repo/testing.py", False),
    # What lies above the project tells nothing, as far as can be known.
    ("/tests/a/b/c/train.py", False),
    ("/elsewhere/tests/train.py", True),
]


@pytest.mark.parametrize(("file", "expected"), PATHS)
def test_a_path_tells_a_test(file: str, expected: bool) -> None:
    target = Target(file, file, Settings(Path("/repo")))
    assert testcode.is_test_by_path(target) is expected


IDIOMS = [
    ("import pytest\ndef test_it(): ...\n", True),
    ("import unittest\nclass Case(unittest.TestCase): ...\n", True),
    ("from unittest import TestCase\nclass Case(TestCase): ...\n", True),
    ("from torch.testing import assert_close\ndef test_it(): ...\n", True),
    # A loop that evaluates on a test set is no test.
    ("def test_epoch(): ...\n", False),
    ("import pytest\ndef train(): ...\n", False),
]


@pytest.mark.parametrize(("text", "expected"), IDIOMS)
def test_what_frameworks_look_for_tells_a_test(text: str, expected: bool) -> None:
    program = reading.read(text, "/repo/check.py", check.Shared().project)
    assert testcode.is_test_by_idiom(program) is expected


@pytest.fixture
def tests() -> str:
    Path("tests").mkdir()
    file = os.path.join("tests", "loop.py")
    Path(file).write_text(LOOP)
    return file


def test_findings_in_tests_are_one_line_and_fail_nothing(run: Run, tests: str) -> None:
    told = run("check")
    (listed,) = [line for line in told.out.splitlines() if line.startswith(tests)]
    assert (told.code, "in a test" in listed, "--include-tests" in listed) == (0, True, True)
    assert json.loads(run("check", "--output-format", "json").out) == []
    log = json.loads(run("check", "--output-format", "sarif").out)["runs"][0]
    (note,) = log["invocations"][0]["toolExecutionNotifications"]
    assert (log["results"], "in a test" in note["message"]["text"]) == ([], True)


@pytest.mark.parametrize("asked", [("--include-tests",), (os.path.join("tests", "loop.py"),)])
def test_findings_in_tests_count_where_they_are_asked_for(
    run: Run, tests: str, asked: tuple[str, ...]
) -> None:
    told = run("check", *asked)
    assert (told.code, f"{tests}:" in told.out, "in a test" in told.out) == (1, True, False)


def test_a_hook_that_names_every_file_asks_for_no_test(run: Run, tests: str) -> None:
    # pre-commit passes --force-exclude, so that excluded files stay out although it names them.
    assert run("check", "--force-exclude", tests).code == 0


def test_tests_are_not_mended_unasked(run: Run, tests: str) -> None:
    run("check", "--fix", "--unsafe-fixes")
    assert Path(tests).read_text() == LOOP


def test_the_cache_knows_whether_a_test_was_asked_for(run: Run, tests: str) -> None:
    os.utime(tests, (0, 0))
    assert [run("check", *asked).code for asked in ((), (tests,), (), (tests,))] == [0, 1, 0, 1]
