"""Input that cannot be read costs one clear line, never the run; what can be read is read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from conftest import Run
from helpers import FLAGGED, LOOP

DEEP = 1_000

READ = {
    "byte order mark": b"\xef\xbb\xbf" + LOOP.encode(),
    "CRLF": LOOP.replace("\n", "\r\n").encode(),
    "tabs": LOOP.replace("    ", "\t").encode(),
    "no newline at the end": LOOP.rstrip("\n").encode(),
    "latin-1": b"# coding: latin-1\n# \xe9\n" + LOOP.encode(),
    "form feed": LOOP.replace("def train", "\f\ndef train").encode(),
    "PEP 654": (LOOP + "try:\n    y = 1\nexcept* OSError:\n    y = 2\n").encode(),
    "PEP 695": (
        LOOP + "type Y[T] = list[T]\ndef f[T: (\n    int,\n    str)](x: T): ...\n"
    ).encode(),
    "PEP 701": (LOOP + 'y = f"{x["a"]} {f"{1 + 1}"}"\n').encode(),
    "wide characters": (LOOP + "größe = '梯度'\n").encode(),
}
REFUSED = {
    "syntax error": (LOOP + "def (:\n").encode(),
    "Python 2": (LOOP + "print 'done'\n").encode(),
    "undecodable": LOOP.encode() + b"# \xff\xfe\n",
    "unknown encoding": b"# coding: klingon\n" + LOOP.encode(),
    "NUL bytes": LOOP.encode() + b"\0\0",
    "UTF-16": LOOP.encode("utf-16"),
}
NESTED = {
    "parentheses": "x = " + "(" * DEEP + "1" + ")" * DEEP,
    "lists": "x = " + "[" * DEEP + "]" * DEEP,
    "calls": "x = " + "f(" * DEEP + ")" * DEEP,
    "attributes": "x = a" + ".b" * DEEP,
    "sums": "x = " + " + ".join("1" * DEEP),
    "unary": "x = " + "not " * DEEP + "1",
    "elifs": "if a:\n    pass\n" + "elif a:\n    pass\n" * DEEP,
    "blocks": "".join(" " * i + "if a:\n" for i in range(DEEP)) + " " * DEEP + "pass",
}


@pytest.mark.parametrize("name", READ)
def test_what_python_reads_is_checked(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").write_bytes(READ[name])
    ran = run("check")
    line = FLAGGED + {"latin-1": 2, "form feed": 1}.get(name, 0)
    assert ran.out.startswith(f"train.py:{line}:")
    assert ran.code == 1


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_told_and_the_run_goes_on(
    run: Run, tmp_path: Path, name: str
) -> None:
    (tmp_path / "broken.py").write_bytes(REFUSED[name])
    (tmp_path / "train.py").write_text(LOOP)
    ran = run("check")
    assert ran.err.startswith("broken.py:")
    assert len(ran.err.splitlines()) == 1
    assert ran.out.startswith(f"train.py:{FLAGGED}:")
    assert ran.code == 2


@pytest.mark.parametrize("name", NESTED)
def test_deep_nesting_is_read_or_refused_in_one_line(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").write_text(LOOP + NESTED[name] + "\n")
    ran = run("check")
    assert "Traceback" not in ran.err
    assert (ran.code, len(ran.err.splitlines())) in {(1, 0), (2, 1)}


NO_FIX = f"train.py:{FLAGGED}: warning: no fix was tried for a finding from here on: that takes too many steps\n"


def test_a_very_long_file_is_read_or_told_to_be_too_long(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP + "x = 1\n" * 20_000)
    ran = run("check")
    if ran.code == 0:
        assert ran.err.startswith("train.py: warning: not followed to the end: ")
        assert len(ran.err.splitlines()) == 1
    else:
        assert ran.code == 1
        # Each fix is tried on the whole file.
        assert ran.err in ("", NO_FIX)


def test_an_empty_file_is_clean(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(b"")
    assert run("check").code == 0


def test_a_missing_path_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    ran = run("check", "absent.py", "train.py")
    assert ran.err == "absent.py: no such file or folder\n"
    assert ran.out.startswith("train.py:")
    assert ran.code == 2


def test_a_run_that_finds_no_file_is_no_success(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    ran = run("check")
    assert (ran.code, ran.out, ran.err) == (2, "", ".: holds no Python file to check\n")


def test_one_of_several_folders_without_python_is_worth_a_warning(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "model.py").write_text("x = 1\n")
    ran = run("check", "notes", "model.py")
    assert (ran.code, ran.err) == (0, "notes: warning: holds no Python file to check\n")


def test_excluded_files_that_a_hook_names_are_no_mistake(run: Run, tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "train.py").write_text(LOOP)
    ran = run("check", "--force-exclude", "build/train.py")
    assert (ran.code, ran.out, ran.err) == (0, "No file was checked\n", "")


def test_an_unreadable_file_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "train.py").write_text(LOOP)
    monkeypatch.setattr("accumlint.check._bytes", refuse)
    ran = run("check")
    assert ran.err == "train.py: cannot be read: Permission denied\n"
    assert ran.code == 2


def test_a_loop_of_links_ends(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    (tmp_path / "again").symlink_to(tmp_path, target_is_directory=True)
    ran = run("check")
    assert (ran.code, ran.out.count(": ACC"), ran.err) == (1, 1, "")


def test_a_link_to_itself_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "knot.py").symlink_to("knot.py")
    ran = run("check", "knot.py")
    assert ran.err.startswith("knot.py: cannot be read: ")
    assert (ran.code, len(ran.err.splitlines())) == (2, 1)


def test_a_folder_called_like_a_file_is_walked(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.py").mkdir()
    (tmp_path / "x.py" / "train.py").write_text(LOOP)
    assert run("check", "x.py").out.startswith("x.py/train.py:")


def test_control_characters_in_a_name_do_not_reach_the_terminal(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a\x1b[31m\n.py").write_text(LOOP)
    for arguments in (["check"], ["check", "--output-format", "full"], ["check", "--show-files"]):
        ran = run(*arguments)
        assert "\x1b" not in ran.out
        assert r"a\x1b[31m\n.py" in ran.out


def test_a_fault_of_ours_names_the_file_and_the_run_goes_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(data: bytes) -> bool:
        if b"break down" in data:
            raise RecursionError("too deep")
        return True

    (tmp_path / "a.py").write_text("# break down\n")
    (tmp_path / "b.py").write_text(LOOP)
    monkeypatch.setattr("accumlint.files.prefilter.may_train", break_down)
    ran = run("check")
    assert ran.err.startswith("a.py: accumlint failed here")
    assert "RecursionError: too deep" in ran.err
    assert ran.out.startswith("b.py:")
    assert ran.code == 3


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run(
        [sys.executable, "-m", "accumlint", "check"],
        cwd=tmp_path,
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert (ran.returncode, ran.stderr) == (1, b"")
