"""A hostile tree cannot hang a run, break it down, or make it grow."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Run
from helpers import LOOP

from accumlint.files.gitignore import compiled
from accumlint.files.regular import LARGEST, SETTINGS

unix = pytest.mark.skipif(sys.platform == "win32", reason="makes links and pipes as Unix does")

Make = Callable[[Path], object]
NO_FILE = "it is no regular file"


def pipe(file: Path) -> None:
    os.mkfifo(file)


def endless(file: Path) -> None:
    file.symlink_to("/dev/zero")


def terminal(file: Path) -> None:
    file.symlink_to("/dev/tty")


def listening(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        # The path of a socket is short.
        here = os.getcwd()
        os.chdir(file.parent)
        server.bind(file.name)
        os.chdir(here)


def large(file: Path) -> None:
    with open(file, "wb") as new:
        new.truncate(LARGEST + 1)


MADE: dict[str, Make] = {
    "a pipe": pipe, "an endless device": endless, "a terminal": terminal, "a socket": listening,
    "a large file": large,
}  # fmt: skip
TOO_LARGE = f"it is larger than {LARGEST // 1024 // 1024} MiB"
TOO_MUCH = f"it is larger than {SETTINGS // 1024 // 1024} MiB"
# What is in the way of a command, and what it says of a pipe or a device, and of a large file ("" for nothing).
IN_THE_WAY: dict[str, tuple[str, tuple[str, ...], str, str]] = {
    "a file": (
        "x.py", ("check", "x.py", "train.py"),
        f"x.py: cannot be read: {NO_FILE}", f"x.py: cannot be read: {TOO_LARGE}",
    ),
    "a notebook": (
        "x.ipynb", ("check", "x.ipynb", "train.py"),
        f"x.ipynb: cannot be read: {NO_FILE}", f"x.ipynb: cannot be read: {TOO_LARGE}",
    ),
    "a file of the tree": ("x.py", ("check", "."), "", f"x.py: cannot be read: {TOO_LARGE}"),
    "patterns": (".gitignore", ("check", "."), "", ""),
    "patterns above": ("../.gitignore", ("check", "."), "", ""),
    "settings": ("accumlint.toml", ("check",), "", f"accumlint: accumlint.toml: cannot be read: {TOO_MUCH}"),
    "a project": ("pyproject.toml", ("check",), "", f"accumlint: pyproject.toml: cannot be read: {TOO_MUCH}"),
    "settings that are named": (
        "x.toml", ("check", "--config", "x.toml"),
        "accumlint check: Invalid value for '--config': 'x.toml' is neither a file nor KEY=VALUE.",
        f"accumlint: x.toml: cannot be read: {TOO_MUCH}",
    ),
    "a baseline": (
        "known.json", ("check", "--baseline", "known.json"),
        f"cannot be read: {NO_FILE}", f"accumlint: known.json: cannot be read: {TOO_LARGE}",
    ),
    "a baseline to show": (
        "known.json", ("baseline", "show", "--baseline", "known.json"),
        f"cannot be read: {NO_FILE}", f"accumlint: known.json: cannot be read: {TOO_LARGE}",
    ),
    "a module": ("helper.py", ("check", "train.py"), "", ""),
    "a file to trace": (
        "x.py", ("trace", "x.py"),
        f"accumlint: x.py: cannot be read: {NO_FILE}", f"accumlint: x.py: cannot be read: {TOO_LARGE}",
    ),
    "a file to fix": (
        "x.py", ("check", "--fix", "x.py"),
        f"x.py: cannot be read: {NO_FILE}", f"x.py: cannot be read: {TOO_LARGE}",
    ),
    "a file to start from": (
        "pyproject.toml", ("init",), f"accumlint: cannot write here: {NO_FILE}",
        f"accumlint: pyproject.toml: cannot be read: {TOO_MUCH}",
    ),
}  # fmt: skip


@unix
@pytest.mark.timeout(60)
@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("name", IN_THE_WAY)
def test_only_regular_files_are_read_and_not_more_than_there_is_room_for(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, made: str
) -> None:
    file, arguments, of_no_file, of_a_large_one = IN_THE_WAY[name]
    told = of_a_large_one if made == "a large file" else of_no_file
    tree = tmp_path / "tree"
    (tree / ".git").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    (tree / "train.py").write_text(f"from helper import seed\n{LOOP}")
    MADE[made](tree / file)
    monkeypatch.chdir(tree)
    ran = run(*arguments)
    # Of a baseline the option follows the link.
    assert [row[-len(told) :] for row in ran.err.splitlines()[:1]] == ([told] if told else [])
    assert ran.code == (2 if told else 1)
    if arguments[0] == "check" and not told.startswith("accumlint"):
        assert ("train.py:12:" in ran.out) == (
            "train.py" in arguments or "." in arguments or not told
        )


@unix
@pytest.mark.parametrize("name", ["pyproject.toml", "accumlint.toml", ".pre-commit-config.yaml"])
def test_init_writes_through_no_link(run: Run, tmp_path: Path, name: str) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for theirs, text in (("theirs.toml", ""), ("theirs.yaml", "repos:\n- repo: local\n")):
        (tmp_path / theirs).write_text(text)
    for target in ("theirs.toml", "theirs.yaml", "none"):
        (tree / name).symlink_to(tmp_path / target)
        before = {file.name: file.read_text() for file in tmp_path.glob("theirs*")}
        os.chdir(tree)
        run("init", "--pre-commit")
        assert {file.name: file.read_text() for file in tmp_path.glob("theirs*")} == before
        assert not (tmp_path / "none").exists()
        (tree / name).unlink()


def a_link(tree: Path, outside: Path) -> str:
    (tree / "report").symlink_to(outside / "precious")
    return "report"


def a_link_to_what_is_not_there(tree: Path, outside: Path) -> str:
    (tree / "report").symlink_to(outside / "new")
    return "report"


def a_folder_that_is_a_link(tree: Path, outside: Path) -> str:
    (tree / "reports").symlink_to(outside)
    return "reports/new"


def a_link_within(tree: Path, outside: Path) -> str:
    (tree / "report").symlink_to(".git/config")
    return str(tree / "report")


def a_pipe(tree: Path, outside: Path) -> str:
    os.mkfifo(tree / "report")
    return "report"


CLIPPED = LOOP.replace(
    "\n        optimizer.step()", "\n            CLIP\n        optimizer.step()"
).replace("CLIP", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)")


@unix
@pytest.mark.parametrize("is_repository", [True, False])
@pytest.mark.parametrize("path", [".", "train.py"])
@pytest.mark.parametrize("option", ["--fix", "--add-ignore"])
def test_no_link_of_the_tree_says_which_file_is_changed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, path: str,
    is_repository: bool,
) -> None:  # fmt: skip
    """Their loop has a fix that is safe: it clips in each micro-batch."""
    tree, theirs = tmp_path / "tree", tmp_path / "theirs.py"
    tree.mkdir()
    if is_repository:
        (tree / ".git").mkdir()
    theirs.write_text(CLIPPED)
    (tree / "train.py").symlink_to(theirs)
    monkeypatch.chdir(tree)
    ran = run("check", "--select", "ACC202", option, path)
    assert theirs.read_text() == CLIPPED
    assert ran.err.startswith("train.py: cannot be written: it is a link that leads to a file ")
    assert ran.code == 2
    # Whose it is may name it.
    assert run("check", "--select", "ACC202", option, str(theirs)).code == 0
    assert theirs.read_text() != CLIPPED


DETOURS = (a_link, a_link_to_what_is_not_there, a_folder_that_is_a_link, a_link_within, a_pipe)
WRITING: dict[str, Callable[[str], tuple[str, ...]]] = {
    "check": lambda file: ("check", "--output", f"sarif={file}"),
    "trace": lambda file: ("trace", "train.py", "--output", f"html={file}"),
    "baseline": lambda file: ("baseline", "write", "--baseline", file),
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("command", WRITING)
@pytest.mark.parametrize("detour", DETOURS, ids=lambda detour: detour.__name__)
def test_no_link_of_the_tree_says_where_a_report_is_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    detour: Callable[[Path, Path], str], command: str,
) -> None:  # fmt: skip
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    (tree / ".git").mkdir(parents=True)
    outside.mkdir()
    (tree / "train.py").write_text(LOOP)
    for precious in (outside / "precious", tree / ".git" / "config"):
        # What a command that reads its file before it writes it takes for its own.
        precious.write_text('{"accumlint-baseline": 1, "findings": []}')
    monkeypatch.chdir(tree)
    ran = run(*WRITING[command](detour(tree, outside)))
    assert ran.code == 2
    assert "cannot be written: it is " in ran.err or "cannot be read" in ran.err
    assert [file.name for file in outside.iterdir()] == ["precious"]
    for precious in (outside / "precious", tree / ".git" / "config"):
        assert precious.read_text() == '{"accumlint-baseline": 1, "findings": []}'


def test_settings_that_are_found_name_no_baseline_elsewhere_to_write(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "train.py").write_text(LOOP)
    (tree / "accumlint.toml").write_text('baseline = "../elsewhere.json"\n')
    monkeypatch.chdir(tree)
    ran = run("baseline", "write")
    assert (ran.code, len(ran.err.splitlines())) == (2, 1)
    assert not (tmp_path / "elsewhere.json").exists()
    assert run("baseline", "write", "--baseline", "../elsewhere.json").code == 0
    assert (tmp_path / "elsewhere.json").exists()


@pytest.mark.parametrize("command", ["check", "confirm", "trace"])
@pytest.mark.parametrize(
    "name", ["--config=settings.py", "--config=rule-folders=['rules'].py", "-h.py", "--fix"]
)
def test_no_file_is_taken_for_an_option(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, name: str
) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "acc999_evil.py").write_text("open('was_here', 'w')\n")
    (tmp_path / "settings.py").write_text('rule-folders = ["rules"]\n')
    (tmp_path / "train.py").write_text(LOOP)
    (tmp_path / name).write_text(LOOP)
    monkeypatch.chdir(tmp_path)
    ran = run(command, name, "train.py")
    assert (ran.code, ran.out) == (2, "")
    told = f"accumlint: {name}: is an option and the name of a file; write ./{name}\n"
    assert ran.err == told
    assert not (tmp_path / "was_here").exists()


def test_a_file_that_is_called_like_an_option_is_checked(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-.py").write_text(LOOP)
    assert run("check", "./-.py").code == run("check", "--", "-.py").code == run("check").code == 1


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


SETTINGS_OF_MEASURE = {
    "selectors": "select = [" + ", ".join(f'"ACX{i}"' for i in range(30_000)) + "]\n",
    "a deep key": ".".join(["a"] * 100_000) + " = 1\n",
    "a deep table": "[" + ".".join(["'a'"] * 100_000) + "]\n",
    "excludes": "exclude = [" + ", ".join(f'"x{i}*y"' for i in range(30_000)) + "]\n",
    "patterns with rules": "[per-file-ignores]\n" + "".join(f'"x{i}*y" = ["ACC1"]\n' for i in range(20_000)),
    "an endless number": f"x = {'9' * 5_000}\n",
    "half of a character": 'select = ["\\ud800"]\n',
    "a path with NUL": 'baseline = "a\\u0000b"\n',
    "escapes": 'ignore = ["' + "\\u0041" * 150_000 + '"]\n',
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS_OF_MEASURE)
def test_settings_past_all_measure_are_read_or_refused_in_one_line(
    run: Run, tmp_path: Path, name: str
) -> None:
    (tmp_path / "accumlint.toml").write_text(SETTINGS_OF_MEASURE[name])
    for number in range(3):
        (tmp_path / f"x{number}.py").write_text(LOOP)
    start = time.process_time()
    ran = run("check", ".", "-j", "1")
    assert time.process_time() - start < 10
    assert ran.code in (0, 1, 2)
    assert (ran.code == 2) == (len(ran.err.splitlines()) == 1), ran.err
    assert len(ran.out.splitlines()) < 300


def test_patterns_past_all_reason_are_passed_over(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("train.py\n" + "*a" * 400_000 + "\n" + "x\n" * 50_000)
    (tmp_path / "train.py").write_text(LOOP)
    (tmp_path / "main.py").write_text(LOOP)
    start = time.process_time()
    ran = run("check", ".")
    assert (ran.code, "train.py" in ran.out) == (1, False)
    assert time.process_time() - start < 20


# What Python knows as an encoding and is none of text, or one in which ASCII is not itself.
CODECS = [
    "rot13", "hex", "base64", "zip", "bz2", "uu", "quopri", "idna", "punycode", "undefined", "utf-7",
    "unicode_escape", "raw_unicode_escape", "utf-16", "utf-32-le", "cp037",
]  # fmt: skip


@pytest.mark.parametrize("line", [1, 2])
@pytest.mark.parametrize("codec", CODECS)
def test_an_encoding_of_no_source_is_told_in_one_line(
    run: Run, tmp_path: Path, codec: str, line: int
) -> None:
    head = "#!/usr/bin/env python\n" * (line - 1)
    (tmp_path / "x.py").write_text(f"{head}# coding: {codec}\n{LOOP}")
    (tmp_path / "train.py").write_text(LOOP)
    ran = run("check")
    assert (ran.code, len(ran.err.splitlines()), ran.err[:6]) == (2, 1, "x.py: ")
    assert ran.out.startswith("train.py:11:")


def test_no_encoding_hides_a_word(run: Run, tmp_path: Path) -> None:
    hidden = LOOP.replace("backward", r"\x62ackward").replace("zero_grad", r"\x7aero_grad")
    (tmp_path / "x.py").write_text(f"# coding: unicode_escape\n{hidden}")
    assert run("check").code == 2


@pytest.mark.parametrize("codec", ["latin-1", "cp1252", "gbk", "shift_jis", "euc-jp", "koi8-r"])
def test_other_encodings_are_read(run: Run, tmp_path: Path, codec: str) -> None:
    (tmp_path / "x.py").write_text(f"# coding: {codec}\n{LOOP}")
    assert run("check").out.startswith("x.py:12:")


NUMBERS = [
    "10**400", "range(10**400)", "range(10**30)", "range(-2**63, 2**63)", "1e400", "int(1e400)", "float('inf')",
    "round(5, -10**10)", "pow(10, 10**10)", "1 << 10**9", "9" * 400, "0x" + "f" * 3900, "[0] * 10**10",
    "'a' * 10**400", "sorted(range(10**9))", "10**10**10", "7 / 10**400", "0.0 ** -1", "len(range(10**400))",
]  # fmt: skip
PLACES = {
    "a constant": "STEPS = {0}\n" + LOOP.replace("range(accumulation_steps)", "range(STEPS)"),
    "a loop": LOOP.replace("range(accumulation_steps)", "{0}"),
    "a range": LOOP.replace("range(accumulation_steps)", "range({0})"),
    "a divisor": LOOP.replace("loss.backward()", "(loss / ({0})).backward()"),
    "a gradient": LOOP.replace(
        "        optimizer.step()",
        "        for p in model.parameters():\n            p.grad.mul_({0})\n        optimizer.step()",
    ),
    "a condition": LOOP.replace(
        "optimizer.step()", "optimizer.step() if len(loader) % ({0}) == 0 else None"
    ),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("place", PLACES)
def test_numbers_past_all_measure_are_no_fault(run: Run, tmp_path: Path, place: str) -> None:
    for at, number in enumerate(NUMBERS):
        (tmp_path / f"x{at}.py").write_text(PLACES[place].format(number))
    start = time.process_time()
    ran = run("check", "--no-cache", "-j", "1")
    assert (ran.code in (0, 1), ran.err) == (True, "")
    assert time.process_time() - start < 40


# The parts of a notebook's JSON, `{0}` for a loop's text, and what is told of it ("" where the loop is read).
NOTEBOOKS = {
    "cells twice": ('{{"cells": [], "cells": [{{"cell_type": "code", "source": {0}}}]}}', ""),
    "cells twice, more at first": (
        '{{"cells": [1, 2], "cells": [{{"cell_type": "code", "source": {0}}}]}}', "",
    ),
    "sources twice": (
        '{{"cells": [{{"cell_type": "code", "source": ["x", "y"], "source": [{0}]}}]}}', "",
    ),
    "half of a character": (
        '{{"cells": [{{"cell_type": "code", "source": [{0}, "\\ud800"]}}]}}',
        "x.ipynb:1: is no notebook: cell 1 holds half of a character",
    ),
    "depth": (
        '{{"cells": [{{"cell_type": "code", "source": {0}, "metadata": ' + "[" * 99_999 + "]" * 99_999 + "}}]}}",
        "x.ipynb: is no notebook: its JSON cannot be read",
    ),
    "numbers past all measure": (
        '{{"cells": [{{"cell_type": "code", "source": {0}, "metadata": ' + "9" * 5_000 + "}}]}}",
        "x.ipynb: is no notebook: its JSON cannot be read",
    ),
}  # fmt: skip


@pytest.mark.parametrize("escaped", [False, True], ids=["plain", "with escapes"])
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_read_or_refused_in_one_line(
    run: Run, tmp_path: Path, name: str, escaped: bool
) -> None:
    text, told = NOTEBOOKS[name]
    source = json.dumps(LOOP)
    if escaped:
        source = source.replace("b", "\\u0062").replace("t", "\\u0074")
    (tmp_path / "x.ipynb").write_text(text.format(source))
    ran = run("check", ".")
    assert ran.err.strip() == told
    assert (ran.code, "x.ipynb:cell 1:11:" in ran.out) == ((2, False) if told else (1, True))


def wide(word: str) -> str:
    """A word in letters of East Asian width, which Python takes for those of ASCII."""
    return "".join(chr(ord(c) + 0xFEE0) if c.isalpha() else c for c in word)


@pytest.mark.parametrize("suffix", [".py", ".ipynb"])
@pytest.mark.parametrize("word", ["backward", "zero_grad", "step"])
def test_no_letter_that_python_takes_for_another_hides_a_word(
    run: Run, tmp_path: Path, word: str, suffix: str
) -> None:
    text = LOOP.replace(f".{word}", f".{wide(word)}")
    if suffix == ".ipynb":
        text = json.dumps({"cells": [{"cell_type": "code", "source": text}]})
    (tmp_path / f"x{suffix}").write_text(text)
    ran = run("check", ".")
    assert (ran.code, len(ran.err.splitlines())) == (2, 1)
    assert f"spells `{word}` with characters that Python reads as other ones" in ran.err
    remark = f"# {wide('LOSS')}\uff1a \u640d\u5931\uff0c\u2460\n"
    (tmp_path / f"x{suffix}").unlink()
    (tmp_path / "y.py").write_text(remark + LOOP, encoding="utf-8")
    assert run("check", ".").out.startswith("y.py:12:")


# What `x` is at first, and the statement that follows forty times.
GROWING = [
    ("x = 7", "x = x * x"),
    ("x = 7 / 3", "x = x * x + 1 / x"),
    ("x = 'ab'", "x = x + x"),
    ("x = [1]", "x = x + x"),
    ("x = [1]", "x = x * 999"),
    ("x = [1]", "x += x"),
    ("x = []", "x.append(x)"),
    ("x = (1,)", "x = x + x"),
    ("x = model(0).loss", "x = x + x"),
    ("x = model", "x = (x == x) == (x == x)"),
    ("x = model", "x = max(x, x)"),
]


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
@pytest.mark.timeout(120)
def test_what_doubles_with_each_statement_stays_small(tmp_path: Path) -> None:
    begin = "    batches = iter(loader)\n"
    for at, (first, again) in enumerate(GROWING):
        body = "".join(f"            {row}\n" for row in [again] * 40)
        source = LOOP.replace(begin, f"{begin}    {first}\n")
        source = source.replace(
            "            loss.backward()", f"{body}            (loss / x).backward()"
        )
        (tmp_path / f"x{at}.py").write_text(source)
    limits = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))"
    check = "main(['check', '--no-cache', '-q', '-j', '1'])"
    ran = subprocess.run(
        [sys.executable, "-c", f"{limits}; from accumlint.cli import main; {check}"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode in (0, 1), "Traceback" in ran.stderr) == (True, False), ran.stderr


# Calls that Python itself refuses, and an engine that divides by nothing.
REFUSED_BY_PYTHON = [
    "range()", "enumerate()", "zip()", "map()", "map(model)", "islice()", "cycle()", "count()", "reversed()",
    "sorted()", "items()", "loader.items()", "iter()", "filter()",
]  # fmt: skip


def test_calls_without_their_arguments_are_unknown(run: Run, tmp_path: Path) -> None:
    imports = "from itertools import count, cycle, islice\n"
    for at, iterable in enumerate(REFUSED_BY_PYTHON):
        places = (
            ("iter(loader)", f"iter({iterable})"),
            ("len(loader)", f"len({iterable})"),
            ("range(accumulation_steps)", iterable),
        )
        for number, (old, new) in enumerate(places):
            assert old in LOOP
            (tmp_path / f"x{at}_{number}.py").write_text(imports + LOOP.replace(old, new))
    ran = run("check", "--no-cache", "-j", "1")
    assert (ran.code in (0, 1), ran.err) == (True, "")


def test_zero_accumulation_steps_divide_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from accelerate import Accelerator\naccelerator = Accelerator(gradient_accumulation_steps=0)\n"
        "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\nfor x in loader:\n"
        "    with accelerator.accumulate(model):\n        accelerator.backward(model(x).mean())\n"
        "        optimizer.step()\n        optimizer.zero_grad()\n"
    )
    ran = run("check")
    assert (ran.code in (0, 1), ran.err) == (True, "")


# Texts that no parser is given: more code than is read, a longer file, and more than libcst is asked about.
LONG = {
    "code": (LOOP + "a = 1\n" * 250_000, "too long to be read"),
    "a comment": (LOOP + "#" + "-" * 9_000_000, "too long to be read"),
    "syntax of a newer Python": ("type X = int\n" * 30_000 + LOOP, "syntax error"),
}


@pytest.mark.parametrize("name", LONG)
def test_a_text_that_is_too_long_is_refused_in_one_line(
    run: Run, tmp_path: Path, name: str
) -> None:
    text, told = LONG[name]
    (tmp_path / "train.py").write_text(text)
    ran = run("check")
    assert ran.code == 2
    assert told in ran.err
    assert ran.err.count("\n") == 1
