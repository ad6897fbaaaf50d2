"""The files around a checked one cannot break it down, or take more time and memory than there is."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Run
from helpers import LOOP

from accumlint.common.memo import Memory
from accumlint.files import import_index
from accumlint.reading.modules import anything
from accumlint.reading.neighbours import importers
from accumlint.reading.project import Project

HEAD = "import torch\n"
HELPER = "def go(loss, scale=1):\n    (loss / scale).backward()\n"
# Words that make a file worth a look.
LOUD = "optimizer.step(loss.backward())\n"


def stars(count: int) -> dict[str, str]:
    """Files each of which takes everything from all others."""
    names = [f"m{i}" for i in range(count)]
    return {
        f"{name}.py": "".join(f"from {other} import *\n" for other in names if other != name) + LOUD
        for name in names
    }


def handed_on(count: int, what: str) -> dict[str, str]:
    """Files each of which takes something from the next one."""
    files = {f"m{i}.py": f"from m{i + 1} import {what}\n{LOUD}" for i in range(count)}
    return {**files, f"m{count}.py": HELPER}


def callers(count: int) -> dict[str, str]:
    """Files that train by way of the checked one, and call each other in a circle."""
    return {
        f"c{i}.py": f"from c{(i + 1) % count} import run as following\nfrom train import train\n"
        "def run(model, loader, optimizer):\n    train(model, loader, optimizer, 4)\n"
        "    following(model, loader, optimizer)\n"
        for i in range(count)
    }


# The files beside `train.py`, and what that imports of them.
AROUND: dict[str, tuple[Callable[[], dict[str, str]], str]] = {
    "stars in circles": (lambda: stars(120), "from m0 import go, a, b"),
    "stars in a row": (lambda: handed_on(2_000, "*"), "from m0 import go"),
    "names in a row": (lambda: handed_on(4_000, "go"), "from m0 import go"),
    "callers in circles": (lambda: callers(200), "from c0 import go"),
    "imports that grow": (
        lambda: {"a.py": "from b.go import x as go\n", "b.py": "from a.go.go import x as go\n"},
        "from a import go",
    ),
    "a file that imports itself": (
        lambda: {"m.py": f"from m import *\nfrom .m import *\nfrom .. import *\nimport m\n{LOUD}"},
        "from m import go",
    ),
}  # fmt: skip


# What stands in a file that makes an object of another file's class.
TEXTS = {
    "a long word": "# " + "a" * 300_000,
    "a long path": "# x = " + "b." * 150_000,
    "classes that are never closed": "text = '''\n" + "class A(\n" * 40_000 + "'''",
    "calls on one line": "# " + "Stepper(" * 40_000,
    "objects of the class": "".join(f"s{i} = Stepper()\n" for i in range(6_000)),
    "names for a module": "".join(f"import helpers as h{i}\n" for i in range(3_000)),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", TEXTS)
def test_no_text_makes_it_slow_to_find_what_is_asked_of_an_object(
    run: Run, tmp_path: Path, name: str
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "helpers.py").write_text(
        "class Stepper:\n    def go(self, loss):\n        loss.backward()\n"
    )
    (tmp_path / "train.py").write_text(
        f"from helpers import Stepper\nstepper = Stepper()\n{TEXTS[name]}\n{LOOP}        stepper.go(loss)\n"
    )
    assert run("check", "train.py").code in (0, 1)


@pytest.mark.timeout(20)
def test_imports_of_a_file_deep_down_are_not_looked_for_everywhere(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()
    deep = tmp_path.joinpath(*["d"] * 200)
    deep.mkdir(parents=True)
    imports = "".join(f"import nothing_{i}\n" for i in range(2_000))
    (deep / "train.py").write_text(imports + LOOP)
    assert run("check", str(deep / "train.py")).code in (0, 1)


@pytest.mark.parametrize("mark", [".git", "pyproject.toml", "__init__.py", ""])
@pytest.mark.parametrize("way", ["dots", "link"])
def test_no_import_leads_out_of_a_project(tmp_path: Path, way: str, mark: str) -> None:
    """A project without a repository is one that was unpacked, or a folder of scripts."""
    home = tmp_path / "around" / "project"
    home.mkdir(parents=True)
    if mark == ".git":
        (home / mark).mkdir()
    elif mark:
        (home / mark).touch()
    # The folder around a package belongs to its project.
    dots, top = ("...", home.parent) if mark == "__init__.py" else ("..", home)
    outside, train = top.parent / "outside.py", home / "train.py"
    outside.write_text(HELPER)
    if way == "link":
        (home / "helpers.py").symlink_to(outside)
    path = {"dots": f"{dots}outside.go", "link": "helpers.go"}[way]
    project = Project()
    assert project.find(path, str(train), anything) is None
    assert str(outside) not in project.memory.read


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", AROUND)
def test_no_import_keeps_a_file_from_being_checked(run: Run, tmp_path: Path, name: str) -> None:
    files, imports = AROUND[name]
    (tmp_path / ".git").mkdir()
    for file, text in files().items():
        (tmp_path / file).write_text(text)
    (tmp_path / "train.py").write_text(f"{imports}\n{LOOP}        go(loss)\n")
    ran = run("check", "--no-cache", "train.py")
    assert (ran.code, ran.err) == (1, "")
    assert ran.out.startswith("train.py:12:")


def test_of_files_that_import_one_so_much_is_read(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "helper.py").write_text(HELPER)
    for i in range(40):
        (tmp_path / f"c{i:02}.py").write_text("import helper\n" + "# long\n" * 18_000)
    project = Project()
    found = list(importers(str(tmp_path / "helper.py"), project))
    assert [Path(module.path).name for module in found] == [
        f"c{i:02}.py" for i in range(len(found))
    ]
    assert 10 < len(found) < 20
    assert len(project.memory.read) == len(found) + 1


LIMITS = {"_MOST_FILES": 9, "_MOST_FOLDERS": 3, "_MOST_BYTES": 2_000, "_MOST_WORDS": 200}


@pytest.mark.parametrize("limit", LIMITS)
def test_a_project_past_all_measure_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "helper.py").write_text(HELPER)
    for i in range(10):
        (tmp_path / f"d{i}").mkdir()
        words = ", ".join(f"w{i}_{k}" for k in range(30))
        (tmp_path / f"d{i}" / "c.py").write_text(f"import helper\nimport {words}\n")
    helper = str(tmp_path / "helper.py")
    assert len(list(importers(helper, Project()))) == 10
    monkeypatch.setattr(import_index, limit, LIMITS[limit])
    assert not list(importers(helper, Project()))


def users(count: int) -> str:
    """Functions that hand a loss to the helper and never step."""
    return f"from helper import go\n{HEAD}" + "".join(
        f"def use_{i}(model, loader):\n    for x in loader:\n        go(model(x).mean())\n"
        "        model(x).mean().backward()\n"
        for i in range(count)
    )


def test_files_that_use_one_have_a_budget_and_it_is_told_when_that_ends(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "helper.py").write_text(HELPER)
    for i in range(4):
        (tmp_path / f"c{i}.py").write_text(users(80))
    monkeypatch.setattr("accumlint.tracing.callers.STEPS_OF_CALLER", 16_000)
    ran = run("check", "--no-cache", "helper.py")
    assert ran.code == 0
    told = "following the files that use this one takes too many steps"
    assert ran.err.startswith(f"helper.py: warning: not followed to the end: {told}")


TOLD = "warning: not followed into all files that it uses: they are too much to read; what was known before "


def chain(count: int) -> str:
    """Functions that call the next one each, as an import of each shows."""
    return "".join(
        f"def f{i}(loss):\n    f{i + 1}(loss)\n    loss.backward()\n" for i in range(count)
    )


def in_circles(count: int) -> dict[str, str]:
    """Files whose functions call those of all other files."""
    return {
        f"m{i}.py": "".join(f"from m{j} import go_{j}\n" for j in range(count) if j != i)
        + f"def go_{i}(loss):\n    loss.backward()\n"
        + "".join(f"    go_{j}(loss)\n" for j in range(count) if j != i)
        for i in range(count)
    }


# The files beside `train.py`, each too much, and what that imports of them.
TOO_MUCH: dict[str, tuple[Callable[[], dict[str, str]], str]] = {
    "large files": (
        lambda: {f"m{i}.py": HELPER + "def f(x):\n    return g(x)\n" * 30_000 for i in range(3)},
        "".join(f"from m{i} import go\n" for i in range(3)),
    ),
    "many files": (
        lambda: {f"m{i}.py": HELPER for i in range(2_200)},
        "".join(f"from m{i} import go\n" for i in range(2_200)),
    ),
    "a long chain": (
        lambda: {"m.py": chain(600)},
        "".join(f"from m import f{i}\n" for i in range(600)) + "go = f0\n",
    ),
    "circles": (lambda: in_circles(120), "".join(f"from m{i} import go_{i}\n" for i in range(120)) + "go = go_0\n"),
}  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", TOO_MUCH)
def test_of_what_a_file_uses_so_much_is_read_and_it_is_told(
    run: Run, tmp_path: Path, name: str
) -> None:
    files, imports = TOO_MUCH[name]
    (tmp_path / ".git").mkdir()
    for file, text in files().items():
        (tmp_path / file).write_text(text)
    (tmp_path / "train.py").write_text(f"{imports}{LOOP}        go(loss)\n")
    start = time.process_time()
    ran = run("check", "--no-cache", "train.py")
    # In half of that on a calm machine, both for finding out that it is too much and for reading as far as it goes.
    assert time.process_time() - start < 20
    assert ran.err.startswith(f"train.py: {TOLD}")
    assert ran.out.startswith("train.py:")


def test_what_is_too_much_depends_on_no_file_that_was_checked_before(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    unit = "def scaled(loss, n):\n    return loss / n\n"
    for i in range(6):
        # Each uses the next one, and helps the one before.
        other = f"from t{i + 1} import help_{i + 1}\n" if i < 5 else ""
        called = f"        help_{i + 1}(loss)\n" if i < 5 else ""
        text = (
            f"{other}def help_{i}(loss):\n    loss.backward()\n{unit * 8 * (i + 1)}{LOOP}{called}"
        )
        (tmp_path / f"t{i}.py").write_text(text)
    names = [f"t{i}.py" for i in range(6)]
    for most in (800, 1_600):
        monkeypatch.setattr(Memory.__init__, "__defaults__", (most,))
        alone = {name: run("check", "--no-cache", name) for name in names}
        told = [name for name in names if TOLD in alone[name].err]
        assert most != 800 or 0 < len(told) < len(names)
        for order in (names[::-1], names[3:] + names[:3]):
            together = run("check", "--no-cache", *order)
            for name in names:
                assert lines_of(together.out, name) == lines_of(alone[name].out, name)
                assert lines_of(together.err, name) == lines_of(alone[name].err, name)


def lines_of(text: str, name: str) -> list[str]:
    """The findings and warnings of a file, without the summary at the end."""
    return re.findall(rf"^{name}:(?:\d+:\d+: | warning: ).*", text, re.MULTILINE)
