"""The versions of libraries that a project pins in the texts that say what to install."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial
from itertools import islice

from accumlint.files.regular import SETTINGS, contents
from accumlint.reading.project import Project

Version = tuple[int, int]

_USUAL = ("requirements.txt", "pyproject.toml", "setup.py", "setup.cfg", "environment.yml")
# A project says what to install in a list of packages, a script, an image or its README.
_TEXTS = re.compile(
    r"\.(cfg|in|sh|toml|txt|ya?ml)$|^(dockerfile|install|readme)|^setup\.py$", re.IGNORECASE
)
# What follows a library's name: `==4.31.0`, `>=4.30,<4.46`, `.git@v4.43.0`, or ` = "4.28.1"` of a table.
_SPECIFIER = (
    r"(?:\[[^\]\n]{0,80}\]|\.git)?[ \t]{0,9}((?:=[ \t]{0,9}[\"']|[=<>~!@])[^\n#\"']{0,200})"
)
_BOUND = re.compile(
    r"(===?|~=|<=|<|@[ \t]{0,9}v|(?<![<>!=~])=(?:[ \t]{0,9}[\"'])?)[ \t]{0,9}(\d{1,4})(?:\.(\d{1,4}))?(?:\.(\d{1,4}))?"
)
# Above the second number of any release.
_ANY = 9999
_MOST_NAMES, _MOST_FILES = 2000, 20


def newest(library: str, path: str, project: Project) -> Version | None:
    """The newest version of a library that the files nearest to the file `path` allow; None where no pin is seen."""
    if not os.path.isabs(path):
        return None
    for folder in _upwards(os.path.dirname(path), project):
        if found := project.memory.once(
            ("pins", library, folder), partial(_pins, library, folder, project), ()
        ):
            return max(found)
    return None


def as_text(version: Version) -> str:
    """A version as it is written; its first number alone for any of its releases."""
    major, minor = version
    return str(major) if minor == _ANY else f"{major}.{minor}"


def _upwards(folder: str, project: Project) -> Iterator[str]:
    """A folder and those above it, up to where its project begins."""
    top = project.imports.top(folder)
    yield folder
    while folder not in (top, os.path.dirname(folder)):
        folder = os.path.dirname(folder)
        yield folder


def _pins(library: str, folder: str, project: Project) -> tuple[Version, ...]:
    """What the files of one folder pin a library to."""
    return tuple(pin for file in _files(folder, project) for pin in _of_file(library, file))


def _files(folder: str, project: Project) -> Iterator[str]:
    project.memory.met.update(os.path.join(folder, name) for name in _USUAL)
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, _MOST_NAMES)]
    except OSError:
        return
    texts = sorted(filter(_TEXTS.search, names), key=lambda name: (name not in _USUAL, name))
    for name in texts[:_MOST_FILES]:
        file = os.path.join(folder, name)
        project.memory.read.add(file)
        yield file


def _of_file(library: str, file: str) -> Iterator[Version]:
    try:
        text = contents(file, SETTINGS, follow=False).decode("utf-8", "replace")
    except OSError:
        return
    for specifier in re.findall(rf"(?<![\w-]){library}{_SPECIFIER}", text):
        yield from _upper(specifier)


def _upper(specifier: str) -> Iterator[Version]:
    """The newest version that a specifier allows, where it says so."""
    for sign, major, minor, patch in _BOUND.findall(specifier):
        version = int(major), int(minor or 0)
        if sign == "<" and not int(patch or 0):
            # What is below 4.46 is 4.45 at most, and what is below 5 any 4.
            yield (version[0], version[1] - 1) if version[1] else (version[0] - 1, _ANY)
        elif not minor:
            # `==4` is no release of a library that has had others since.
            continue
        elif sign != "~=" or patch:
            yield version
