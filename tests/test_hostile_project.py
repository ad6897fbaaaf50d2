"""The files around a checked one cannot break it down, or take more time and memory than there is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Run
from helpers import LOOP

from accumlint.reading.neighbours import importers
from accumlint.reading.project import Project, anything

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


@pytest.mark.parametrize("way", ["dots", "link"])
def test_no_import_leads_out_of_a_repository(tmp_path: Path, way: str) -> None:
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    (tmp_path / "outside.py").write_text(HELPER)
    train = tmp_path / "repository" / "train.py"
    if way == "link":
        (tmp_path / "repository" / "helpers.py").symlink_to(tmp_path / "outside.py")
    path = {"dots": "..outside.go", "link": "helpers.go"}[way]
    project = Project()
    assert project.find(path, str(train), anything) is None
    assert str(tmp_path / "outside.py") not in project.memory.read


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
        (tmp_path / f"c{i:02}.py").write_text("import helper\n" + "x = 1\n" * 20_000)
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
    monkeypatch.setitem(importers.__globals__, limit, LIMITS[limit])
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
