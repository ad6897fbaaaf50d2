"""Tells where files may be written: not where a link of the folder that is checked leads out of it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator


def refuse_detours(file: str | os.PathLike[str]) -> None:
    """Refuses a path below the current folder that a link there takes elsewhere, or that is no file.

    The current folder holds what somebody else wrote: its links would choose what is written over.

    Raises:
        OSError: with the reason.
    """
    here = os.path.realpath(os.curdir)
    path = os.path.join(here, os.path.relpath(file))
    if os.path.normpath(path) != path or not path.startswith(os.path.join(here, "")):
        return
    if os.path.realpath(path) != path:
        raise OSError(errno.ELOOP, "it is reached by a link, which nothing is written through")
    if os.path.exists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")


def target_of(file: str) -> str:
    """The file that stands behind a path, which may be a link within its repository.

    Outside of a repository it is one within the current folder, or else beside the link.

    Raises:
        OSError: where it leads elsewhere: whoever wrote what is checked would choose which file is changed.
    """
    folder, name = os.path.split(os.path.abspath(file))
    folder, real, here = (os.path.realpath(path) for path in (folder, file, os.curdir))
    if real != os.path.join(folder, name):
        homes = (folder, *_above(folder))
        usual = here if here in homes else folder
        home = next((f for f in homes if os.path.lexists(os.path.join(f, ".git"))), usual)
        if not real.startswith(os.path.join(home, "")):
            raise OSError(errno.ELOOP, "it is a link that leads to a file elsewhere")
    return real


def _above(folder: str) -> Iterator[str]:
    while (above := os.path.dirname(folder)) != folder:
        yield above
        folder = above
