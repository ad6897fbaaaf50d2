"""Whatever goes wrong around a run, no file is half written, no foreign code runs, and what went wrong is one line."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from conftest import Run
from helpers import LOOP

from accumlint import config
from accumlint.diagnostics import fixing
from accumlint.files.gitignore import compiled
from accumlint.files.inputs.discovery import Target
from accumlint.files.nesting import too_deep

FIXABLE = """\
from torch.nn.utils import clip_grad_norm_


def train(model, loader, optimizer, scaler, limit):
    for batch in loader:
        optimizer.zero_grad()
        scaler.scale(model(batch)).backward()
        clip_grad_norm_(model.parameters(), limit)
        scaler.step(optimizer)
        scaler.update()
"""
FIXED = FIXABLE.replace("        clip_", "        scaler.unscale_(optimizer)\n        clip_")
MANY = 5_000
DEEP = 20_000


def start(*arguments: str, cwd: Path, before: str = "") -> subprocess.Popen[str]:
    """The command in a process of its own, after some code."""
    code = f"import os, shutil, signal, sys\n{before}\nfrom accumlint.cli import main\nmain(sys.argv[1:])"
    command = [sys.executable, "-c", code, "check", *arguments]
    return subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture
def train(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text(FIXABLE)
    return file


# A call on the way of a fix to its file, and whether the file is written when the process dies in it.
MOMENTS = {
    "os.fsync": FIXABLE,
    "shutil.copymode": FIXABLE,
    "os.replace": FIXABLE,
    "sys.exit": FIXED,
}


@pytest.mark.skipif(sys.platform == "win32", reason="kills as Unix does")
@pytest.mark.parametrize("call", MOMENTS)
def test_a_killed_fix_leaves_a_whole_file(train: Path, call: str) -> None:
    die = f"{call} = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)"
    dying = start("--fix", "--no-cache", "train.py", cwd=train.parent, before=die)
    dying.communicate()
    assert dying.returncode == -signal.SIGKILL
    assert train.read_text() == MOMENTS[call]
    again = start("--fix", "--no-cache", "train.py", cwd=train.parent)
    again.communicate()
    assert train.read_text() == FIXED


def test_two_fixes_at_once_leave_a_fixed_file(train: Path) -> None:
    fixes = [start("--fix", "train.py", cwd=train.parent) for _ in range(2)]
    told = [fix.communicate()[1] for fix in fixes]
    # Who comes second finds it fixed, or changed under its hands, and says so.
    assert {fix.returncode for fix in fixes} <= {0, 2}, told
    assert train.read_text() == FIXED
    assert [file.name for file in train.parent.glob("*.py")] == ["train.py"]


@pytest.mark.parametrize("call", ["tempfile.mkstemp", "os.fsync", "os.replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_what_cannot_be_written_is_as_it_was(
    run: Run, train: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(call, refuse)
    ran = run("check", "--fix", "train.py")
    assert (ran.code, ran.err) == (2, f"train.py: cannot be written: {os.strerror(number)}\n")
    assert [file.name for file in train.parent.iterdir()] == ["train.py"]
    assert train.read_text() == FIXABLE


@pytest.mark.parametrize("call", ["os.makedirs", "os.replace", "os.scandir", "os.listdir"])
def test_a_cache_on_a_full_or_read_only_disk_is_none(
    run: Run, train: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    first = run("check", "--no-cache", "train.py")
    # A file that was just written is not kept.
    os.utime(train, (1, 1))
    monkeypatch.setattr(call, refuse)
    assert run("check", "train.py") == first


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="asks a device of Linux")
def test_output_that_cannot_be_written_is_told(train: Path) -> None:
    with open("/dev/full", "w") as full:
        code = "from accumlint.cli import main; main(['check', '--no-cache'])"
        command = [sys.executable, "-c", code]
        ran = subprocess.run(
            command, cwd=train.parent, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ran.stderr == "accumlint: stdout: cannot be written: No space left on device\n"
    assert ran.returncode == 2


TOO_DEEP = {
    "parentheses": "x = " + "(" * DEEP + "1" + ")" * DEEP,
    "open brackets": "x = " + "[" * DEEP,
    "calls": "x = " + "f(" * DEEP + ")" * DEEP,
    "called results": "x = a" + ".b()" * DEEP,
    "attributes": "x = a" + ".b" * DEEP,
    "attributes over lines": "x = (a" + "\n.b" * DEEP + ")",
    "sums": "x = " + " + ".join("1" * DEEP),
    "sums of texts": "x = " + " + ".join(['"a, b"'] * DEEP),
    "texts": "x = " + "'a' " * DEEP,
    "texts within texts": "x = " + 'f"{' * DEEP + "1" + '}"' * DEEP,
    "unary": "x = " + "-" * DEEP + "1",
    "lambdas": "x = " + "lambda: " * DEEP + "1",
    "choices": "x = " + "1 if a else " * DEEP + "1",
    "elifs": "if a:\n    pass\n" + "elif a:\n    pass\n" * DEEP,
    "blocks": "".join(" " * i + "if a:\n" for i in range(2_000)) + " " * 2_000 + "pass",
    "loops": "".join(" " * i + "for a in b:\n" for i in range(2_000)) + " " * 2_000 + "pass",
}


@pytest.mark.parametrize("name", TOO_DEEP)
def test_what_no_parser_bears_is_refused_in_one_line(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "deep.py").write_text(f"{LOOP}{TOO_DEEP[name]}\n")
    (tmp_path / "train.py").write_text(LOOP)
    ran = run("check", "--no-cache")
    assert ran.out.startswith("train.py:11:")
    assert (ran.code, len(ran.err.splitlines())) == (2, 1), ran.err
    assert ran.err.startswith("deep.py:")


@pytest.mark.parametrize(
    "code",
    [
        "x = [" + "1, " * MANY + "]",
        "x = 1\n" * MANY,
        "x = 1; " * MANY,
        "x = '" + "(" * MANY + "'",
        '"""' + "[\n" * MANY + '"""',
        "# " + "{" * MANY,
        "x = '(['  # unmatched {\n" * MANY,
        "x = f(a, b)(c)\n" * MANY,
        "x = a.b + c.d\n" * MANY,
        "if a:\n    pass\nelif b:\n    pass\n" * 900,
        "x = [\n" + "    'text' 'more',\n" * MANY + "]",
    ],
)
def test_long_code_is_not_deep(code: str) -> None:
    assert too_deep(f"{code}\n") == 0


def test_what_is_imported_may_be_as_deep(run: Run, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text(f"def backward(loss):\n    x = {'-' * DEEP}1\n")
    (tmp_path / "train.py").write_text(
        f"from helper import backward\n{LOOP}        backward(loss)\n"
    )
    ran = run("check", "train.py")
    assert (ran.code in (0, 1), ran.err) == (True, "")


# One line that many rules, or many requests, stand on.
IGNORES = {
    "known": "x = 1  # accumlint: ignore[" + ", ".join(["ACC102"] * MANY) + "]",
    "unknown": "x = 1  # accumlint: ignore[" + ", ".join(f"ACX{i}" for i in range(MANY)) + "]",
    "many": "x = 1  " + "# accumlint: ignore[ACC102] " * MANY,
    "open": "x = 1  " + "# accumlint: ignore[" * MANY,
    "noqa": "x = 1  # noqa: " + ", ".join(f"ACC{i + 1000}" for i in range(MANY)),
    "commas": "x = 1  # noqa:" + ", " * MANY * 20 + "!",
    "blanks": "x = 1  # accumlint:" + " " * MANY * 20 + "ignore",
}


@pytest.mark.parametrize("name", IGNORES)
def test_of_thousands_of_ignores_on_one_row_the_first_are_told(
    run: Run, tmp_path: Path, name: str
) -> None:
    (tmp_path / "train.py").write_text(f"{IGNORES[name]}\n{LOOP}")
    ran = run("check", "--no-cache", "--output-format", "json-lines", "--select", "ACC9")
    assert ran.err == ""
    assert len(ran.out.splitlines()) <= 101


def test_thousands_of_ignores_over_a_statement_silence_it(run: Run, tmp_path: Path) -> None:
    above = "# accumlint: ignore[ACC501]\n" * MANY + "# accumlint: ignore[ACC102]\n"
    flagged = "            loss.backward()\n"
    (tmp_path / "train.py").write_text(LOOP.replace("loss.backward()", "pass").replace(
        "            pass  # error: ACC102\n", above.replace("#", "            #") + flagged
    ))  # fmt: skip
    assert run("check", "--no-cache", "--ignore", "ACC9").code == 0


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("*a" * 60 + "*b", "a" * 200, False),
        ("*a" * 60 + "*b", "a" * 200 + "b", True),
        ("*" * 60 + "b", "a" * 200, False),
        ("a?*b*" * 20 + "/c", "a" * 200, False),
        ("*/*/*/x*y*z", "a/b/c/xyyz", True),
        ("*/*/*/x*y*z", "a/b/xyyz", False),
        ("x**y**z", "xayaz", True),
        ("**/a" * 60, "a/" * 100, True),
        ("**/a" * 60, "a/" * 50, False),
    ],
)
def test_a_pattern_of_many_stars_is_answered(pattern: str, name: str, matches: bool) -> None:
    assert bool(compiled("/root", [pattern]).verdict(f"/root/{name}")) == matches


HOSTILE: dict[str, Callable[[Path], object]] = {
    "a link to nowhere": lambda tree: (tree / "gone.py").symlink_to("nowhere.py"),
    "a link to itself": lambda tree: (tree / "knot.py").symlink_to("knot.py"),
    "a folder in itself": lambda tree: (tree / "sub").symlink_to(tree, target_is_directory=True),
    "a pipe": lambda tree: os.mkfifo(tree / "pipe.py"),
    "a folder like a file": lambda tree: (tree / "folder.py").mkdir(),
    "a folder like settings": lambda tree: (tree / "pyproject.toml").mkdir(),
    "a folder like patterns": lambda tree: (tree / ".gitignore").mkdir(),
    "a folder like a cache": lambda tree: (tree / ".accumlint_cache").mkdir(),
    "a file like a cache": lambda tree: (tree / ".accumlint_cache").write_text(""),
    "binary patterns": lambda tree: (tree / ".gitignore").write_bytes(b"\xff\0[\n!\n\\\n"),
}


@pytest.mark.skipif(sys.platform == "win32", reason="makes links and pipes as Unix does")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_tree_is_walked(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    HOSTILE[name](tmp_path)
    ran = run("check", ".")
    assert ran.out.startswith("train.py:11:")
    assert "Traceback" not in ran.err
    assert len(ran.err.splitlines()) == (name == "a link to itself")


def test_a_file_that_becomes_a_link_meanwhile_is_not_followed(tmp_path: Path, train: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text("secret = 1\n")
    (fixed,) = fixing.fix_files([Target("train.py", str(train), config.Settings(tmp_path))])
    train.unlink()
    train.symlink_to(other)
    (checked,) = fixing.written([fixed])
    assert "changed meanwhile" in checked.problems[0].message
    assert other.read_text() == "secret = 1\n"


def test_a_file_that_goes_meanwhile_is_told(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text(LOOP)
    (tmp_path / "b.py").write_text(LOOP)
    find = "accumlint.cli.commands.check.find"
    from accumlint.files.inputs.discovery import find as found

    def find_and_lose(*arguments: object, **options: object) -> object:
        targets = found(*arguments, **options)  # pyright: ignore[reportArgumentType]
        (tmp_path / "a.py").unlink()
        return targets

    monkeypatch.setattr(find, find_and_lose)
    ran = run("check")
    assert (ran.code, ran.err) == (2, "a.py: cannot be read: No such file or directory\n")
    assert ran.out.startswith("b.py:11:")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such names")
@pytest.mark.parametrize("name", ["::error::x.py", "\x1b[31m.py", "a\n::error::b.py", "a\rb.py"])
def test_the_name_of_what_cannot_be_read_commands_nobody(
    run: Run, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("def (:\n    loss.backward()\n")
    ran = run("check")
    assert (ran.code, len(ran.err.splitlines())) == (2, 1)
    assert not ran.err.startswith("::")
    assert not {"\x1b", "\r"} & set(ran.err)


EVIL = "open('was_here', 'w').close()\n"
SETTINGS = {
    "rules": 'rule-folders = ["evil"]\n',
    "rules by another file": 'extend = "../theirs/more.toml"\n',
    "a package": 'select = ["EVIL"]\n',
    "a device": 'extend = "/dev/zero"\n',
    "a circle": 'extend = "accumlint.toml"\n',
    "depth": "a = " + "[" * DEEP,
    "a baseline that is none": 'baseline = "evil/evil1_rule.py"\n',
}


@pytest.mark.parametrize("inside", [True, False], ids=["from inside", "from outside"])
@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_are_found_run_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, inside: bool
) -> None:
    theirs = tmp_path / "theirs"
    (theirs / "evil").mkdir(parents=True)
    for file in ("evil/evil1_rule.py", "evil/__init__.py", "conftest.py", "setup.py", "click.py"):
        (theirs / file).write_text(EVIL)
    (theirs / "train.py").write_text(LOOP)
    (theirs / "more.toml").write_text(SETTINGS["rules"])
    (theirs / "accumlint.toml").write_text(SETTINGS[name])
    if inside:
        monkeypatch.chdir(theirs)
    ran = run("check", "--no-cache", str(theirs / "train.py"))
    assert ran.code in (0, 1, 2)
    assert "Traceback" not in ran.err
    assert not list(tmp_path.rglob("was_here"))


def test_rules_of_a_found_file_are_named_with_the_mend(run: Run, tmp_path: Path) -> None:
    (tmp_path / "accumlint.toml").write_text(SETTINGS["rules"])
    (tmp_path / "train.py").write_text(LOOP)
    ran = run("check")
    assert ran.code == 2
    assert ran.err == (
        "accumlint: accumlint.toml: rule-folders hold code that is executed;"
        " to allow it, name the file: --config accumlint.toml\n"
    )


RAISED = ["ValueError('no')", "RecursionError('deep')", "MemoryError", "SystemExit(0)", "KeyError"]


@pytest.mark.parametrize("raised", RAISED)
def test_a_rule_that_raises_is_named_and_the_run_goes_on(tmp_path: Path, raised: str) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "evil1_broken.py").write_text(
        "from accumlint.rule import Rule, Severity\n"
        "class Broken(Rule):\n"
        '    """Breaks down."""\n'
        "    code, name, severity = 'EVIL1', 'broken', Severity.INFO\n"
        f"    def check(self, trace):\n        raise {raised}\n"
    )
    (tmp_path / "train.py").write_text(LOOP)
    ran = start("--config", 'rule-folders = ["rules"]', "--no-cache", "train.py", cwd=tmp_path)
    out, err = ran.communicate()
    assert (ran.returncode, out.splitlines()[0][:12]) == (3, "train.py:11:"), err
    assert err.startswith("train.py: the rule EVIL1 broken failed here")
