"""Several processes tell what one tells, and one of them that dies is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import LOOP, ROOT, Ran

from accumlint.files import parallel

BROKEN = "def (:\n    loss.backward()\n"


def check(*arguments: str, cwd: Path, before: str = "") -> Ran:
    """The command in a process without threads, after some code."""
    code = f"import os, sys\n{before}\nfrom accumlint.cli import main\nmain(sys.argv[1:])"
    command = [sys.executable, "-c", code, "check", *arguments]
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    return Ran(ran.returncode, ran.stdout, ran.stderr)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Loops, files without any, one that cannot be read, and two that lean on each other."""
    for number in range(6):
        (tmp_path / f"train{number}.py").write_text(f"x = {number}\n{LOOP}")
        (tmp_path / f"data{number}.py").write_text(f"x = {number}\n")
    (tmp_path / "broken.py").write_text(BROKEN)
    for name in ("clean", "acc201"):
        for file in sorted((ROOT / "fixtures" / name).glob("*.py"))[:2]:
            (tmp_path / f"{name}_{file.name}").write_bytes(file.read_bytes())
    return tmp_path


@pytest.mark.parametrize("name", ["concise", "json"])
def test_several_processes_tell_what_one_does(tree: Path, name: str) -> None:
    arguments = ("--no-cache", "--output-format", name)
    one = check("-j", "1", *arguments, cwd=tree)
    assert one.code == 2
    assert check("-j", "3", *arguments, cwd=tree) == one


def test_what_several_found_is_known_to_the_cache(tree: Path) -> None:
    for file in tree.iterdir():
        os.utime(file, (1, 1))
    first = check("-j", "3", cwd=tree)
    (tree / "broken.py").unlink()
    fail = "from accumlint import check; check.check_bytes = None"
    again = check("-j", "1", cwd=tree, before=fail)
    assert again.out == first.out.replace("1 file could not be checked\n", "")
    assert (again.code, again.err) == (1, "")


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="forks nowhere else")
def test_a_process_that_dies_is_named_and_the_run_goes_on(tree: Path) -> None:
    die = (
        "from accumlint import check\n"
        "usual = check.check_bytes\n"
        "def checked(data, target, shared=None):\n"
        "    if target.shown == 'train1.py': os.abort()\n"
        "    return usual(data, target, shared)\n"
        "check.check_bytes = checked"
    )
    ran = check("-j", "2", "--no-cache", cwd=tree, before=die)
    assert ran.code == 3
    assert "train1.py: the process that checked this is gone" in ran.err
    assert [n for n in range(6) if f"train{n}.py:12:" in ran.out] == [0, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("asked", "items", "most"), [(1, 100, 1), (4, 2, 2), (4, 0, 1), (0, 15, 1)]
)
def test_no_more_processes_than_pay(asked: int, items: int, most: int) -> None:
    assert parallel.processes(asked, items) <= most
