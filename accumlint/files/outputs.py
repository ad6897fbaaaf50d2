"""Tells where a file may be written that the user names: not where a link of the current folder leads."""

from __future__ import annotations

import errno
import os
import stat


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
