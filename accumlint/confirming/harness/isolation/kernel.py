"""Linux kernel calls through the C library, such as ending a process with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> int:
    """The result of a system call.

    Raises:
        OSError: where the kernel refused; the message begins with `what`.
    """
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def die_with_parent() -> None:
    """Ends this process when its parent ends (Linux only)."""
    if sys.platform == "linux":
        libc().prctl(1, signal.SIGKILL)
