"""`--fix` writes what `--diff` shows, keeps everything else as it was, and never leaves half a file."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from conftest import Run
from helpers import alone

from accumlint.check import check_bytes
from accumlint.config import Settings
from accumlint.diagnostics import fixing
from accumlint.files.inputs.discovery import Target
from accumlint.files.source import encode

# One defect with a safe fix, one with none, in the order of the lines.
SOURCE = """\
import torch.nn.functional as F


def train(model, loader, optimizer, scaler, limit):
    for images, labels in loader:
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        # The norm of the whole gradient.
        clip_grad_norm_(model.parameters(), limit)
        scaler.step(optimizer)
        scaler.update()


from torch.nn.utils import clip_grad_norm_
"""
FIXED = SOURCE.replace(
    "        # The norm", "        scaler.unscale_(optimizer)\n        # The norm"
)
DIFF = """\
--- train.py
+++ train.py
@@ -6,6 +6,7 @@
         loss = F.cross_entropy(model(images), labels)
         optimizer.zero_grad()
         scaler.scale(loss).backward()
+        scaler.unscale_(optimizer)
         # The norm of the whole gradient.
         clip_grad_norm_(model.parameters(), limit)
         scaler.step(optimizer)
"""


@pytest.fixture
def train(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text(SOURCE)
    return file


def test_fix_writes_the_file_and_says_so(run: Run, train: Path) -> None:
    ran = run("check", "--fix", "train.py")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "All clear: no finding in 1 file\nFixed 1 finding\n"
    assert train.read_text() == FIXED
    assert run("check", "--fix", "train.py").out == "All clear: no finding in 1 file\n"


def test_diff_shows_it_and_writes_nothing(run: Run, train: Path) -> None:
    ran = run("check", "--diff", "train.py")
    assert (ran.code, ran.out, ran.err) == (1, DIFF, "Would fix 1 finding\n")
    assert train.read_text() == SOURCE
    train.write_text(FIXED)
    assert run("check", "--diff", "train.py").code == 0
    train.write_text(SOURCE)
    assert run("check", "--diff", "--fix", "--exit-zero", "train.py").code == 0
    assert train.read_text() == SOURCE


def test_fixed_stdin_goes_to_stdout_and_the_rest_to_stderr(run: Run) -> None:
    ran = run("check", "--fix", "-", stdin=SOURCE.encode())
    assert (ran.code, ran.out) == (0, FIXED)
    assert "Fixed 1 finding" in ran.err
    ran = run("check", "--fix", "-", stdin=b"x = 1\r\n")
    assert (ran.code, ran.out) == (0, "x = 1\r\n")


def test_what_is_left_decides_the_exit_code(run: Run, train: Path) -> None:
    unscaled = SOURCE.replace("        scaler.update()\n", "")
    train.write_text(unscaled)
    ran = run("check", "--fix", "--select", "ACC201", "train.py")
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "Fixed 1 finding")
    ran = run("check", "--fix", "--exit-non-zero-on-fix", "--show-fixes", "train.py")
    assert ran.code == 1
    assert ran.err.endswith("- train.py:\n    1 x ACC204 (scaler-update-missing)\n")
    assert run("check", "--exit-non-zero-on-fix", "--fix", "train.py").code == 0


@pytest.mark.parametrize(
    "arguments", [("--ignore", "ACC201"), ("--select", "ACC4"), ("--min-confidence", "certain")]
)
def test_only_what_is_reported_is_fixed(run: Run, train: Path, arguments: tuple[str, ...]) -> None:
    reported = "ACC201" in run("check", *arguments, "train.py").out
    run("check", "--fix", *arguments, "train.py")
    assert train.read_text() == (FIXED if reported else SOURCE)


def test_ignores_are_kept(run: Run, train: Path) -> None:
    ignored = SOURCE.replace("limit)\n", "limit)  # accumlint: ignore[ACC201]\n")
    train.write_text(ignored)
    assert run("check", "--fix", "train.py").code == 0
    assert train.read_text() == ignored


def test_per_file_ignores_are_kept(run: Run, train: Path, tmp_path: Path) -> None:
    settings = '[tool.accumlint.per-file-ignores]\n"train.py" = ["ACC2"]\n'
    (tmp_path / "pyproject.toml").write_text(settings)
    assert run("check", "--fix", "train.py").code == 0
    assert train.read_text() == SOURCE


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (SOURCE.encode("utf-8-sig"), FIXED.encode("utf-8-sig")),
        (SOURCE.replace("\n", "\r\n").encode(), FIXED.replace("\n", "\r\n").encode()),
        (SOURCE.replace("\n", "\r").encode(), FIXED.replace("\n", "\r").encode()),
        (SOURCE.rstrip().encode(), FIXED.rstrip().encode()),
        (SOURCE.replace("    ", "\t").encode(), FIXED.replace("    ", "\t").encode()),
        (
            ("# coding: latin-1\n# é\n" + SOURCE).encode("latin-1"),
            ("# coding: latin-1\n# é\n" + FIXED).encode("latin-1"),
        ),
        (("x = '\f'\n\f\n" + SOURCE).encode(), ("x = '\f'\n\f\n" + FIXED).encode()),
    ],
    ids=["mark", "crlf", "cr", "no final newline", "tabs", "coding", "form feed"],
)
def test_everything_else_is_kept(run: Run, train: Path, before: bytes, after: bytes) -> None:
    train.write_bytes(before)
    assert run("check", "--fix", "train.py").code == 0
    assert train.read_bytes() == after


def test_a_statement_is_put_behind_a_last_line_without_an_end(run: Run, train: Path) -> None:
    source = SOURCE.partition("\n\n\nfrom")[0].replace("        scaler.update()", "").rstrip()
    train.write_text(source)
    run("check", "--fix", "--select", "ACC204", "train.py")
    assert train.read_text() == source + "\n        scaler.update()"


def test_mode_and_link_are_kept(run: Run, train: Path, tmp_path: Path) -> None:
    train.chmod(0o754)
    link = tmp_path / "link.py"
    link.symlink_to("train.py")
    assert run("check", "--fix", "link.py").code == 0
    assert link.is_symlink()
    assert train.read_text() == FIXED
    assert stat.S_IMODE(train.stat().st_mode) == 0o754


def test_a_file_that_cannot_be_written_stops_nobody(
    run: Run, train: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.py"
    other.write_text(SOURCE)
    replace = os.replace

    def refuse(source: str, target: str) -> None:
        if target.endswith("other.py"):
            raise PermissionError(13, "Permission denied")
        replace(source, target)

    monkeypatch.setattr("os.replace", refuse)
    ran = run("check", "--fix", ".")
    assert ran.code == 2
    assert ran.err == "other.py: cannot be written: Permission denied\n"
    assert "other.py:10:9: ACC201" in ran.out
    assert (train.read_text(), other.read_text()) == (FIXED, SOURCE)
    assert {file.name for file in tmp_path.iterdir()} == {"train.py", "other.py"}


def test_a_file_that_changed_meanwhile_is_left_alone(train: Path) -> None:
    target = Target("train.py", str(train), Settings(train.parent))
    (result,) = fixing.fix_files([target])
    train.write_text(SOURCE + "\n")
    (checked,) = fixing.written([result])
    assert "changed meanwhile" in checked.problems[0].message
    assert train.read_text() == SOURCE + "\n"
    assert len(checked.reports) == 1


def test_json_holds_the_fix_in_ruff_s_shape(run: Run, train: Path) -> None:
    (finding,) = json.loads(run("check", "--output-format", "json", "train.py").out)
    assert finding["fix"] == {
        "applicability": "safe",
        "message": "Call `scaler.unscale_(optimizer)` before clipping",
        "edits": [
            {
                "content": "        scaler.unscale_(optimizer)\n",
                "location": {"row": 9, "column": 1},
                "end_location": {"row": 9, "column": 1},
            }
        ],
    }
    assert json.loads(run("check", "--fix", "--output-format", "json", "train.py").out) == []


def test_full_shows_the_fix(run: Run, train: Path) -> None:
    out = run("check", "--output-format", "full", "train.py").out
    assert "ACC201 clip-before-unscale (error, certain) [*]\n" in out
    assert "Fix: Call `scaler.unscale_(optimizer)` before clipping\n" in out
    assert "+        scaler.unscale_(optimizer)\n" in out
    assert out.endswith("[*] 1 fixable with --fix\n")


def test_the_text_alone_can_be_fixed() -> None:
    checked = check_bytes(SOURCE.encode(), alone())
    assert fixing.fixed(SOURCE, checked.reports) == FIXED
    assert fixing.fixed(SOURCE, []) == SOURCE


def test_a_text_that_its_encoding_lacks_is_not_written() -> None:
    with pytest.raises(UnicodeEncodeError):
        encode("# ☃", b"# coding: latin-1\n")
