"""What the Linux kernel is asked for: that a process ends with its parent."""

from __future__ import annotations

import ctypes
import signal
import sys


def die_with_parent() -> None:
    """Ends this process when its parent ends (Linux only; elsewhere the time limit does)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
