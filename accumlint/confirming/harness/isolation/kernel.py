"""Calls of the Linux kernel's by way of the C library; above all, that a process ends with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> int:
    """What a call has given.

    Raises:
        OSError: where that says that the kernel refused; the message begins with `what` was asked for.
    """
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def die_with_parent() -> None:
    """Ends this process when its parent ends (Linux only; elsewhere the time limit does)."""
    if sys.platform == "linux":
        libc().prctl(1, signal.SIGKILL)
