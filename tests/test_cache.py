"""What the cache answers is what a check would answer, whatever happened in between and whatever it holds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Run
from helpers import LOOP, ROOT, cached, put_into_cache

import accumlint
from accumlint import config
from accumlint.files.inputs.cache import TAG
from accumlint.registry import packs

HELPER = """\
def backward(loss, steps):
    (loss / steps).backward()
"""
MAIN = """\
import torch.nn.functional as F

from helper import backward


def train(model, loader, optimizer, accumulation_steps):
    batches = iter(loader)
    for _ in range(len(loader) // accumulation_steps):
        optimizer.zero_grad()
        for _ in range(accumulation_steps):
            images, labels = next(batches)
            backward(F.cross_entropy(model(images), labels), accumulation_steps)
        optimizer.step()
"""
# What goes backward through an object that another file makes, and that file.
LEARNER = """\
import torch.nn.functional as F


class Learner:
    def __init__(self, strategy, model, optimizer, loader):
        self.strategy, self.model, self.optimizer, self.loader = strategy, model, optimizer, loader

    def fit(self):
        for images, labels in self.loader:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(images), labels)
            self.strategy.backward(loss, self.model)
            self.strategy.advance(self.optimizer)
"""
STARTS = """\
import torch
from learner import Learner


class Strategy:
    def __init__(self, steps):
        self.steps, self.calls = steps, 0

    def backward(self, loss, model):
        (loss / self.steps).backward()

    def advance(self, optimizer):
        self.calls += 1
        if self.calls % self.steps == 0:
            optimizer.step()


def start(model, loader, accumulation_steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Learner(Strategy(accumulation_steps), model, optimizer, loader).fit()
"""
CELL: dict[str, object] = {
    "cell_type": "code",
    "id": "a",
    "metadata": {},
    "outputs": [],
    "execution_count": None,
}
NOTEBOOK: dict[str, object] = {
    "cells": [{**CELL, "source": LOOP}],
    "metadata": {},
    "nbformat": 4,
    "nbformat_minor": 5,
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A loop with a finding, one whose backward stands in another file, a notebook and a file without a loop."""
    (tmp_path / "train.py").write_text(LOOP)
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "data.py").write_text("x = 1\n")
    (tmp_path / "learner.py").write_text(LEARNER)
    (tmp_path / "notes.ipynb").write_text(json.dumps(NOTEBOOK))
    (tmp_path / "known.json").write_text('{"accumlint-baseline": 1, "findings": []}')
    settle(tmp_path)
    return tmp_path


def settle(folder: Path) -> None:
    """Gives every file a time before the last moment: what was just written is not trusted."""
    for number, file in enumerate(sorted(folder.rglob("*"))):
        os.utime(file, (time.time() - 1000, time.time() - 1000 - number))


def stored() -> list[Path]:
    """The files of the user's cache."""
    return list(Path(os.environ["XDG_CACHE_HOME"], "accumlint").glob("*.json"))


def known() -> dict[str, object]:
    """What the user's cache knows, by file name."""
    caches = stored()
    held = [cached(cache)["known"] for cache in caches]
    return {Path(file).name: entry for each in held for file, entry in each.items()}


