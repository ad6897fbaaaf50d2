"""Rules are found by entry point, selected by code, name or beginning, and a broken pack says so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Run
from helpers import LOOP

from accumlint.registry import packs
from accumlint.registry.packs import Entry, UnknownSelector

RULE = """\
from accumlint.rule import Rule, Severity


class {name}(Rule):
    \"\"\"A rule of somebody else's.\"\"\"

    code = "{code}"
    name = "{title}"
    severity = Severity.INFO
    opt_in = {opt_in}
"""

Selectors = tuple[str, ...]
Install = Callable[[dict[str, str]], None]


class Point:
    """An entry point that names a package."""

    def __init__(self, value: str) -> None:
        self.value = value


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a pack with these modules in place of all others."""
    package = f"pack_{tmp_path.name.replace('-', '_')}"

    def entry_points(*, group: str) -> list[Point]:
        assert group == "accumlint.rules"
        return [Point(package)]

    def install(modules: dict[str, str]) -> None:
        folder = tmp_path / package
        folder.mkdir()
        for name, source in {"__init__.py": "", **modules}.items():
            (folder / name).write_text(source)
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
        packs.catalogue.cache_clear()

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return install


@pytest.fixture(autouse=True)
def _forget() -> object:
    yield
    packs.catalogue.cache_clear()


def rule(code: str, title: str, opt_in: bool = False) -> str:
    return RULE.format(name=f"R{code}", code=code, title=title, opt_in=opt_in)


THREE = {
    "xyz2_second.py": rule("XYZ2", "second"),
    "xyz1_first_of_all.py": rule("XYZ1", "first-of-all"),
    "xyz10_asked_for.py": rule("XYZ10", "asked-for", opt_in=True),
    "_shared.py": "raise AssertionError('not a rule')",
    "notes.py": "raise AssertionError('not a rule')",
}
# wanted, also, ignored and the codes that are run.
SELECTIONS: list[tuple[Selectors, Selectors, Selectors, list[str]]] = [
    ((), (), (), ["XYZ1", "XYZ2"]),
    (("XYZ2",), (), (), ["XYZ2"]),
    (("xyz2", "first-of-all"), (), (), ["XYZ1", "XYZ2"]),
    (("XYZ",), (), (), ["XYZ1", "XYZ2"]),
    (("XYZ10",), (), (), ["XYZ10"]),
    (("asked-for",), (), (), ["XYZ10"]),
    (("ALL",), (), (), ["XYZ1", "XYZ2"]),
    ((), ("XYZ10",), (), ["XYZ1", "XYZ10", "XYZ2"]),
    ((), (), ("XYZ1",), ["XYZ2"]),
    ((), (), ("ALL",), []),
    (("XYZ1",), (), ("XYZ",), ["XYZ1"]),
    (("XYZ",), (), ("XYZ1",), ["XYZ2"]),
    (("XYZ1",), (), ("XYZ1",), []),
]


@pytest.mark.parametrize(("wanted", "also", "ignored", "codes"), SELECTIONS)
def test_each_way_to_select(
    install: Install,
    wanted: tuple[str, ...],
    also: tuple[str, ...],
    ignored: tuple[str, ...],
    codes: list[str],
) -> None:
    install(THREE)
    assert [rule.code for rule in packs.select(wanted, also, ignored).rules] == codes


def test_the_catalogue_needs_no_import(install: Install) -> None:
    install({"xyz1_broken.py": "raise AssertionError"})
    assert [(entry.code, entry.name) for entry in packs.catalogue()] == [("XYZ1", "broken")]


@pytest.mark.parametrize(
    ("selector", "hint"),
    [
        ("XYZ3", "did you mean"),
        ("secnd", "did you mean 'second'?"),
        ("zzzzzz", "`accumlint rules` lists them"),
    ],
)
def test_an_unknown_selector_is_told_with_the_likely_one(
    install: Install, selector: str, hint: str
) -> None:
    install(THREE)
    with pytest.raises(UnknownSelector, match=f"{selector}.*{hint}"):
        packs.require([selector])


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ({}, "no rules are installed: run `pip install -e .` in a checkout"),
        ({"xyz1_none.py": "x = 1"}, "holds 0 rules"),
        ({"xyz1_a.py": rule("XYZ1", "a") + rule("XYZ2", "b")}, "holds 2 rules"),
        ({"xyz1_a.py": rule("XYZ2", "a")}, "its file name says XYZ1 a"),
        ({"xyz1_a.py": "import absent_module"}, "cannot be imported: No module named"),
        ({"xyz1_a.py": rule("XYZ1", "a"), "xyz1_b.py": rule("XYZ1", "b")}, "both claim XYZ1"),
    ],
)
def test_a_broken_pack_is_told_in_one_line(
    install: Install, run: Run, tmp_path: Path, modules: dict[str, str], message: str
) -> None:
    install(modules)
    (tmp_path / "train.py").write_text(LOOP)
    ran = run("check", "train.py")
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1
    assert ran.code == 2


def test_a_helper_of_a_rule_is_no_rule_of_its_module(install: Install) -> None:
    shared = "from accumlint.rule import Rule\nclass Base(Rule): ...\n"
    mine = "from ._base import Base\n" + rule("XYZ1", "a").replace("(Rule)", "(Base)")
    install({"_base.py": shared, "xyz1_a.py": mine})
    assert [rule.code for rule in packs.select().rules] == ["XYZ1"]


def test_our_own_pack_comes_in_by_the_same_door() -> None:
    ours = [entry for entry in packs.catalogue() if entry.module.startswith("accumlint_rules.")]
    assert Entry("ACC102", "loss-not-divided", "accumlint_rules.acc102_loss_not_divided") in ours


def test_the_version_of_the_rules_changes_with_them(install: Install, tmp_path: Path) -> None:
    install({"x101_one.py": rule("X101", "one"), "_shared.py": "A = 1\n"})
    versions: list[str] = []
    (package,) = tmp_path.glob("pack_*")
    for shared in ("A = 1\n", "A = 2\n", "A = 1\r\n"):
        (package / "_shared.py").write_bytes(shared.encode())
        packs.version.cache_clear()
        versions.append(packs.version())
    assert versions[0] == versions[2] != versions[1]
    packs.version.cache_clear()
