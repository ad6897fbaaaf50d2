"""Writes files so that there is always a whole one: the old or the new."""

from __future__ import annotations

import os
import shutil
import tempfile

from accumlint.files.outputs import target_of


def write(file: str, data: bytes, before: bytes) -> None:
    """Puts new bytes in the place of a file's old ones, keeping its mode; a link stays one, its target is written.

    Raises:
        OSError: when the file cannot be written, no longer holds what it held before, or is a link to one elsewhere.
    """
    real = target_of(file)
    # Replacing a file asks its folder for leave; the file's own mode may forbid it.
    with open(real, "r+b") as old:
        if old.read() != before:
            raise OSError("the file was changed meanwhile")
    put(real, data)


def put(file: str, data: bytes) -> None:
    """Makes a file of these bytes, or puts them in the place of what it held.

    Raises:
        OSError: when the file cannot be written.
    """
    real = os.path.realpath(file)
    handle, temporary = tempfile.mkstemp(prefix=".accumlint-", dir=os.path.dirname(real))
    try:
        with os.fdopen(handle, "wb") as new:
            new.write(data)
            new.flush()
            os.fsync(new.fileno())
        if os.path.exists(real):
            shutil.copymode(real, temporary)
        else:
            # A temporary file is the user's alone; a file that stays follows the user's mask.
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, real)
    except BaseException:
        os.unlink(temporary)
        raise
