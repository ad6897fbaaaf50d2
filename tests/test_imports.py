"""Imports fall one way, heavy ones wait until they are needed, and the engine knows no rule."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from helpers import LOOP, ROOT

from accumlint.registry import packs

# From the ground up: a file imports from its own floor and from those below.
FLOORS = [
    {"accumlint", "accumlint.common", "accumlint.files"},
    {"accumlint.reading"},
    {"accumlint.tracing", "accumlint.editing"},
    {"accumlint.rule"},
    {"accumlint.diagnostics.results", "accumlint.registry"},
    {"accumlint.files.notebook", "accumlint.config"},
    {"accumlint.files.inputs"},
    {"accumlint.diagnostics"},
    {"accumlint.check"},
    {"accumlint.diagnostics.fixing"},
    {"accumlint.diagnostics.reporting", "accumlint.diagnostics.drawing"},
    {"accumlint.confirming", "accumlint.runtime"},
    {"accumlint.testing"},
    {"accumlint.server"},
    {"accumlint.cli"},
    {"accumlint.__main__"},
]
# What the program, its names and events, a finding and its fix are made of, and what frameworks call things: all that a
# rule needs.
FOR_RULES = {
    "accumlint.rule",
    "accumlint.tracing.trace",
    "accumlint.reading.names",
    "accumlint.reading.frameworks",
    "accumlint.reading.ir",
    "accumlint.reading.program",
    "accumlint.reading.targets",
    "accumlint.reading.trainer_methods",
    "accumlint.editing",
}
# Who may import what comes from elsewhere.
HEAVY = {
    "click": {"accumlint.cli"},
    "libcst": {"accumlint.reading", "accumlint.editing"},
    "pathspec": {"accumlint.files"},
    "tomli": {"accumlint.config"},
    "lsprotocol": {"accumlint.server"},
    "pygls": {"accumlint.server"},
    "watchfiles": {"accumlint.cli"},
    # Only in the processes that `confirm` and `run` start, and in tests that users write.
    "torch": {"accumlint.confirming", "accumlint.runtime", "accumlint.testing"},
}
ENGINE = sorted((ROOT / "accumlint").rglob("*.py"))
RULES = sorted((ROOT / "rules").glob("*.py"))


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {module_of(file): file for file in ENGINE}


def room_of(module: str) -> str:
    """The part of a module's name that has a floor: a file of the package, or a folder in it, maybe in another one."""
    parts = module.split(".")
    inner = ".".join(parts[:3])
    return inner if inner in set[str]().union(*FLOORS) else ".".join(parts[:2])


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def imported(file: Path) -> Iterator[str]:
    """Every module that a file imports, anywhere in it; `.x` for a neighbour."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            # From the package itself, a name is a module or something that its face holds.
            faces = {"accumlint", "accumlint.diagnostics.reporting"}
            yield from (
                f"{module}.{alias.name}" if module in faces and alias.name.islower() else module
                for alias in node.names
            )


def floor_of(room: str) -> int:
    return next(i for i, rooms in enumerate(FLOORS) if room in rooms)


def test_the_engine_s_imports_fall_one_way() -> None:
    known = set[str]().union(*FLOORS)
    for file in ENGINE:
        room = room_of(module_of(file))
        for module in imported(file):
            if module.startswith("accumlint"):
                other = room_of(module) if room_of(module) in known else "accumlint"
                assert floor_of(other) <= floor_of(room), f"{module_of(file)} imports {module}"
            assert not module.startswith("accumlint_rules"), "rules come by entry point only"


def test_what_comes_from_elsewhere_has_its_room() -> None:
    for file in ENGINE:
        for module in imported(file):
            if (top := module.split(".")[0]) in HEAVY:
                assert room_of(module_of(file)) in HEAVY[top], f"{module_of(file)} imports {module}"


@pytest.mark.parametrize("file", RULES, ids=lambda file: file.stem)
def test_a_rule_imports_what_a_rule_needs(file: Path) -> None:
    for module in imported(file):
        if module.startswith("."):
            assert module.startswith("._"), "rules share helpers, they do not use each other"
        else:
            assert module in FOR_RULES or module.split(".")[0] in sys.stdlib_module_names


def test_the_engine_names_no_rule() -> None:
    names = "|".join([r"ACC\d{3}", *(re.escape(entry.name) for entry in packs.catalogue())])
    for file in ENGINE:
        nodes = [*ast.walk(tree_of(file))]
        statements = (node.value for node in nodes if isinstance(node, ast.Expr))
        docstrings = {id(node) for node in statements if isinstance(node, ast.Constant)}
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named = id(node) not in docstrings and re.search(names, node.value)
                assert not named, f"{module_of(file)}: {node.value}"


def test_every_file_has_a_floor() -> None:
    assert {room_of(module_of(file)) for file in ENGINE} <= set[str]().union(*FLOORS)


@pytest.mark.parametrize(
    ("source", "absent"),
    [
        ("x = 1\n", ["libcst", "accumlint.reading", "accumlint.tracing", "accumlint.rule"]),
        # Only what has a fix to try needs libcst.
        (LOOP.replace("loss.b", "(loss / accumulation_steps).b"), ["libcst", "torch"]),
        (LOOP, ["torch", "multiprocessing"]),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(
    tmp_path: Path, source: str, absent: list[str]
) -> None:
    (tmp_path / "file.py").write_text(source)
    script = (
        "import sys\n"
        "from accumlint.cli import main\n"
        "try:\n    main(['check', '--select', 'ACC102', '--exit-zero', 'file.py'])\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        f"print([name for name in {absent} if name in sys.modules])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, check=False
    )
    assert ran.stderr.decode() == ""
    assert ran.stdout.decode().splitlines()[-1] == "[]"


def modules_imported(file: Path) -> set[str]:
    """The engine's own modules that a file imports, also those for annotations only."""
    found: set[str] = set()
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & MODULES.keys()
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            # What is no module of its own is something that the package's face holds.
            found |= names & MODULES.keys() or {node.module} & MODULES.keys()
    return found


def test_files_import_each_other_in_no_circle() -> None:
    imports = {module: modules_imported(file) for module, file in MODULES.items()}
    # What imports only files outside circles stands outside, and so does what only such files import.
    while outside := {m for m, to in imports.items() if not to & imports.keys()} | (
        imports.keys() - set[str]().union(*imports.values())
    ):
        imports = {module: to for module, to in imports.items() if module not in outside}
    assert not imports
