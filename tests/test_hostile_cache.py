"""No cache that comes with a tree is believed, and nobody's files are removed or read through one."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Run
from helpers import LOOP, cached, put_into_cache

from accumlint import config
from accumlint.files.folder import Folder
from accumlint.files.inputs import cache
from accumlint.files.inputs.cache import KEY, TAG

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="makes links and pipes as Unix does"
)
OLD = time.time() - 100 * 24 * 3600


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "train.py").write_text(LOOP)
    os.utime(tree / "train.py", (OLD, OLD))
    return tree


def forged(folder: Path, file: Path, *, is_signed: bool = True) -> None:
    """What a cache holds in which nothing was found in a file; signed with the key of who forges it."""
    for kept in folder.glob("*.json"):
        held = cached(kept)
        found = file.stat()
        held["known"] = {str(file): [found.st_size, found.st_mtime_ns]}
        if is_signed:
            put_into_cache(kept, held)
        else:
            line = kept.read_text().splitlines()[1]
            kept.write_text(f"{json.dumps(held)}\n{line}\n")


def test_a_cache_of_another_user_is_not_believed(
    run: Run, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands in the tree was made by the author of the tree, with a key of their user."""
    monkeypatch.chdir(tree)
    options = ("check", "--cache-dir", "committed")
    with monkeypatch.context() as theirs:
        theirs.setenv("XDG_CACHE_HOME", str(tmp_path / "theirs"))
        assert run(*options).code == 1
        forged(tree / "committed", tree / "train.py")
        # It is believed where it was made, so the forgery is a good one.
        assert run(*options).code == 0
    assert run(*options).code == 1
    assert run(*options).code == 1


def test_who_sees_the_names_in_a_shared_cache_cannot_write_its_files(
    run: Run, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree)
    options = ("check", "--cache-dir", str(tmp_path / "shared"))
    assert run(*options).code == 1
    forged(tmp_path / "shared", tree / "train.py", is_signed=False)
    assert run(*options).code == 1


