"""A folder like the one that a script works in, with links to its files: what is written beside them goes elsewhere."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

# A folder with more in it is a link itself, and may only be read.
_MOST = 3000
# What a project's outermost folder has in it, and how far above the script's it is looked for.
_TOP = (".git", ".hg", "pyproject.toml", "setup.py", "setup.cfg")
_HIGHEST = 4


def mirrored(source: Path, scratch: Path) -> Path:
    """A folder below `scratch` that looks like `source`; those above it, up to the project's, have links only."""
    chain = [*reversed(list(_above(source))), source]
    here = scratch / "folder"
    for outer, inner in pairwise(chain):
        here.mkdir()
        for entry in _entries(outer)[:_MOST]:
            if entry.name != inner.name and not _holds(entry, scratch):
                _link(here / entry.name, entry.path)
        here = here / inner.name
    _copy(source, here, scratch)
    return here


def _holds(entry: os.DirEntry[str], scratch: Path) -> bool:
    """Whether the copy itself lies there, which would have no end."""
    return Path(os.path.realpath(entry.path)) in Path(os.path.realpath(scratch)).parents


def _above(source: Path) -> Iterator[Path]:
    """The folders above a project's folder that belong to it, innermost first; without a project, the next one."""
    folders = [source, *source.parents][: _HIGHEST + 1]
    top = next((f for f in folders if any((f / name).exists() for name in _TOP)), folders[1:2])
    last = top if isinstance(top, Path) else next(iter(top), source)
    for folder in folders[1:]:
        if last == source:
            return
        yield folder
        if folder == last:
            return


def _copy(source: Path, folder: Path, scratch: Path) -> None:
    """Folders as folders, and all else as links."""
    folder.mkdir()
    made = 0
    waiting = deque([(source, folder)])
    while waiting:
        here, there = waiting.popleft()
        for entry in _entries(here):
            to = there / entry.name
            made += 1
            if _holds(entry, scratch):
                continue
            if entry.is_dir(follow_symlinks=False) and entry.name != ".git" and made < _MOST:
                to.mkdir()
                waiting.append((Path(entry.path), to))
            else:
                _link(to, entry.path)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except OSError:
        return []


def _link(place: Path, to: str) -> None:
    # What cannot be made a link is not there for the script; it says so itself.
    with contextlib.suppress(OSError):
        place.symlink_to(to)
