"""No name and no text of a hostile tree commands a terminal or the log of a CI system, whatever prints it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import Run
from helpers import LOOP, Ran, alone

from accumlint.check import check_bytes
from accumlint.cli.watch_mode import RUN
from accumlint.common.memo import Memory
from accumlint.config import setting_keys
from accumlint.diagnostics.reporting.diff import difference
from accumlint.diagnostics.reporting.terminal import Look

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such names")

EVIL = "\x1b[31m \x1b]0;title\x07 \x9b31m \u202e \x08 ##vso[task.complete] ##[error]x <script>"
FIXABLE = f"""\
from torch.nn.utils import clip_grad_norm_


def train(model, loader, optimizer, scaler, limit):
    '''
    ::error::here
    {EVIL}
    '''
    for batch in loader:
        optimizer.zero_grad()
        scaler.scale(model(batch, "{EVIL}")).backward()  # {EVIL}
        '''{EVIL}
        ::error::there'''
        clip_grad_norm_(model.parameters(), limit)
        scaler.step(optimizer)
        scaler.update()
"""
FLAGGED = LOOP.replace("# error: ACC102", f"# {EVIL}")
NAMES = ["::error::x.py", " ::error::y.py", "a\x1b[31m\x07.py", "b\n::error::z.py", "c\r::error::z.py",
         "##vso[task.complete].py", "##[error].py", "d\u202e\x9b31m.py", 'e"\\.py', "f\udcff.py",
         "g]]>\ufffe\uffff.py"]  # fmt: skip
BROKEN = ["::error::broken.py", "broken\x1b[31m\n::error::.py"]
FOLDER = "::error::\x1b[31mfolder"

# What must not be written raw, and what opens a command of a log.
_RAW = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]"
)
_COMMAND = re.compile(r"^\s*::[\w-]+.*|.*##(?:vso)?\[.*", re.MULTILINE)
# The commands that are meant.
_MEANT = re.compile(r"::(error|warning|notice) (file|title)=[^:]*|##vso\[task\.logissue [^\]]*\]")


def raw(ran: Ran) -> list[str]:
    """What a terminal or a log would obey of what a command printed."""
    text = ran.out + ran.err
    commands = (found[0] for found in _COMMAND.finditer(text))
    return [*_RAW.findall(text), *(row for row in commands if not _MEANT.match(row))]


def planted(folder: Path) -> Path:
    """The files of the hostile tree, in a folder."""
    for number, name in enumerate(NAMES):
        (folder / name).write_text(FIXABLE if number % 2 else FLAGGED)
    for name in BROKEN:
        (folder / name).write_text("def (:\n    loss.backward()\n")
    (folder / FOLDER).mkdir()
    (folder / FOLDER / "train.py").write_text(FIXABLE)
    cell: dict[str, object] = {
        "cell_type": "code",
        "id": EVIL,
        "metadata": {},
        "outputs": [],
        "source": FIXABLE,
    }
    (folder / "::error::\x1b[31mn.ipynb").write_text(json.dumps({"cells": [cell]}))
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return planted(tmp_path)


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree whose files are old enough for their results to be kept."""
    top = tmp_path_factory.mktemp("hostile")
    for name in ("home", "tree"):
        (top / name).mkdir()
    folder = planted(top / "tree")
    for file in (folder, *folder.rglob("*")):
        os.utime(file, (1, 1))
    return folder


@pytest.mark.parametrize("statistics", [False, True], ids=["findings", "statistics"])
@pytest.mark.parametrize("name", setting_keys.FORMATS)
def test_no_format_prints_what_is_obeyed(
    run: Run, checked: Path, monkeypatch: pytest.MonkeyPatch, name: str, statistics: bool
) -> None:
    monkeypatch.chdir(checked)
    # The key of a cache lies in its user's home.
    monkeypatch.setenv("XDG_CACHE_HOME", str(checked.with_name("home")))
    shown = ("--output-format", name, *(["--statistics"] if statistics else []))
    ran = run("check", "--cache-dir", str(checked.with_name("cache")), *shown)
    assert ran.code == 2
    assert raw(ran) == []
    if ran.out.startswith("<?xml"):
        # Whoever reads a report refuses all of it for one character.
        assert len(list(ElementTree.fromstring(ran.out))) > len(NAMES)