def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, checking a file fails: only the cache can answer."""

    def fail(*_: object) -> None:
        raise AssertionError("checked again")

    monkeypatch.setattr("accumlint.check.check_bytes", fail)


@pytest.mark.parametrize("name", ["full", "json", "sarif", "gitlab"])
def test_the_second_run_says_the_same_and_checks_nothing(
    run: Run, tree: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    first = run("check", "--output-format", name)
    assert (first.code, set(known())) == (
        1, {"train.py", "main.py", "helper.py", "learner.py", "data.py", "notes.ipynb"},
    )  # fmt: skip
    unchecked(monkeypatch)
    assert run("check", "--output-format", name) == first


CHANGES: dict[str, Callable[[Path], object]] = {
    "the loop": lambda tree: (tree / "train.py").write_text(LOOP.replace("loss.b", "(loss / 4).b")),
    "as many characters": lambda tree: (tree / "data.py").write_text(LOOP[: LOOP.index("import")]),
    "the helper": lambda tree: (tree / "helper.py").write_text(HELPER.replace(" / steps", "")),
    "the helper goes": lambda tree: (tree / "helper.py").unlink(),
    "another helper comes first": lambda tree: shutil.copytree(
        ROOT / "fixtures" / "sample", tree / "helper"
    ),
    "the cell": lambda tree: (tree / "notes.ipynb").write_text(
        json.dumps(NOTEBOOK).replace("loss.backward", "(loss / accumulation_steps).backward")
    ),
    "an ignore": lambda tree: (tree / "train.py").write_text("# accumlint: ignore-file\n" + LOOP),
    "settings": lambda tree: (tree / "accumlint.toml").write_text("ignore = ['ACC102']"),
    "severity": lambda tree: (tree / "accumlint.toml").write_text("severity = {ALL = 'info'}"),
    "a new file": lambda tree: shutil.copy(tree / "train.py", tree / "again.py"),
    "a new file that uses one": lambda tree: (tree / "start.py").write_text(STARTS),
    "a file that comes to use one": lambda tree: (tree / "data.py").write_text(STARTS),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_noticed(run: Run, tree: Path, change: str) -> None:
    run("check")
    CHANGES[change](tree)
    config.forget()
    assert run("check") == run("check", "--no-cache")
    settle(tree)
    assert run("check") == run("check", "--no-cache")


def test_a_baseline_is_part_of_the_settings(run: Run, tree: Path) -> None:
    before = run("check", "--baseline", "known.json")
    run("baseline", "write", "--baseline", "known.json")
    after = run("check", "--baseline", "known.json")
    assert (before.code, after.code) == (1, 0)


def test_a_file_that_was_only_touched_is_not_checked_again(
    run: Run, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run("check", "train.py", "main.py")
    for name in ("train.py", "main.py", "helper.py"):
        os.utime(tree / name, (1, 1))
    unchecked(monkeypatch)
    assert run("check", "train.py", "main.py") == first


def test_what_was_written_a_moment_ago_is_not_kept(run: Run, tree: Path) -> None:
    (tree / "helper.py").write_text(HELPER)
    run("check")
    # A loop may be told by who imports it: by any other file.
    assert set(known()) == {"data.py"}


def test_what_went_wrong_is_not_kept(run: Run, tree: Path) -> None:
    (tree / "main.py").write_text("def backward(:\n    loss.backward()\n")
    settle(tree)
    assert run("check").code == run("check").code == 2
    assert "main.py" not in known()


@pytest.mark.parametrize("about", ["installed", "code"])
def test_what_other_code_found_is_found_anew(
    run: Run, tree: Path, monkeypatch: pytest.MonkeyPatch, about: str
) -> None:
    run("check")
    for cache in stored():
        put_into_cache(cache, {**cached(cache), about: "other"})
    unchecked(monkeypatch)
    assert run("check").code == 3


def test_what_was_found_rests_on_the_code_of_the_whole_engine_and_its_rules(
    run: Run, tree: Path
) -> None:
    run("check")
    folders = {Path(folder) for cache in stored() for folder in cached(cache)["folders"]}
    assert Path(accumlint.__file__).parent in folders
    assert {*map(Path, packs.folders())} <= folders


BROKEN = {
    "empty": "",
    "cut": '{"installed":',
    "no table": "[]",
    "deep": "[" * 100_000,
    "binary": "\0\xff",
    "huge number": '{"states": [], "known": {"a": [1, ' + "9" * 10_000 + "]}}",
}


@pytest.mark.parametrize("is_signed", [False, True], ids=["", "signed"])
@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_broken_cache_is_none(run: Run, tree: Path, text: str, is_signed: bool) -> None:
    first = run("check")
    for cache in stored():
        if is_signed and text.isascii():
            put_into_cache(cache, text)
        else:
            cache.write_text(text, encoding="latin-1")
    assert run("check") == first
    assert known()


@pytest.mark.parametrize(
    "entry",
    [None, [], 1, [1], ["train.py"], ["train.py", [], []], ["train.py", [0], {}], ["train.py", [-1], 1],
     ["train.py", ["x"], None], ["train.py", [], ["train.py", 1, 2, 3, 4, 5]], [[], [], []]],
)  # fmt: skip
def test_a_broken_entry_is_checked_again(run: Run, tree: Path, entry: object) -> None:
    first = run("check")
    for cache in stored():
        held = cached(cache)
        held["known"] = dict.fromkeys(held["known"], entry)
        put_into_cache(cache, held)
    assert run("check") == first


def test_a_place_that_cannot_be_written_is_no_fault(run: Run, tree: Path) -> None:
    (tree / "file").write_text("")
    first = run("check", "--no-cache")
    for folder in ("file/below", "/proc/none", "a" * 300):
        assert run("check", "--cache-dir", folder) == first
    assert not stored()


def test_runs_at_once_do_not_disturb_each_other(run: Run, tree: Path) -> None:
    alone = run("check", "--no-cache")
    command = [sys.executable, "-m", "accumlint", "check"]
    runs = [
        subprocess.Popen(command, cwd=tree, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    assert {one.communicate()[0] for one in runs} == {alone.out}
    assert len(known()) == 6
    assert run("check") == alone


def test_the_cache_stands_where_it_is_told_and_can_be_removed(
    run: Run, tree: Path, cache_home: Path
) -> None:
    run("check", "--cache-dir", "one")
    run("check", "--config", "cache-dir=two")
    assert not stored()
    for folder in (tree / "one", tree / "two"):
        assert (folder / ".gitignore").read_text() == "*\n"
        assert (folder / TAG).read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")
    assert run("clean", "--config", "cache-dir=two").out == "Removed two/\n"
    assert run("clean", "--cache-dir", "one").code == 0
    assert not (tree / "one").exists()
    run("check")
    assert len(stored()) == 1
    assert run("clean").out == f"Removed {cache_home}/\n"
    assert not cache_home.exists()
    assert run("clean").out == ""


def test_only_a_cache_is_removed(run: Run, tree: Path) -> None:
    ran = run("clean", "--cache-dir", ".")
    assert ran.code == 2
    assert ran.err == f"accumlint: {tree}: holds no {TAG} of accumlint, so it is no cache\n"
    assert (tree / "train.py").exists()


def test_runs_at_once_keep_what_each_of_them_found(run: Run, tree: Path) -> None:
    files = ["train.py", "main.py", "helper.py", "data.py", "notes.ipynb"]
    command = [sys.executable, "-m", "accumlint", "check"]
    runs = [
        subprocess.Popen([*command, file], cwd=tree, stdout=subprocess.DEVNULL) for file in files
    ]
    for one in runs:
        one.wait()
    assert set(known()) == set(files)


@pytest.mark.skipif(sys.platform == "win32", reason="kills as Unix does")
def test_a_run_that_is_killed_leaves_a_whole_cache(run: Run, tree: Path) -> None:
    alone = run("check", "--no-cache")
    command = [sys.executable, "-m", "accumlint", "check"]
    for delay in (0.2, 0.4, 0.6, 0.8):
        killed = subprocess.Popen(command, cwd=tree, stdout=subprocess.DEVNULL)
        time.sleep(delay)
        killed.kill()
        killed.wait()
        assert all(cached(cache)["known"] for cache in stored())
        assert run("check") == alone
    assert len(known()) == 6
