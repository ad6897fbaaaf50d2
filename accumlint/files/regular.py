"""Reads files that may be anything: only regular ones, and no more of them than there is room for."""

from __future__ import annotations

import errno
import os
import stat
import sys

# Notebooks with pictures are the largest that anybody checks.
LARGEST = 64 * 1024 * 1024
# Nobody writes that much of settings or patterns.
SETTINGS = 1024 * 1024
# Bytes that are read at a time: most files in one go.
_PART = 1 << 18
# A pipe that nobody writes to must not be waited for, nor a terminal become the process's own.
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
)


def contents(
    path: str | os.PathLike[str],
    most: int = LARGEST,
    *,
    follow: bool = True,
    folder: int | None = None,
    private: bool = False,
) -> bytes:
    """The bytes of a regular file; a link leads to one, unless it is not to be followed.

    Where a `folder` is open, the path begins there. What is `private` belongs to the user, and nobody else may read it.

    Raises:
        OSError: when it cannot be read, is something else, or holds more than the `most` bytes.
    """
    # Asked before, since opening some devices already does something.
    if not stat.S_ISREG(os.stat(path, dir_fd=folder, follow_symlinks=follow).st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    flags = _FLAGS | (0 if follow else getattr(os, "O_NOFOLLOW", 0))
    file = os.open(path, flags, dir_fd=folder)
    try:
        found = os.fstat(file)
        # What the path means may have changed since it was asked.
        if not stat.S_ISREG(found.st_mode) or (private and not _is_private(found)):
            raise OSError(errno.EINVAL, "it is no regular file of the user's own")
        parts: list[bytes] = []
        size = 0
        while size <= most and (part := os.read(file, _PART)):
            parts.append(part)
            size += len(part)
    finally:
        os.close(file)
    if size > most:
        raise OSError(errno.EFBIG, f"it is larger than {most // 1024 // 1024} MiB")
    return b"".join(parts)


def _is_private(found: os.stat_result) -> bool:
    # On Windows a user's folders are closed to others.
    return sys.platform == "win32" or (found.st_uid == os.geteuid() and not found.st_mode & 0o077)
