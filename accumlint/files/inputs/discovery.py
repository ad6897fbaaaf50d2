"""Finds the Python files to check."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from accumlint.common.frozen import frozen
from accumlint.common.problem import Kind, Problem
from accumlint.config import FILES, Options, Settings, settings
from accumlint.files import gitignore
from accumlint.files.gitignore import Patterns

_PLAIN_NAME = re.compile(r"[\w.-]+/?")


@frozen
class Target:
    """A file to check: its path as the user wrote it, its absolute path, and the settings that hold for it."""

    shown: str
    file: str
    settings: Settings
    stdin: bool = False

    @property
    def is_notebook(self) -> bool:
        """True for a file that holds cells."""
        return self.file.endswith(".ipynb")


@frozen
class _Folder:
    """A folder still to be walked, with what holds in it if it has no file of its own that says otherwise.

    `ignored` are the .gitignore files, outermost first.
    """

    path: str
    shown: str
    ignored: tuple[Patterns, ...]
    held: Settings


def find(
    paths: Sequence[str],
    options: Options,
    *,
    force_exclude: bool = False,
    stdin_filename: str = "",
) -> tuple[list[Target], list[Problem]]:
    """The files under `paths`, sorted, each once, and what could not be looked into.

    A file that is named is always found, whatever it is called, and its findings count although it be a test, unless
    `force_exclude` takes it like one that was met in a folder.
    """
    found: dict[str, Target] = {}
    problems: list[Problem] = []
    named = options if force_exclude else replace(options, include_tests=True)
    for path in paths:
        for item in _find(path, options, named, stdin_filename):
            if isinstance(item, Problem):
                problems.append(item)
            elif not (force_exclude and _is_below_excluded(item)):
                found.setdefault(item.file, item)
    return sorted(found.values(), key=lambda target: target.file), problems


def _find(
    path: str, options: Options, named: Options, stdin_filename: str
) -> Iterator[Target | Problem]:
    """The files under one path; the options for files that are `named` are others."""
    if path == "-":
        name = os.path.abspath(stdin_filename) if stdin_filename else "-"
        folder = Path(os.path.dirname(os.path.abspath(name)))
        yield Target(stdin_filename or "-", name, settings(folder, named), stdin=True)
        return
    file = os.path.abspath(path)
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        yield Problem(path, "no such file or folder")
    except (OSError, ValueError) as problem:
        yield Problem(path, f"cannot be read: {_reason(problem)}")
    else:
        if stat.S_ISDIR(mode):
            yield from _in_folder(path, file, options)
        else:
            yield Target(path, file, settings(Path(file).parent, named))


def _in_folder(path: str, file: str, options: Options) -> Iterator[Target | Problem]:
    shown = "" if path == "." else os.path.join(path, "")
    empty = True
    top = _Folder(file, shown, gitignore.from_above(file), settings(Path(file), options))
    for item in _walk(top, options):
        empty = False
        yield item
    if empty:
        yield Problem(path, "holds no Python file to check", Kind.WARNING)


def _walk(top: _Folder, options: Options) -> Iterator[Target | Problem]:
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder.path) as scan:
                entries = list(scan)
        except OSError as problem:
            yield Problem(folder.shown or ".", f"cannot be read: {_reason(problem)}")
            continue
        ignored, held = folder.ignored, folder.held
        names = {entry.name for entry in entries}
        if ".gitignore" in names:
            ignored = gitignore.within(ignored, gitignore.of_gitignore(folder.path))
        if not names.isdisjoint(FILES):
            held = settings(Path(folder.path), options)
        excluded, others = _excludes(str(held.root), held.exclude)
        for entry in entries:
            if entry.name in excluded:
                continue
            shown = folder.shown + entry.name
            try:
                # Links to folders are not followed, as in git: no loops, and no file under two names.
                is_folder = entry.is_dir(follow_symlinks=False)
                is_file = entry.name.endswith((".py", ".ipynb")) and entry.is_file()
            except OSError as problem:
                yield Problem(shown, f"cannot be read: {_reason(problem)}")
                continue
            if not (is_folder or is_file):
                continue
            if (others or ignored) and _is_left_out(entry.path, is_folder, others, ignored):
                continue
            if is_folder:
                waiting.append(_Folder(entry.path, shown + os.sep, ignored, held))
            else:
                yield Target(shown, entry.path, held)


def _is_left_out(
    path: str, is_folder: bool, excluded: Patterns | None, ignored: tuple[Patterns, ...]
) -> bool:
    asked = path + os.sep if is_folder else path
    if excluded and excluded.verdict(asked):
        return True
    # The innermost .gitignore that says anything decides.
    verdicts = (found.verdict(asked) for found in reversed(ignored))
    return next((verdict for verdict in verdicts if verdict is not None), False)


def _is_excluded(path: str, is_folder: bool, held: Settings) -> bool:
    names, others = _excludes(str(held.root), held.exclude)
    if os.path.basename(path) in names:
        return True
    return others is not None and bool(others.verdict(path + os.sep if is_folder else path))


def _is_below_excluded(target: Target) -> bool:
    """True when the file, or a folder between it and its settings' root, is excluded."""
    file = Path(target.file)
    above = [folder for folder in file.parents if target.settings.root in folder.parents]
    return _is_excluded(target.file, False, target.settings) or any(
        _is_excluded(str(folder), True, target.settings) for folder in above
    )


@cache
def _excludes(root: str, exclude: tuple[str, ...]) -> tuple[frozenset[str], Patterns | None]:
    """Excludes as names, which need no patterns, and as patterns for the rest."""
    names = {
        pattern for pattern in exclude if _PLAIN_NAME.fullmatch(pattern) and pattern[-1] != "/"
    }
    others = [pattern for pattern in exclude if pattern not in names]
    return frozenset(names), gitignore.compiled(root, others) if others else None


def _reason(problem: OSError | ValueError) -> str:
    return (problem.strerror if isinstance(problem, OSError) else None) or str(problem)
