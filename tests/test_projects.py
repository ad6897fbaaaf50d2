"""Imports are looked for up to where a project begins, and no further."""

from __future__ import annotations

from pathlib import Path

import pytest

from accumlint.common.memo import Memory
from accumlint.reading.imports import Imports
from accumlint.reading.project import Project


def found(importer: Path, path: str) -> Path | None:
    """The file that an import leads into."""
    located = Imports(Memory()).located(path, str(importer))
    return Path(located[0]) if located else None


@pytest.mark.parametrize(
    ("mark", "is_folder"),
    [
        (".git", True),
        # A worktree, or a submodule.
        (".git", False),
        (".hg", True),
        ("pyproject.toml", False),
        ("setup.py", False),
        ("setup.cfg", False),
    ],
)
def test_a_project_begins_at_its_repository_or_its_packaging(
    tmp_path: Path, mark: str, is_folder: bool
) -> None:
    top = tmp_path / "project"
    importer = top / "scripts" / "runs" / "train.py"
    for file in (importer, top / "losses.py", tmp_path / "outside.py"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert found(importer, "losses") is None
    (top / mark).mkdir() if is_folder else (top / mark).touch()
    assert found(importer, "losses") == top / "losses.py"
    assert found(importer, "outside") is None


def test_inside_a_package_its_name_is_no_module_of_that_name(tmp_path: Path) -> None:
    package = tmp_path / "speech"
    package.mkdir()
    (tmp_path / "setup.py").touch()
    for name in ("__init__.py", "speech.py", "trainer.py"):
        (package / name).touch()
    assert found(package / "trainer.py", "speech.speech.Net") == package / "speech.py"
    assert found(package / "trainer.py", "speech.missing") == package / "__init__.py"


@pytest.mark.parametrize(
    ("path", "file"),
    [
        ("losses", "losses.py"),
        ("helpers.steps", "helpers/steps.py"),
        ("helpers.steps.step", "helpers/steps.py"),
        ("package", "package/__init__.py"),
        ("package.name", "package/__init__.py"),
        ("inner", "src/inner.py"),
        # A folder without an __init__.py is no file, and its modules are.
        ("helpers", None),
        ("missing", None),
        # What stands in the table of frameworks is never read, whatever lies there.
        ("torch", None),
    ],
)
def test_an_import_leads_into_a_file(tmp_path: Path, path: str, file: str | None) -> None:
    (tmp_path / ".git").mkdir()
    for name in (
        *("losses.py", "helpers/steps.py", "package/__init__.py", "src/inner.py", "torch.py"),
        "scripts/train.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    importer = tmp_path / "scripts" / "train.py"
    assert found(importer, path) == (tmp_path / file if file else None)


@pytest.mark.parametrize(
    ("path", "file"), [(".steps", "helpers/steps.py"), ("..losses", "losses.py"), ("...x", None)]
)
def test_dots_lead_upwards_within_a_project(tmp_path: Path, path: str, file: str | None) -> None:
    for name in ("setup.py", "losses.py", "helpers/steps.py", "helpers/train.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    importer = tmp_path / "helpers" / "train.py"
    assert found(importer, path) == (tmp_path / file if file else None)


def test_a_starred_module_that_is_absent_is_passed_over(tmp_path: Path) -> None:
    package = tmp_path / "utils"
    package.mkdir()
    (tmp_path / "setup.py").touch()
    star = "from utils.constants import *\n"
    (package / "__init__.py").write_text(f"{star}from .losses import *\n")
    (package / "losses.py").write_text(f"{star}\ndef loss(x):\n    return x.mean().backward()\n")
    importer = str(tmp_path / "train.py")
    found = Project().find("utils.loss", importer)
    assert found is not None
    assert found.module.path == str(package / "losses.py")
    assert Project().find("utils.missing", importer) is None
