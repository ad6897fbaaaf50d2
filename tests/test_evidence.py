"""The weights of evidence are fitted to what labels say, with the signs and the rare rows of the table kept."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers import FLAGGED, LOOP, ROOT, Ran

PLACE = """
[[loop]]
repository = "owner/name{number}"
commit = "0123456789abcdef0123456789abcdef01234567"
path = "train.py"
complete = true
"""
DEFECT = f"""
[[loop.defect]]
line = {FLAGGED}
code = "ACC101"
name = "mean-loss-not-normalised-by-tokens"
changes_gradients = true
why = "the labels are masked"
"""
SHIFTED = "\n\ndef shifted(labels):\n    return labels[:, 1:]\n"
MASKED = SHIFTED + "\n\ndef masked(labels, mask):\n    labels[mask] = -100\n"
PADDED = SHIFTED + "\n\ndef padded(rows):\n    return pad_sequence(rows)\n"
# What each repository shows, and whether its counts vary: two are told from the others by nothing.
REPOSITORIES = [
    *((MASKED, True) for _ in range(6)),
    *((PADDED, False) for _ in range(4)),
    *((SHIFTED, varies) for varies in (True, False, False)),
    (MASKED + "\n\ntokenizer.apply_chat_template\napply_chat_template(1)\n", True),
]


def asked(folder: Path) -> Ran:
    (folder / "labels").mkdir()
    text = 'title = "made up"\nsplit = "unseen"\n'
    for number, (more, varies) in enumerate(REPOSITORIES):
        text += PLACE.format(number=number) + (DEFECT if varies else "")
        home = folder / "files" / "project" / f"owner+name{number}@0123456789"
        (home / ".git").mkdir(parents=True)
        (home / "train.py").write_text(LOOP + more)
    (folder / "labels" / "made_up.toml").write_text(text)
    command = [sys.executable, ROOT / "benchmarks" / "evidence.py", "--labels", folder / "labels"]
    ran = subprocess.run(
        [*command, "--files", folder / "files", "--repeats", "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)


@pytest.mark.skipif(find_spec("scipy") is not None, reason="tells that scipy is missing")
def test_without_scipy_one_line_says_so(tmp_path: Path) -> None:
    assert asked(tmp_path) == Ran(2, "", "evidence.py: scipy is not installed\n")


@pytest.mark.skipif(find_spec("scipy") is None, reason="needs scipy, as the benchmark alone does")
def test_rows_are_weighed_by_the_repositories_that_show_them(tmp_path: Path) -> None:
    ran = asked(tmp_path)
    assert (ran.code, ran.err) == (0, "")
    # Of rows with one name, those of the first table that has it.
    rows = {
        cells[0]: cells[1:]
        for line in reversed(ran.out.splitlines())
        if (cells := [cell.strip() for cell in line.strip("|").split("|")])
    }
    assert rows["left out"][:3] == ["7", "0", "3"]
    assert float(rows["left out"][3]) >= 3
    assert rows["padded"][:3] == ["0", "4", "1"]
    # It speaks against varying counts here, which its sign does not allow.
    assert 0 <= float(rows["padded"][3]) < 1
    assert rows["chat"] == ["1", "0", "1", "-"]
    assert float(rows["fitted"][0]) < float(rows["by hand"][0])