COMMANDS = {
    "files": ("check", "--show-files"),
    "coverage": ("check", "--coverage"),
    "stdin": ("check", "-", "--stdin-filename", "::error::\x1b[31m.py"),
    "no file": ("check", "::error::\x1b[31m"),
    "no revision": ("check", "--diff-base", "::error::\x1b[31m"),
    "no rule": ("check", "--select", "::error::\x1b[31m"),
    "no option": ("check", "--::error::\x1b[31m"),
    "no command": ("::error::\x1b[31m",),
    "no setting": ("check", "--config", "::error::\x1b[31m=1"),
    "fixes": ("check", "--fix", "--show-fixes"),
    "ignores": ("check", "--add-ignore=\x1b[31m"),
    "a trace": ("trace", NAMES[1]),
    "all traces": ("trace", "--all", NAMES[2]),
    "a trace of a notebook": ("trace", "::error::\x1b[31mn.ipynb"),
    "no trace": ("trace", "::error::\x1b[31m"),
    "a trace of what is broken": ("trace", BROKEN[1]),
    "a trace as JSON": ("trace", "--output-format", "json", NAMES[0]),
    "a trace as SVG": ("trace", "--output-format", "svg", NAMES[0]),
    "settings": ("config", FOLDER),
    "no rule's page": ("rule", "::error::\x1b[31m"),
    "a baseline": ("baseline", "write", "--baseline", "::error::\x1b[31m.json"),
    "no baseline": ("baseline", "show", "--baseline", "::error::\x1b[31m.json"),
    "no cache": ("clean", "--cache-dir", FOLDER),
    "init": ("init", "--pre-commit"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_prints_what_is_obeyed(run: Run, tree: Path, name: str) -> None:
    ran = run(*COMMANDS[name], stdin=FIXABLE.encode())
    assert ran.out + ran.err
    assert raw(ran) == []


def test_no_warning_prints_what_is_obeyed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the first file that is too much to read, which lies in a folder of the tree."""
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "m.py").write_text(f"def go(loss):\n    loss.backward()\n{FIXABLE}")
    (tmp_path / FOLDER / "train.py").write_text(f"from m import go\n{FIXABLE}    go(loss)\n")
    monkeypatch.setattr(Memory.__init__, "__defaults__", (10,))
    ran = run("check", "--no-cache", str(Path(FOLDER, "train.py")))
    assert "they are too much to read" in ran.err
    assert raw(ran) == []


def test_known_findings_and_a_cache_are_listed_without_what_is_obeyed(run: Run, tree: Path) -> None:
    run("baseline", "write")
    shown = run("baseline", "show")
    assert shown.out.count("ACC") > 5
    assert raw(shown) == []
    run("check", "--cache-dir", "::error::\x1b[31mcache")
    (tree / "new.py").write_text(LOOP)
    # A result is not kept while files of the project are so new that they may still change.
    for file in tree.rglob("*.py"):
        os.utime(file, (1, 1))
    run("check", "--cache-dir", "::error::\x1b[31mcache", "new.py")
    cleaned = run("clean", "--cache-dir", "::error::\x1b[31mcache")
    assert cleaned.out.startswith("Removed ")
    assert raw(cleaned) == []


SETTINGS = [
    '::error::x = "\x1b[31m"',
    'select = ["::error::\\u001b[31m"]',
    'baseline = "::error::\\u001b[31m"',
    'extend = "::error::\\u001b[31m"',
    'rule-folders = ["::error::\\u001b[31m"]',
    'cache-dir = "::error::\\u001b[31m"',
    '"::error::\\u001b[31m" = 1',
    'exclude = ["::error::\\u001b[31m"]',
    'per-file-ignores = { "::error::\\u001b[31m" = ["\\u001b[31m"] }',
    'output-format = "::error::\\u001b[31m"',
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("folder", [".", FOLDER])
def test_no_setting_prints_what_is_obeyed(run: Run, tree: Path, settings: str, folder: str) -> None:
    (tree / folder / "accumlint.toml").write_text(settings)
    for arguments in (
        ["check", folder],
        ["config", folder],
        ["check", "--config", f"{folder}/accumlint.toml"],
    ):
        assert raw(run(*arguments)) == []


@pytest.mark.parametrize("where", ["a terminal", "GITHUB_ACTIONS", "TF_BUILD"])
def test_a_diff_is_written_out_where_it_is_read(
    run: Run, tree: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    if where == "a terminal":
        monkeypatch.setattr("accumlint.cli.check_run._is_read", bool)
    else:
        monkeypatch.setenv(where, "true")
    ran = run("check", "--diff", "--unsafe-fixes", "--show-fixes", "--color", "never")
    assert ran.out.count("+++ ") > 4
    assert raw(ran) == []


def test_a_diff_that_a_program_reads_is_verbatim(run: Run, tree: Path) -> None:
    patch = run("check", "--diff", "--color", "never", "a\x1b[31m\x07.py", NAMES[3]).out
    for command in (["git", "apply", "-p0", "-"], ["git", "apply", "-p0", "-R", "-"]):
        subprocess.run(command, cwd=tree, input=patch.encode(), check=True)
    assert EVIL in patch
    assert "\n::error::z" not in patch


def test_tabs_and_line_ends_of_a_diff_stay() -> None:
    rows = list(difference("a\r\n\tx\r\n", "a\r\n\ty\r\n", "x.py", Look(), verbatim=False))
    assert rows[3:] == [" a\n", "-\tx\n", "+\ty\n"]


@pytest.mark.parametrize("how", [["-m", "accumlint"], ["-c", RUN]], ids=["-m", "--watch"])
def test_nothing_is_imported_from_the_folder_that_is_checked(
    tmp_path: Path, how: list[str]
) -> None:
    evil = f"open({str(tmp_path / 'was_here')!r}, 'w').close()\n"
    for name in ("click", "libcst", "pathspec", "json", "evil_rules", "torch"):
        (tmp_path / f"{name}.py").write_text(evil)
    (tmp_path / "evil.dist-info").mkdir()
    (tmp_path / "evil.dist-info" / "METADATA").write_text("Name: evil\nVersion: 1\n")
    (tmp_path / "evil.dist-info" / "entry_points.txt").write_text(
        "[accumlint.rules]\nevil = evil_rules\n"
    )
    if how[0] == "-c":
        (tmp_path / "accumlint.py").write_text(evil)
    (tmp_path / "train.py").write_text(LOOP)
    command = [sys.executable, *how, "check", "--no-cache", "train.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (1, "")
    assert not (tmp_path / "was_here").exists()


def test_a_hover_shows_no_picture_of_a_message(tmp_path: Path) -> None:
    pytest.importorskip("lsprotocol", reason="the server needs pygls")
    from lsprotocol import types

    from accumlint.server import protocol

    checked = check_bytes(LOOP.encode(), alone("x.py"))
    evil = "`a` ![x](https://example.com/x.png) <img src=x> \x1b[31m"
    reports = [replace(report, message=evil, condition=evil) for report in checked.reports]
    here = types.Position(0, 0)
    told = protocol.hover(reports, types.Range(here, here)).contents
    assert isinstance(told, types.MarkupContent)
    before, _, code = told.value.partition("```text")
    assert "`a`" in before
    assert not re.search(r"(?<!\\)(\[x|<img)|\x1b", before)
    assert "\x1b" not in code