@pytest.mark.parametrize("way", ["copied", "linked"])
def test_who_sees_the_names_in_a_shared_cache_cannot_exchange_its_files(
    run: Run, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.chdir(tree)
    shared = tmp_path / "shared"
    options = ("check", "--cache-dir", str(shared))
    assert run(*options).code == 1
    (found,) = shared.glob("*.json")
    assert run(*options, "--select", "ACC9").code == 0
    (nothing,) = (file for file in shared.glob("*.json") if file != found)
    found.unlink()
    if way == "copied":
        shutil.copyfile(nothing, found)
    else:
        os.link(nothing, found)
    assert run(*options).code == 1


def test_a_folder_named_like_the_old_cache_is_not_read(
    run: Run, tree: Path, monkeypatch: pytest.MonkeyPatch, cache_home: Path
) -> None:
    monkeypatch.chdir(tree)
    run("check")
    shutil.copytree(cache_home, tree / ".accumlint_cache")
    forged(tree / ".accumlint_cache", tree / "train.py")
    assert run("check").code == 1


@pytest.mark.parametrize("name", ["accumlint.toml", "pyproject.toml"])
@pytest.mark.parametrize("command", ["check", "clean", "baseline write"])
def test_settings_that_are_found_do_not_say_where_the_cache_is(
    run: Run, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, command: str
) -> None:
    monkeypatch.chdir(tree)
    theirs = a_foreign_cache(tmp_path)
    table = "[tool.accumlint]\n" if name == "pyproject.toml" else ""
    (tree / name).write_text(f'{table}cache-dir = "../theirs"\n')
    config.forget()
    before = snapshot(theirs)
    ran = run(*command.split())
    assert (ran.code, ran.err) == (
        2,
        f"accumlint: {name}: cache-dir says where files are written and removed;"
        f" to allow it, name the file: --config {name}\n",
    )
    assert snapshot(theirs) == before
    assert run(*command.split(), "--config", name).code in (0, 1, 2)


def a_foreign_cache(tmp_path: Path) -> Path:
    """The cache of another tool, with an old file."""
    theirs = tmp_path / "theirs"
    theirs.mkdir(exist_ok=True)
    (theirs / TAG).write_text(
        "Signature: 8a477f597d28d172789f06886806bc55\n# Made by another tool.\n"
    )
    for name in ("results.json", f"{'a' * 32}.json", ".gitignore", KEY):
        (theirs / name).write_text("{}")
        os.utime(theirs / name, (OLD, OLD))
    return theirs


def snapshot(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


def through_a_link(tree: Path, theirs: Path) -> Path:
    (tree / "cache").symlink_to(theirs, target_is_directory=True)
    return tree / "cache"


def by_its_name(tree: Path, theirs: Path) -> Path:
    return theirs


def through_a_link_with_our_mark(tree: Path, theirs: Path) -> Path:
    (theirs / TAG).write_text(MARK)
    return through_a_link(tree, theirs)


def with_a_link_for_a_mark(tree: Path, theirs: Path) -> Path:
    (tree / "mark").write_text(MARK)
    (theirs / TAG).unlink()
    (theirs / TAG).symlink_to(tree / "mark")
    return theirs


MARK = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# What accumlint found the last time; may be removed at any time.\n"
)
PATHS: tuple[Callable[[Path, Path], Path], ...] = (
    through_a_link, by_its_name, through_a_link_with_our_mark, with_a_link_for_a_mark,
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_nothing_is_removed_from_a_folder_that_accumlint_did_not_make(
    run: Run, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    path: Callable[[Path, Path], Path],
) -> None:  # fmt: skip
    monkeypatch.chdir(tree)
    theirs = a_foreign_cache(tmp_path)
    folder = path(tree, theirs)
    before = snapshot(theirs)
    assert run("check", "--cache-dir", str(folder)).code == 1
    assert run("clean", "--cache-dir", str(folder)).code == 2
    assert snapshot(theirs) == before


def test_of_a_cache_only_what_accumlint_made_is_removed(
    run: Run, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree)
    run("check", "--cache-dir", "cache")
    cache, other = tree / "cache", tmp_path / "other.txt"
    other.write_text("mine")
    (cache / "results.json").write_text("{}")
    (cache / f"{'b' * 32}.json").symlink_to(other)
    (cache / f"{'c' * 32}.json").write_text("{}")
    for file in cache.iterdir():
        os.utime(file, (OLD, OLD), follow_symlinks=False)
    (tree / "more.py").write_text(LOOP)
    os.utime(tree / "more.py", (OLD, OLD))
    run("check", "--cache-dir", "cache")
    assert not (cache / f"{'c' * 32}.json").exists()
    assert run("clean", "--cache-dir", "cache").code == 2
    assert {"results.json", f"{'b' * 32}.json"} <= {file.name for file in cache.iterdir()}
    assert other.read_text() == "mine"


def a_pipe(file: Path) -> None:
    os.mkfifo(file)


def a_link_to_an_endless_device(file: Path) -> None:
    file.symlink_to("/dev/zero")


def a_folder(file: Path) -> None:
    file.mkdir()


def a_readable_file(file: Path) -> None:
    file.write_text("0" * 64)
    file.chmod(0o644)


def a_short_file(file: Path) -> None:
    file.write_text("0")
    file.chmod(0o600)


KINDS = (a_pipe, a_link_to_an_endless_device, a_folder, a_readable_file, a_short_file)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", [KEY, TAG, "the cache"])
def test_what_is_in_the_way_is_no_cache(
    run: Run, tree: Path, monkeypatch: pytest.MonkeyPatch, cache_home: Path, name: str,
    kind: Callable[[Path], None],
) -> None:  # fmt: skip
    monkeypatch.chdir(tree)
    first = run("check")
    (cache,) = cache_home.glob("*.json")
    file = cache if name == "the cache" else cache_home / name
    file.unlink()
    kind(file)
    assert run("check") == run("check") == first
    if name == KEY:
        # Nothing is kept under a key that others may know.
        assert list(cache_home.glob("*.json")) == [cache]


def test_the_key_is_the_user_s_alone(
    run: Run, tree: Path, monkeypatch: pytest.MonkeyPatch, cache_home: Path
) -> None:
    monkeypatch.chdir(tree)
    run("check")
    assert (cache_home / KEY).stat().st_mode & 0o777 == 0o600
    assert not list(tree.glob(".accumlint*"))


@pytest.mark.parametrize("place", ["", "deep/down"])
@pytest.mark.parametrize("is_linked", [False, True])
@pytest.mark.parametrize("is_repository", [True, False])
def test_a_key_that_comes_with_the_tree_is_none(
    run: Run, tree: Path, monkeypatch: pytest.MonkeyPatch, place: str, is_linked: bool,
    is_repository: bool,
) -> None:  # fmt: skip
    """With a mask of 077 a checkout, and from an archive everybody, gets files that only the user can read."""
    committed = tree / ".cache"
    if is_repository:
        (tree / ".git").mkdir()
    (tree / place).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tree / place if is_repository else tree)
    with monkeypatch.context() as theirs:
        theirs.setenv("XDG_CACHE_HOME", str(tree.parent / "elsewhere"))
        assert run("check", str(tree)).code == 1
        forged(tree.parent / "elsewhere" / "accumlint", tree / "train.py")
        # It is believed where it was made, so the forgery is a good one.
        assert run("check", str(tree)).code == 0
    shutil.copytree(tree.parent / "elsewhere", committed)
    assert (committed / "accumlint" / KEY).stat().st_mode & 0o777 == 0o600
    if is_linked:
        (tree.parent / "link").symlink_to(committed)
    named = tree.parent / "link" if is_linked else committed
    monkeypatch.setenv("XDG_CACHE_HOME", str(named))
    assert run("check", str(tree)).code == 1


def test_a_link_in_the_place_of_the_user_s_cache_leads_nowhere(
    run: Run, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_home: Path
) -> None:
    (tmp_path / "theirs").mkdir()
    cache_home.symlink_to(tmp_path / "theirs", target_is_directory=True)
    monkeypatch.chdir(tree)
    assert run("check").code == 1
    assert list((tmp_path / "theirs").iterdir()) == []


def test_who_works_in_their_home_has_a_cache(
    run: Run, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    monkeypatch.chdir(tmp_path)
    assert run("check", "tree").code == 1
    assert list((tmp_path / ".cache" / "accumlint").glob("*.json"))


@pytest.mark.parametrize("home", ["", "relative", "/proc/none", "/dev/null"])
def test_without_a_place_for_a_key_there_is_no_cache(
    run: Run, tree: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    monkeypatch.chdir(tree)
    monkeypatch.setenv("XDG_CACHE_HOME", home)
    monkeypatch.setenv("HOME", "/proc/none")
    ran = run("check")
    assert (ran.code, ran.err) == (1, "")
    assert [file.name for file in tree.iterdir()] == ["train.py"]


def exchanged(monkeypatch: pytest.MonkeyPatch, folder: Path, theirs: Path) -> None:
    """Puts a link to somebody's folder in the place of a cache as soon as that was looked at."""
    moved = folder.with_name("moved")

    def is_ours(asked: Folder) -> bool:
        answer = before(asked)
        if folder.is_dir() and not folder.is_symlink():
            folder.rename(moved)
            folder.symlink_to(theirs, target_is_directory=True)
        return answer

    before = cache.is_ours
    monkeypatch.setattr(cache, "is_ours", is_ours)


@pytest.mark.parametrize("command", ["check", "clean"])
def test_a_cache_that_is_exchanged_for_a_link_meanwhile_leads_nowhere(
    run: Run, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tree)
    theirs = a_foreign_cache(tmp_path)
    (theirs / TAG).unlink()
    run("check", "--cache-dir", "cache")
    (tree / "more.py").write_text(LOOP)
    os.utime(tree / "more.py", (OLD, OLD))
    before = snapshot(theirs)
    exchanged(monkeypatch, tree / "cache", theirs)
    run(command, "--cache-dir", "cache")
    assert (tree / "cache").is_symlink()
    assert snapshot(theirs) == before
