"""`accumlint doctor` says what is installed, what holds, what was read, and what is missing."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import pytest
from conftest import Run
from helpers import LOOP, unmarked

from accumlint import __version__
from accumlint.cli.commands import doctor
from accumlint.registry import packs


def section(out: str, title: str) -> list[str]:
    """The lines under a title."""
    body = out.partition(f"\n{title}\n")[2].partition("\n\n")[0]
    return [line.strip() for line in body.splitlines()]


def test_the_versions_come_first(run: Run) -> None:
    ran = run("doctor")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == f"accumlint {__version__}, rules {packs.version()}"
    assert platform.python_version() in lines[1]
    assert section(ran.out, "Rules") == [f"accumlint_rules: {len(packs.catalogue())} rules"]
    assert section(ran.out, "Settings of the current folder") == ["none: the defaults hold"]


def test_packages_have_their_version_or_what_installs_them(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"libcst": "1.9.0", "click": "8.2", "pathspec": "1.0", "trl": "0.20"}

    def version(package: str) -> str:
        return versions.get(package, "")

    monkeypatch.setattr(doctor, "_version", version)
    lines = section(run("doctor").out, "Packages")
    told = dict(line.split(maxsplit=1) for line in lines)
    assert told["libcst"] == "1.9.0 (check)"
    assert told["torch"] == "not installed; install accumlint[confirm] (confirm, run)"
    assert told["trl"] == "0.20"
    assert "deepspeed" not in told


def test_settings_and_the_cache_have_their_places(run: Run, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.accumlint]\nignore = ["ACC704"]\n')
    (tmp_path / "train.py").write_text(unmarked(LOOP))
    # What was changed just now may change again within the same time stamp: it is not kept.
    os.utime(tmp_path / "train.py", (1e9, 1e9))
    run("check", "train.py", "--cache-dir", "kept")
    out = run("doctor", "--cache-dir", "kept").out
    assert section(out, "Settings of the current folder") == ["pyproject.toml"]
    assert "ignored by the settings: ACC704" in section(out, "Rules")
    assert re.fullmatch(r"kept: [1-9]\d* files, 0\.\d MB", section(out, "Cache")[0])


def test_the_sandbox_says_what_it_leaves_open(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from accumlint.confirming import sandbox

    monkeypatch.setattr(sandbox, "available", lambda: sandbox.Sandbox(seccomp=True))
    lines = section(run("doctor").out, "Sandbox of `accumlint confirm`")
    assert lines[0] == "seccomp"
    assert any(line.startswith("not protected: reads: ") for line in lines)


@pytest.mark.torch
def test_files_are_read_and_their_missing_packages_named(run: Run, tmp_path: Path) -> None:
    head = (
        "import os, torch\nimport not_to_be_had.train\nfrom beside import f\nfrom . import near\n"
    )
    (tmp_path / "train.py").write_text(head + unmarked(LOOP))
    (tmp_path / "beside.py").write_text("import neither_trains\n")
    ran = run("doctor", ".")
    assert (ran.code, ran.err) == (0, "")
    assert section(ran.out, "Read") == [
        "2 files, 1 with a training loop",
        "1 backward call read: 1 whole",
    ]
    missing = section(ran.out, "Imported, neither installed nor in the project")
    assert missing == ["not_to_be_had (train.py:2)"]


def test_what_was_not_read_whole_has_its_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def lost(loss):\n    loss.backward()\n")
    lines = section(run("doctor", "train.py").out, "Read")
    assert lines[1] == "1 backward call read: 1 partly"
    assert lines[2].startswith("train.py:2: read partly: no optimizer step is reached")


def test_nothing_is_executed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"import evil\nopen('ran', 'w')\n{unmarked(LOOP)}")
    (tmp_path / "evil.py").write_text("open('ran', 'w')\n")
    assert run("doctor", "train.py").code == 0
    assert not (tmp_path / "ran").exists()


def test_what_cannot_be_read_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("loss.backward(\n")
    ran = run("doctor", "broken.py")
    assert ran.code == 2
    assert ran.err.startswith("broken.py:1: ")


def test_a_path_that_is_not_there_is_misuse(run: Run) -> None:
    ran = run("doctor", "nowhere.py")
    assert ran.code == 2
    assert "nowhere.py" in ran.err
